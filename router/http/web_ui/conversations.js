// Conversations, kept in the browser's storage: each under a key of its own, so that tabs do not overwrite each
// other's. At most MAX_CONVERSATIONS and MAX_CHARS of JSON; the oldest make room.
//
// A conversation is {id, title, updated, system, sampling, messages}: `title` is empty until the user gives one,
// `sampling` has the texts of the fields, and a message is {role, content, reasoning, stats}.

const PREFIX = 'baton.conversation.';
const MAX_CONVERSATIONS = 100;
const MAX_CHARS = 2e6;  // browsers give a server's pages about 5 million together
const SAMPLING = ['temperature', 'top_p', 'max_tokens', 'seed'];

class Conversations {
  #storage = openStorage('localStorage');
  #all = new Map();    // id: conversation
  #sizes = new Map();  // id: characters of what is stored

  constructor() { this.reload(); }

  // Reads what is stored, which another tab may have changed. `kept` stays as it is.
  reload(kept = null) {
    this.#all.clear();
    this.#sizes.clear();
    const keys = Array.from({length: this.#storage.length}, (_, i) => this.#storage.key(i));
    for (const key of keys.filter(key => key.startsWith(PREFIX))) {
      const text = this.#storage.getItem(key);
      const conversation = readConversation(text);
      if (!conversation || PREFIX + conversation.id !== key) continue;
      this.#all.set(conversation.id, conversation);
      this.#sizes.set(conversation.id, text.length);
    }
    if (kept && kept.messages.length > 0) this.#all.set(kept.id, kept);
  }

  // The newest first.
  list() { return [...this.#all.values()].sort((a, b) => b.updated - a.updated); }
  get(id) { return this.#all.get(id); }

  // False if the conversation lasts only as long as the page, because there is no room for it.
  save(conversation) {
    conversation.updated = Date.now();
    this.#all.set(conversation.id, conversation);
    this.#sizes.delete(conversation.id);
    const text = JSON.stringify(conversation);
    const fits = text.length <= MAX_CHARS;
    while (fits && (this.#sizes.size >= MAX_CONVERSATIONS || this.#chars() + text.length > MAX_CHARS)) {
      this.#dropOldest();
    }
    while (fits) {
      try {
        this.#storage.setItem(PREFIX + conversation.id, text);
        this.#sizes.set(conversation.id, text.length);
        return true;
      } catch {  // the server's other pages may have filled it
        if (!this.#dropOldest()) break;
      }
    }
    this.#storage.removeItem(PREFIX + conversation.id);  // rather than an old state of it
    return false;
  }

  delete(id) {
    this.#all.delete(id);
    this.#sizes.delete(id);
    this.#storage.removeItem(PREFIX + id);
  }

  #chars() { return [...this.#sizes.values()].reduce((sum, size) => sum + size, 0); }

  // Of those that are stored, which the one being saved is not.
  #dropOldest() {
    const oldest = this.list().findLast(({id}) => this.#sizes.has(id));
    if (oldest) this.delete(oldest.id);
    return Boolean(oldest);
  }
}

// Ids must not depend on crypto.randomUUID, which pages that come by plain HTTP do not have.
function newConversation(like) {
  const id = [...crypto.getRandomValues(new Uint8Array(8))].map(byte => byte.toString(16).padStart(2, '0')).join('');
  return {id, title: '', updated: Date.now(), system: like?.system || '', sampling: {...like?.sampling}, messages: []};
}

// Null for what this page has not written.
function readConversation(text) {
  let read;
  try { read = JSON.parse(text); } catch { return null; }
  const isText = value => typeof value === 'string';
  if (!read || ![read.id, read.title, read.system].every(isText) || !Number.isFinite(read.updated) ||
      !Array.isArray(read.messages) || typeof read.sampling !== 'object' || read.sampling === null) {
    return null;
  }
  const good = message => message && ['user', 'assistant'].includes(message.role) && isText(message.content) &&
      (message.reasoning === undefined || isText(message.reasoning)) &&
      (message.stats === undefined || isText(message.stats));
  return read.messages.every(good) && SAMPLING.every(name => isText(read.sampling[name] ?? '')) ? read : null;
}

function titleOf(conversation) {
  const first = conversation.messages[0]?.content.trim().split('\n')[0];
  return conversation.title || first?.slice(0, 60) || 'New chat';
}
