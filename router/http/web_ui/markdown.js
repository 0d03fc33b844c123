// Markdown as models write it: the blocks and marks of CommonMark and GitHub's tables, without HTML, references,
// footnotes, indented code and underlined headings. A newline in a paragraph is one in the page. Every character of
// the text becomes the text of a node, so an answer can bring neither elements nor attributes but those made here.

const MAX_NESTING = 12;   // of quotes and lists
const MAX_MARKS = 1000;   // of emphasis in one block: pairing them takes time by the square
const FENCE = /^ {0,3}(`{3,}(?=[^`]*$)|~{3,})(.*)$/;
const HEADING = /^ {0,3}(#{1,6})(?: (.*))?$/;
const RULE = /^ {0,3}(?:(?:- *){3,}|(?:\* *){3,}|(?:_ *){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?:( +)(.*))?$/;
const TABLE_LINE = /^ {0,3}\|? *:?-+:? *(?:\| *:?-+:? *)*\|? *$/;

const isBlank = line => line.trim() === '';
const indentOf = line => line.length - line.trimStart().length;
const beginsTable = (lines, i) => i + 1 < lines.length && lines[i].includes('|') && lines[i + 1].includes('-') &&
    TABLE_LINE.test(lines[i + 1]) && cellsOf(lines[i]).length === cellsOf(lines[i + 1]).length;
const beginsBlock = (lines, i) => FENCE.test(lines[i]) || HEADING.test(lines[i]) || RULE.test(lines[i]) ||
    QUOTE.test(lines[i]) || ITEM.test(lines[i]) || beginsTable(lines, i);
// A number in a paragraph rarely begins a list, as in "a year like\n1984. It was".
const endsParagraph = (lines, i) => {
  const item = ITEM.exec(lines[i]);
  return beginsBlock(lines, i) && !(item && !RULE.test(lines[i]) && (!item[4] || /^[02-9]|^1\d/.test(item[2])));
};

function skipBlank(lines, i) {
  while (i < lines.length && isBlank(lines[i])) ++i;
  return i;
}

function cellsOf(line) {
  const cells = [''];
  for (const [part] of line.trim().matchAll(/\\\||\||[^\\|]+|\\/g)) {
    if (part === '|') cells.push(''); else cells[cells.length - 1] += part === '\\|' ? '|' : part;
  }
  if (cells[0].trim() === '') cells.shift();
  if (cells.length > 1 && cells[cells.length - 1].trim() === '') cells.pop();
  return cells.map(cell => cell.trim());
}

// Blocks as {kind, first, end, …}: of the lines [first, end).
function readBlocks(lines, depth) {
  const blocks = [];
  for (let i = 0; i < lines.length;) {
    if (isBlank(lines[i])) { ++i; continue; }
    const block = depth < MAX_NESTING ? readBlock(lines, i) : readParagraph(lines, i, () => false);
    blocks.push(block);
    i = block.end;
  }
  return blocks;
}

function readBlock(lines, first) {
  const line = lines[first];
  let match;
  if ((match = FENCE.exec(line))) return readCode(lines, first, match[1], match[2].trim());
  if ((match = HEADING.exec(line))) {
    const text = (match[2] || '').trim(), bare = text.replace(/#+$/, '');
    return {kind: 'heading', first, end: first + 1, level: match[1].length,
            text: bare === '' || bare.endsWith(' ') ? bare.trim() : text};
  }
  if (RULE.test(line)) return {kind: 'rule', first, end: first + 1};
  if (QUOTE.test(line)) return readQuote(lines, first);
  if (ITEM.test(line)) return readList(lines, first);
  if (beginsTable(lines, first)) return readTable(lines, first);
  return readParagraph(lines, first, endsParagraph);
}

function readCode(lines, first, fence, language) {
  const indent = indentOf(lines[first]);
  const closing = new RegExp(`^ {0,3}${fence[0]}{${fence.length},} *$`);
  let end = first + 1;
  while (end < lines.length && !closing.test(lines[end])) ++end;
  const code = lines.slice(first + 1, end).map(line => line.slice(Math.min(indent, indentOf(line))));
  return {kind: 'code', first, end: Math.min(end + 1, lines.length), language, code: code.join('\n')};
}

function readQuote(lines, first) {
  let end = first;
  const inner = [];
  while (end < lines.length && !isBlank(lines[end])) {
    const quoted = QUOTE.test(lines[end]);
    if (!quoted && beginsBlock(lines, end)) break;
    inner.push(lines[end++].replace(QUOTE, ''));
  }
  return {kind: 'quote', first, end, inner};
}

function readList(lines, first) {
  const [, margin, mark] = ITEM.exec(lines[first]);
  const ordered = mark.length > 1;
  const items = [];
  let end = first, loose = false;
  while (end < lines.length) {
    const match = ITEM.exec(lines[end]);
    if (!match || match[2].at(-1) !== mark.at(-1) || RULE.test(lines[end]) || match[1].length < margin.length) break;
    // Five spaces and more would be indented code in CommonMark.
    const inset = match[1].length + match[2].length + (match[3] && match[3].length < 5 ? match[3].length : 1);
    // Models often indent by two, whatever the width of the mark: what is first indented says by how much.
    const least = Math.min(inset, margin.length + 2);
    let indent = 0;
    const inner = [lines[end].slice(inset)];
    for (++end; end < lines.length; ++end) {
      if (isBlank(lines[end])) {
        const next = skipBlank(lines, end);
        if (next === lines.length || indentOf(lines[next]) < least) break;
        inner.push('');
        loose = true;
      } else if (indentOf(lines[end]) >= least) {
        indent ||= Math.min(inset, indentOf(lines[end]));
        inner.push(lines[end].slice(Math.min(indent, indentOf(lines[end]))));
      } else if (beginsBlock(lines, end) || isBlank(lines[end - 1])) {
        break;
      } else {
        inner.push(lines[end].trimStart());  // goes on with the item's paragraph
      }
    }
    items.push(inner);
    const next = skipBlank(lines, end);
    const again = next < lines.length && ITEM.exec(lines[next]);
    if (!again || again[2].at(-1) !== mark.at(-1) || RULE.test(lines[next])) break;
    if (next > end) loose = true;
    end = next;
  }
  return {kind: 'list', first, end, ordered, start: ordered ? parseInt(mark, 10) : 1, items, loose};
}

function readTable(lines, first) {
  const aligns = cellsOf(lines[first + 1]).map(
      cell => (cell.endsWith(':') ? (cell.startsWith(':') ? 'center' : 'right') : ''));
  let end = first + 2;
  while (end < lines.length && !isBlank(lines[end]) && lines[end].includes('|')) ++end;
  const rows = [lines[first], ...lines.slice(first + 2, end)].map(cellsOf);
  return {kind: 'table', first, end, aligns, rows};
}

function readParagraph(lines, first, ends) {
  let end = first + 1;
  while (end < lines.length && !isBlank(lines[end]) && !ends(lines, end)) ++end;
  const text = lines.slice(first, end).map(line => line.trim()).join('\n');
  return {kind: 'paragraph', first, end, text};
}

function buildBlocks(parent, lines, depth, tight) {
  for (const block of readBlocks(lines, depth)) parent.append(buildBlock(block, depth, tight));
}

function buildBlock(block, depth, tight) {
  let made;
  switch (block.kind) {
    case 'heading':
      made = element(`h${block.level}`);
      made.append(buildInline(block.text));
      return made;
    case 'rule': return element('hr');
    case 'code': return buildCode(block);
    case 'quote':
      made = element('blockquote');
      buildBlocks(made, block.inner, depth + 1, false);
      return made;
    case 'list':
      made = element(block.ordered ? 'ol' : 'ul');
      if (block.start !== 1) made.start = block.start;
      for (const item of block.items) {
        const shown = element('li');
        buildBlocks(shown, item, depth + 1, !block.loose);
        made.append(shown);
      }
      return made;
    case 'table': return buildTable(block);
    default:
      if (tight) return buildInline(block.text);
      made = element('p');
      made.append(buildInline(block.text));
      return made;
  }
}

function buildCode(block) {
  const made = element('div', 'code');
  const code = element('code', '', block.code);
  const head = element('div', 'row');
  head.append(element('span', '', block.language), copyButton(() => code.textContent));
  const frame = element('pre');
  frame.append(code);
  made.append(head, frame);
  return made;
}

function buildTable({rows, aligns}) {
  const made = element('table');
  rows.forEach((cells, i) => {
    const row = element('tr');
    aligns.forEach((align, k) => {
      const cell = element(i === 0 ? 'th' : 'td');
      cell.style.textAlign = align;
      cell.append(buildInline(cells[k] || ''));
      row.append(cell);
    });
    made.append(row);
  });
  return made;
}

// --- Within a block.

const PUNCTUATION = /[\p{P}\p{S}]/u;
const URL_START = /https?:\/\/[^\s<>"`*]+/y;
const AUTOLINK = /<(https?:\/\/[^\s<>]+)>/y;
// Of a link: in angle brackets, or without spaces and with brackets in pairs; then perhaps a title.
const ADDRESS = String.raw`<([^<>\n]*)>|((?:[^\s()\\]|\\.)*(?:\((?:[^\s()\\]|\\.)*\)(?:[^\s()\\]|\\.)*)*)`;
const TARGET = new RegExp(String.raw`\(\s{0,3}(?:${ADDRESS})(?:\s{1,3}(?:"[^"]*"|'[^']*'))?\s{0,3}\)`, 'y');

const matchAt = (pattern, text, at) => {
  pattern.lastIndex = at;
  return pattern.exec(text);
};

// Null unless it is one of the web: no other scheme gets a link.
function linkTo(address) {
  let url;
  try { url = new URL(address); } catch { return null; }
  if (url.protocol !== 'http:' && url.protocol !== 'https:') return null;
  const made = element('a');
  made.href = url.href;
  made.target = '_blank';
  made.rel = 'noopener noreferrer';
  return made;
}

// Punctuation behind a bare address belongs to the sentence.
function trimAddress(address) {
  let unmatched = 0;  // closing brackets without an opening one
  for (const c of address) unmatched += c === ')' ? 1 : c === '(' ? -1 : 0;
  let end = address.length;
  for (; end > 0; --end) {
    const last = address[end - 1];
    if (last === ')' ? unmatched-- <= 0 : !'.,;:!?\'"]}_~'.includes(last)) break;
  }
  return address.slice(0, end);
}

// Whether a run of marks may begin or end emphasis, from the characters on both sides, as CommonMark has it.
function flanks(mark, before, after) {
  const left = !/\s/.test(after) && (!PUNCTUATION.test(after) || /\s/.test(before) || PUNCTUATION.test(before));
  const right = !/\s/.test(before) && (!PUNCTUATION.test(before) || /\s/.test(after) || PUNCTUATION.test(after));
  if (mark !== '_') return {opens: left, closes: right};
  return {opens: left && (!right || PUNCTUATION.test(before)), closes: right && (!left || PUNCTUATION.test(after))};
}

function buildInline(text) {
  const made = document.createDocumentFragment();
  const marks = [];     // runs of * _ ~, in order: {node, mark, opens, closes}
  const brackets = [];  // open ones: {node, image, marks: how many came before}
  const absent = new Set();  // lengths of runs of ` that have no other one behind them
  let plain = '';
  const flush = () => { if (plain) made.append(plain); plain = ''; };
  const add = node => { flush(); made.append(node); };
  for (let i = 0; i < text.length;) {
    const c = text[i];
    let match;
    if (c === '\n') {
      add(element('br'));
      ++i;
    } else if (c === '\\' && /[!-/:-@[-`{-~]/.test(text[i + 1] || '')) {
      plain += text[i + 1];
      i += 2;
    } else if (c === '`') {
      const run = matchAt(/`+/y, text, i)[0];
      const end = absent.has(run.length) ? -1 : endOfCode(text, i + run.length, run);
      if (end < 0) {
        absent.add(run.length);
        plain += run;
        i += run.length;
      } else {
        const code = text.slice(i + run.length, end).replace(/\n/g, ' ');
        add(element('code', '', /^ .*[^ ].* $/.test(code) ? code.slice(1, -1) : code));
        i = end + run.length;
      }
    } else if (c === '*' || c === '_' || c === '~') {
      const run = matchAt(c === '*' ? /\*+/y : c === '_' ? /_+/y : /~+/y, text, i)[0];
      const before = i > 0 ? text[i - 1] : ' ';
      const after = text[i + run.length] || ' ';
      flush();
      const node = document.createTextNode(run);
      made.append(node);
      if (c !== '~' || run.length === 2) marks.push({node, mark: c, ...flanks(c, before, after)});
      i += run.length;
    } else if (c === '[' || (c === '!' && text[i + 1] === '[')) {
      const image = c === '!';
      const node = document.createTextNode(image ? '![' : '[');
      add(node);
      brackets.push({node, marks: marks.length});
      i += image ? 2 : 1;
    } else if (c === ']' && brackets.length > 0) {
      const open = brackets.pop();
      match = matchAt(TARGET, text, i + 1);
      const link = match && linkTo((match[1] ?? match[2]).replace(/\\([!-/:-@[-`{-~])/g, '$1'));
      if (link) {
        flush();
        pairMarks(marks.splice(open.marks));
        while (open.node.nextSibling) link.append(open.node.nextSibling);
        open.node.replaceWith(link);
        brackets.length = 0;  // links hold no links
        i += 1 + match[0].length;
      } else {
        plain += c;
        ++i;
      }
    } else if (c === '<' && (match = matchAt(AUTOLINK, text, i))) {
      const link = linkTo(match[1]);
      if (link) {
        link.textContent = match[1];
        add(link);
      } else {
        plain += match[0];
      }
      i += match[0].length;
    } else if (c === 'h' && !/\w/.test(text[i - 1] || ' ') && brackets.length === 0 &&
               (match = matchAt(URL_START, text, i))) {
      const address = trimAddress(match[0]);
      const link = linkTo(address);
      if (link) {
        link.textContent = address;
        add(link);
      } else {
        plain += address;
      }
      i += address.length;
    } else {
      plain += c;
      ++i;
    }
  }
  flush();
  pairMarks(marks);
  return made;
}

// Where the next run of exactly these characters begins; -1 if none does.
function endOfCode(text, from, run) {
  for (let at = text.indexOf(run, from); at >= 0; at = text.indexOf(run, at)) {
    const found = matchAt(/`+/y, text, at)[0];
    if (found.length === run.length) return at;
    at += found.length;
  }
  return -1;
}

// Wraps what stands between runs that belong together. Each run's node holds the marks that are left of it.
function pairMarks(marks) {
  if (marks.length > MAX_MARKS) return;
  const lengths = marks.map(({node}) => node.length);
  for (let close = 0; close < marks.length; ++close) {
    while (marks[close].closes && marks[close].node.length > 0) {
      const open = openerOf(marks, lengths, close);
      if (open < 0) break;
      const {node: first, mark} = marks[open], {node: last} = marks[close];
      const used = mark === '~' || (first.length >= 2 && last.length >= 2) ? 2 : 1;
      const wrapped = element(mark === '~' ? 'del' : used === 2 ? 'strong' : 'em');
      while (first.nextSibling !== last) wrapped.append(first.nextSibling);
      first.after(wrapped);
      first.deleteData(0, used);
      last.deleteData(0, used);
      for (let k = open + 1; k < close; ++k) marks[k].opens = marks[k].closes = false;
    }
  }
}

function openerOf(marks, lengths, close) {
  for (let open = close - 1; open >= 0; --open) {
    const {node, mark, opens, closes} = marks[open];
    if (!opens || mark !== marks[close].mark || node.length === 0) continue;
    // CommonMark's rule of three, for runs that could do either.
    const either = closes || marks[close].opens;
    const sum = lengths[open] + lengths[close];
    if (mark !== '~' && either && sum % 3 === 0 && (lengths[open] % 3 !== 0 || lengths[close] % 3 !== 0)) continue;
    return open;
  }
  return -1;
}

// --- A text that grows.

// Shows Markdown in `root`. A block that text can no longer change is built once; only what follows is built again.
class MarkdownView {
  constructor(root) {
    this.root = root;
    root.classList.add('markdown');
    this.settled = 0;  // characters that are built for good
    this.open = [];    // {node, kind} of the blocks behind
  }

  // `text` begins with the text of the call before.
  show(text) {
    const raw = text.slice(this.settled).split('\n');
    const lines = raw.map(line => line.replace(/\r/g, '').replace(/\t/g, '    '));
    const blocks = readBlocks(lines, 0);
    // The last line may grow: a # into a heading or a word, a - into an item or a rule. So what it begins may yet
    // become a part of the block before it.
    const last = blocks.findLastIndex(
        ({kind, first}) => first + (kind === 'table' ? 1 : 0) < lines.length - 1);
    // A block of code stays while it grows, so that its button can be pressed and its text selected.
    const kept = this.open[0]?.kind === 'code' && blocks[0]?.kind === 'code' ? this.open[0].node : null;
    for (const {node} of this.open) if (node !== kept) node.remove();
    this.open = [];
    blocks.forEach((block, i) => {
      let node = kept;
      if (i === 0 && kept) {
        kept.querySelector('code').textContent = block.code;
        kept.querySelector('span').textContent = block.language;
      } else {
        node = buildBlock(block, 0, false);
        this.root.append(node);
      }
      if (i >= last) this.open.push({node, kind: block.kind});
    });
    if (last > 0) for (let i = 0; i < blocks[last].first; ++i) this.settled += raw[i].length + 1;
  }
}
