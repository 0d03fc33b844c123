// The chat: the conversation that is open, its settings, and the answer that is being generated.

// --- The key. It stays in this tab, and its box is hidden where no key is wanted.

const key = byId('key');
const session = openStorage('sessionStorage');
key.value = session.getItem('key') || '';
key.hidden = !key.value;
key.addEventListener('change', () => {
  session.setItem('key', key.value);
  loadModels();
  pollNow();
});
const headers = () => key.value ? {Authorization: 'Bearer ' + key.value} : {};

async function loadModels() {
  const answer = await fetch('/v1/models', {headers: headers()}).catch(() => null);
  if (!answer) return;
  if (answer.status === 401) {
    key.hidden = false;
    note(key.value ? 'The server does not know this API key.' : 'The server wants an API key.');
  }
  if (!answer.ok) return;
  note('');
  key.hidden = !key.value;
  const models = (await answer.json()).data.map(model => {
    const option = element('option', '', model.id);
    option.value = model.id;
    return option;
  });
  byId('model').replaceChildren(...models);
}

function note(text) {
  byId('note').textContent = text;
  byId('note').hidden = !text;
}

// --- The open conversation.

const conversations = new Conversations();
let current = conversations.list()[0] || newConversation();
let views = [];      // of current.messages
let running = null;  // {controller, done}: the answer that is being generated, which is of `current`

function save() {
  note(conversations.save(current) ? '' : 'There is no room in the browser to keep this conversation.');
  showList();
}

function showConversation() {
  views = current.messages.map(message => new MessageView(message, actions).show(true));
  byId('messages').replaceChildren(...views.map(view => view.root));
  byId('messages').scrollTop = byId('messages').scrollHeight;
  byId('system').value = current.system;
  for (const name of SAMPLING) byId(name).value = current.sampling[name] || '';
  showList();
}

function showError(text) {
  const shown = element('div', 'error', text);
  byId('messages').append(shown);
  shown.scrollIntoView();
}

// The page has one answer at a time: it ends when its conversation is left, and keeps what it has by then.
async function openConversation(conversation) {
  if (running) {
    running.controller.abort();
    await running.done;
  }
  current = conversation;
  note('');
  showConversation();
}

byId('settings-form').addEventListener('input', () => {
  current.system = byId('system').value;
  for (const name of SAMPLING) current.sampling[name] = byId(name).value;
});
byId('settings-form').addEventListener('change', () => { if (current.messages.length > 0) save(); });
byId('settings-form').addEventListener('submit', event => event.preventDefault());

// --- The list of conversations.

function showList() {
  byId('conversations').replaceChildren(...conversations.list().map(listItem));
}

function listItem(conversation) {
  const item = element('li', conversation.id === current.id ? 'current' : '');
  const opener = button('open', titleOf(conversation), () => openConversation(conversation));
  opener.title = titleOf(conversation);
  const rename = button('rename', '✎', () => {
    const field = element('input');
    field.value = titleOf(conversation);
    field.setAttribute('aria-label', 'Title');
    const finish = kept => {
      field.onblur = null;
      if (kept) {
        conversation.title = field.value.trim();
        conversations.save(conversation);
      }
      showList();
    };
    field.onblur = () => finish(true);
    field.addEventListener('keydown', event => {
      if (event.key === 'Enter') finish(true);
      if (event.key === 'Escape') finish(false);
    });
    item.replaceChildren(field);
    field.select();
  });
  rename.title = 'Rename';
  const remove = button('delete', '×', async () => {
    // A second press deletes; to do something else first takes that back.
    if (!remove.classList.contains('sure')) {
      remove.classList.add('sure');
      remove.textContent = 'Delete?';
      return;
    }
    if (conversation.id === current.id) await openConversation(newConversation(current));
    conversations.delete(conversation.id);
    showList();
  });
  remove.title = 'Delete';
  remove.addEventListener('blur', () => {
    remove.classList.remove('sure');
    remove.textContent = '×';
  });
  item.append(opener, rename, remove);
  return item;
}

byId('new').addEventListener('click', async () => {
  if (current.messages.length > 0) await openConversation(newConversation(current));
  byId('input').focus();
});
// Another tab has changed what is stored.
window.addEventListener('storage', () => {
  conversations.reload(current);
  showList();
});
window.addEventListener('pagehide', () => {
  const last = current.messages.at(-1);
  if (running && (last.content || last.reasoning)) conversations.save(current);
});

// --- Answers.

// Calls onEvent with the JSON of each event of a stream.
async function readEvents(body, onEvent) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let held = '';
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return;
    const events = (held + value).split('\n\n');
    held = events.pop();
    for (const event of events) {
      if (event.startsWith('data: ') && event !== 'data: [DONE]') onEvent(JSON.parse(event.slice(6)));
    }
  }
}

// What a template writes for an earlier answer's reasoning is up to the template, so it goes in a field of its own.
function requestBody(conversation) {
  const messages = conversation.messages.map(({role, content, reasoning}) => ({
    role, content, ...(reasoning ? {reasoning_content: reasoning} : {}),
  }));
  if (conversation.system.trim()) messages.unshift({role: 'system', content: conversation.system});
  const body = {model: byId('model').value, messages, stream: true, stream_options: {include_usage: true}};
  for (const name of SAMPLING) if (conversation.sampling[name]) body[name] = Number(conversation.sampling[name]);
  return JSON.stringify(body);
}

