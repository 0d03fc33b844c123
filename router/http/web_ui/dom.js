// Elements, storage and the clipboard.

const byId = id => document.getElementById(id);
const element = (name, className, text) => {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text) made.textContent = text;
  return made;
};
const button = (className, text, onClick) => {
  const made = element('button', className, text);
  made.type = 'button';
  made.addEventListener('click', onClick);
  return made;
};

// Browsers may refuse a page its storage. What is kept then lasts as long as the page.
class MemoryStorage {
  #items = new Map();
  get length() { return this.#items.size; }
  key(index) { return [...this.#items.keys()][index] ?? null; }
  getItem(key) { return this.#items.get(key) ?? null; }
  setItem(key, value) { this.#items.set(key, String(value)); }
  removeItem(key) { this.#items.delete(key); }
}

function openStorage(name) {
  try {
    const storage = window[name];
    storage.getItem('');  // throws where it is refused
    return storage;
  } catch {
    return new MemoryStorage();
  }
}

async function copyText(text) {
  // Pages that come by plain HTTP from another machine have no navigator.clipboard.
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const field = element('textarea');
  field.value = text;
  document.body.append(field);
  field.select();
  const copied = document.execCommand('copy');
  field.remove();
  if (!copied) throw new Error('the browser does not copy');
}

// `text` is called when the button is pressed, because an answer may still grow.
function copyButton(text) {
  const made = button('copy', 'Copy', async () => {
    try {
      await copyText(text());
      made.textContent = 'Copied';
    } catch {
      made.textContent = 'Not copied';
    }
    setTimeout(() => { made.textContent = 'Copy'; }, 1500);
  });
  return made;
}
