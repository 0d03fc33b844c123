// The messages of a conversation on the page.

// A message as it is shown. `actions` has what its buttons do: edit(message, text), and again() of answers.
class MessageView {
  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    this.root = element('article', `message ${message.role}`);
    this.text = element('div', 'text');
    this.footer = element('footer');
    this.stats = element('span', 'stats');
    this.footer.append(copyButton(() => message.content), button('edit', 'Edit', () => this.edit(message.content)));
    if (message.role === 'assistant') {
      this.markdown = new MarkdownView(this.text);
      this.footer.append(button('again', 'Regenerate', () => actions.again()));
    }
    this.footer.append(this.stats);
    this.root.append(this.text, this.footer);
  }

  // Shows what the message has by now. `complete`: nothing more comes.
  show(complete) {
    const {content, reasoning, stats} = this.message;
    if (reasoning) this.#showReasoning(reasoning, complete);
    if (this.markdown) this.markdown.show(content); else this.text.textContent = content;
    this.stats.textContent = stats || '';
    this.root.classList.toggle('complete', complete);
    return this;
  }

  #showReasoning(reasoning, complete) {
    if (!this.reasoning) {
      this.reasoning = element('details', 'reasoning');
      this.reasoning.append(element('summary'), element('div'));
      this.root.prepend(this.reasoning);
    }
    const [summary, shown] = this.reasoning.children;
    summary.textContent = this.message.content || complete ? 'Thoughts' : 'Thinking…';
    // Reasoning is long, so only what is new of it is added.
    const length = shown.firstChild?.length || 0;
    if (length < reasoning.length) {
      if (shown.firstChild) shown.firstChild.appendData(reasoning.slice(length)); else shown.append(reasoning);
    }
  }

  // Puts a field with `text` in place of the message.
  edit(text) {
    if (this.editor) return;
    const field = element('textarea');
    field.value = text;
    field.setAttribute('aria-label', 'Edited message');
    const close = () => { this.editor.replaceWith(this.text, this.footer); this.editor = null; };
    const row = element('div', 'row');
    row.append(button('save', this.message.role === 'user' ? 'Send' : 'Save', () => {
      if (this.actions.edit(this.message, field.value)) close();
    }), button('cancel', 'Cancel', close));
    this.editor = element('div', 'editor');
    this.editor.append(field, row);
    this.text.replaceWith(this.editor);
    this.footer.remove();
    field.focus();
  }
}