// Since `start`, by the page's clock; `first` and `last`: when the first and the last of the answer's text came.
function statsOf({start, first, last, tokens, finish}) {
  const parts = [];
  if (first) parts.push(`first token ${duration((first - start) / 1e3)}`);
  if (tokens > 1 && last > first) parts.push(`${((tokens - 1) * 1e3 / (last - first)).toFixed(1)} tokens/s`);
  if (tokens) parts.push(`${tokens} tokens`);
  if (finish === 'length') parts.push('cut at its longest');
  if (finish === 'stopped') parts.push('stopped');
  return parts.join(' · ');
}

// Reads the answer to a request into `answer`, and what is known of its pace into `pace`.
async function generate(body, answer, pace, signal, onChange) {
  pace.start = performance.now();
  const response = await fetch('/v1/chat/completions', {
    method: 'POST', signal, headers: {'Content-Type': 'application/json', ...headers()}, body,
  });
  if (response.status === 401) key.hidden = false;
  if (!response.ok) {
    const error = await response.json().catch(() => null);
    throw new Error(error?.error?.message || `the server answers with status ${response.status}`);
  }
  await readEvents(response.body, event => {
    if (event.error) throw new Error(event.error.message);
    if (event.usage) pace.tokens = event.usage.completion_tokens;
    const choice = event.choices?.[0];
    if (!choice) return;
    if (choice.finish_reason) pace.finish = choice.finish_reason;
    const {content, reasoning_content: reasoning} = choice.delta;
    if (!content && !reasoning) return;
    pace.last = performance.now();
    pace.first ||= pace.last;
    if (content) answer.content += content;
    if (reasoning) answer.reasoning = (answer.reasoning || '') + reasoning;
    onChange();
  });
}

// Answers the current messages. False if the answer has no text at all: then the messages are `before` again.
async function answerCurrent(before) {
  const answer = {role: 'assistant', content: ''}, pace = {}, of = current, body = requestBody(of);
  const view = new MessageView(answer, actions).show(false);
  byId('messages').append(view.root);
  for (const old of byId('messages').querySelectorAll('.error')) old.remove();
  const list = byId('messages');
  list.scrollTop = list.scrollHeight;
  list.setAttribute('aria-busy', 'true');
  byId('send').disabled = true;
  byId('stop').disabled = false;
  const controller = new AbortController();
  let end, failure = '', frame = 0;
  running = {controller, done: new Promise(resolve => { end = resolve; })};
  const show = complete => {
    const follows = list.scrollHeight - list.scrollTop - list.clientHeight < 40;  // the reader has not scrolled up
    view.show(complete);
    if (follows) list.scrollTop = list.scrollHeight;
  };
  of.messages.push(answer);
  try {
    await generate(body, answer, pace, controller.signal, () => {
      frame ||= requestAnimationFrame(() => { frame = 0; show(false); });
    });
  } catch (error) {
    if (error.name === 'AbortError') pace.finish = 'stopped'; else failure = error.message;
  }
  cancelAnimationFrame(frame);
  running = null;
  list.removeAttribute('aria-busy');
  byId('send').disabled = false;
  byId('stop').disabled = true;
  const answered = Boolean(answer.content || answer.reasoning || (pace.finish && pace.finish !== 'stopped'));
  if (answered) {
    answer.stats = statsOf(pace);
    show(true);
    views.push(view);
  } else {
    of.messages = before;
    showConversation();
  }
  if (of.messages.length > 0) save();
  if (failure) showError(failure);
  end();
  return answered;
}

function settingsAreGood() {
  if (byId('settings-form').checkValidity()) return true;
  byId('settings').open = true;
  byId('settings-form').reportValidity();
  return false;
}

// Sends `text` after the first `kept` messages. What gets no answer goes back to where it was typed.
async function ask(text, kept, giveBack) {
  const before = current.messages, of = current;
  current.messages = [...before.slice(0, kept), {role: 'user', content: text}];
  showConversation();
  if (!await answerCurrent(before) && of === current) giveBack(text);
}

const actions = {
  // The conversation goes on from the edited message: what came after it is dropped. False: not now.
  edit(message, text) {
    if (running || !text.trim() || !settingsAreGood()) return false;
    const at = current.messages.indexOf(message);
    if (message.role === 'user') {
      ask(text, at, () => views[at].edit(text));
    } else {
      current.messages = [...current.messages.slice(0, at), {...message, content: text}];
      showConversation();
      save();
    }
    return true;
  },
  again() {
    if (running || !settingsAreGood()) return;
    const before = current.messages;
    current.messages = before.slice(0, -1);
    showConversation();
    answerCurrent(before);
  },
};

byId('form').addEventListener('submit', event => {
  event.preventDefault();
  const input = byId('input'), text = input.value;
  if (!text.trim() || running || !settingsAreGood()) return;
  input.value = '';
  ask(text, current.messages.length, back => { input.value ||= back; });
});
byId('input').addEventListener('keydown', event => {
  if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    byId('form').requestSubmit();
  }
});
byId('stop').addEventListener('click', () => running?.controller.abort());

showConversation();
