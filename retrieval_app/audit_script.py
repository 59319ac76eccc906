"""What the page of an audit does: it reads its data, keeps a person's decisions, and listens to keys and buttons."""

from __future__ import annotations

from retrieval_app.audit_view import DRAW, VIEW

_DATA = r"""
'use strict';
const get = id => document.getElementById(id);
const data = JSON.parse(get('audit').textContent);
const COLUMNS = ['path', 'sha256', 'label', 'decision', 'new_label'];
const DECISIONS = ['keep', 'relabel', 'no-class'];
const NAMES = {keep: 'Keep', relabel: 'Relabel', 'no-class': 'No class', duplicate: 'Duplicate'};
const PREFIX = `retrieval-audit/${data.key}/`;
const keyOf = image => `${image.sha256}/${image.label}`;

const images = data.images.map(([path, sha256, label, picture]) => ({path, sha256, label, picture}));
const root = images.reduce((root, {path}) => {
  while (!path.startsWith(root)) root = root.slice(0, root.slice(0, -1).lastIndexOf('/') + 1);
  return root;
}, images.length ? images[0].path.slice(0, images[0].path.lastIndexOf('/') + 1) : '');
const rows = data.rows.map((row, order) => {
  const image = images[row.image], [decision, newLabel] = row.proposal;
  const suggested = decision === 'relabel' ? newLabel : row.suggestions.length ? row.suggestions[0][0] : '';
  const words = [image.path.slice(root.length), image.label, suggested].join('\n').toLowerCase();
  return {...row, ...image, order, suggested, words, key: keyOf(image), suspect: row.verdict !== 'keep', node: null};
});
const rowsByKey = new Map();
for (const row of rows) rowsByKey.set(row.key, [...rowsByKey.get(row.key) ?? [], row]);

// What cannot be seen is shown as an escape, as the rest of the project prints paths.
const shownText = text => text.replace(/[\p{C}\p{Z}]/gu, c => c === ' ' ? c : {'\n': '\\n', '\r': '\\r', '\t': '\\t'}[c]
  ?? (c.codePointAt(0) < 256 ? '\\x' + c.codePointAt(0).toString(16).padStart(2, '0')
    : '\\u' + c.codePointAt(0).toString(16).padStart(4, '0')));
const percent = share => `${(100 * share).toFixed(share > 0 && share < .0995 ? 1 : 0)}%`;
const amount = number => number.toLocaleString('en');
const count = (number, noun) => `${amount(number)} ${noun}${number === 1 ? '' : 's'}`;
const approximate = number => amount(Number(number.toFixed(number < 9.95 ? 1 : 0)));

function make(tag, properties, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in node) node[name] = value; else node.setAttribute(name, value);
  }
  node.append(...children.filter(child => child !== null));
  return node;
}

function readCsv(text) {
  const table = [[]];
  let field = '', quoted = false;
  const endField = () => { table[table.length - 1].push(field); field = ''; };
  for (let i = text.charCodeAt(0) === 0xfeff ? 1 : 0; i < text.length; i++) {
    const c = text[i];
    if (quoted) {
      if (c !== '"') field += c;
      else if (text[i + 1] === '"') { field += c; i++; }
      else quoted = false;
    } else if (c === '"') quoted = true;
    else if (c === ',') endField();
    else if (c === '\n' || c === '\r') {
      if (c === '\r' && text[i + 1] === '\n') i++;
      endField();
      table.push([]);
    } else field += c;
  }
  endField();
  return table.filter(fields => fields.length > 1 || fields[0] !== '');
}
const writeCsv = table => table.map(fields => fields.map(field =>
  /[",\r\n]/.test(field) ? `"${field.replaceAll('"', '""')}"` : field).join(',') + '\r\n').join('');

function entriesOf(text) {
  const [header, ...lines] = readCsv(text);
  const places = COLUMNS.map(name => (header ?? []).indexOf(name));
  if (places.includes(-1)) throw new Error(`expected a header with the columns ${COLUMNS.join(',')}`);
  return lines.map((fields, i) => {
    const entry = Object.fromEntries(COLUMNS.map((name, n) => [name, fields[places[n]] ?? '']));
    entry.new_label = entry.decision === 'relabel' ? entry.new_label.trim() : '';
    if (!DECISIONS.includes(entry.decision) || !entry.sha256 || (entry.decision === 'relabel' && !entry.new_label))
      throw new Error(`row ${i + 1}: expected keep, relabel with a new_label, or no-class`);
    return entry;
  });
}
"""

_STORE = r"""
const decisions = new Map();
const given = new Map(data.decisions.map(fields => {
  const entry = Object.fromEntries(COLUMNS.map((name, n) => [name, fields[n]]));
  return [keyOf(entry), entry];
}));
const past = [];
let storage = null, unsaved = false;

function openStorage() {
  for (const [key, entry] of given) decisions.set(key, entry);
  try {
    storage = window.localStorage;
    storage.setItem(PREFIX, '');
    storage.removeItem(PREFIX);
    for (let i = 0; i < storage.length; i++) if (storage.key(i).startsWith(PREFIX)) recall(storage.key(i));
  } catch {
    storage = null;
    warnOfStorage();
  }
}
function recall(name) {
  let entry;
  try { entry = JSON.parse(storage.getItem(name)); } catch { return; }
  const key = name.slice(PREFIX.length);
  if (entry === null) decisions.delete(key);
  else if (keyOf(entry) === key && DECISIONS.includes(entry.decision)) decisions.set(key, entry);
}
function store(key, entry) {
  unsaved = true;
  if (storage === null) return;
  try {
    if (entry || given.has(key)) storage.setItem(PREFIX + key, JSON.stringify(entry));
    else storage.removeItem(PREFIX + key);
  } catch {
    storage = null;
    warnOfStorage();
  }
}
function warnOfStorage() {
  get('warning').textContent = 'This browser does not keep what is decided on this page: download the decisions'
    + ' before you close it, and load them when you open it again.';
  get('warning').hidden = false;
}
function apply(changes) {
  for (const [key, entry] of changes) {
    if (entry) decisions.set(key, entry); else decisions.delete(key);
    store(key, entry);
    for (const row of rowsByKey.get(key) ?? []) if (row.node) drawDecision(row);
  }
  drawProgress();
}
function decide(changes) {
  past.push(changes.map(([key]) => [key, decisions.get(key) ?? null]));
  apply(changes);
}
function undo() {
  const changes = past.pop();
  if (!changes) { say('Nothing to undo'); return; }
  apply(changes);
  say(changes.length === 1 ? 'Undone' : `${count(changes.length, 'decision')} undone`);
  const row = changes.length === 1 ? (rowsByKey.get(changes[0][0]) ?? []).find(row => shown.includes(row)) : null;
  if (row) goTo(row);
  drawZoom();
}
const entryFor = (row, decision, newLabel) => {
  if (decision === 'relabel' && newLabel === row.label) [decision, newLabel] = ['keep', ''];
  return {path: row.path, sha256: row.sha256, label: row.label, decision, new_label: newLabel};
};
const wordsFor = (decision, newLabel) =>
  decision === 'relabel' ? `Relabel to ${shownText(newLabel)}` : decision === 'keep' ? 'Keep label' : 'No class';

function download() {
  const table = rows.filter(row => decisions.has(row.key)).map(row => ({...decisions.get(row.key), path: row.path}));
  for (const [key, entry] of decisions) if (!rowsByKey.has(key)) table.push(entry);
  const text = writeCsv([COLUMNS, ...table.map(entry => COLUMNS.map(name => entry[name]))]);
  const address = URL.createObjectURL(new Blob([text], {type: 'text/csv;charset=utf-8'}));
  make('a', {href: address, download: 'decisions.csv'}).click();
  setTimeout(() => URL.revokeObjectURL(address), 60000);
  unsaved = false;
  say(`${count(table.length, 'decision')} written to decisions.csv`);
}
async function load(file) {
  if (!file) return;
  try {
    const found = new Map(entriesOf(await file.text()).map(entry => [keyOf(entry), entry]));
    decide([...found]);
    const here = [...found.keys()].filter(key => rowsByKey.has(key)).length;
    say(`${count(found.size, 'decision')} loaded, ${amount(here)} of them for images on this page`);
  } catch (error) {
    say(`${shownText(file.name)} was not loaded: ${error.message}`);
  }
}
"""

_WIRE = r"""
const KEYS = {
  j: () => step(1), k: () => step(-1), ArrowDown: () => step(1), ArrowUp: () => step(-1), u: undo,
  a: () => accept(current, true), Enter: () => accept(current, true), l: () => choose(current, 'keep', '', true),
  r: () => askLabel(current, true), x: () => choose(current, 'no-class', '', true),
  z: () => { if (zoomed) get('zoom').close(); else openZoom(current, current); },
};
for (const n of [0, 1, 2]) KEYS[n + 1] = () => {
  if (current.suggestions[n]) choose(current, 'relabel', current.suggestions[n][0], true);
};
document.addEventListener('keydown', event => {
  const target = event.target, key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  if (target.matches('input, select')) {
    if ((key === 'Escape' && !target.closest('dialog')) || (key === 'Enter' && target.id === 'text')) {
      event.preventDefault();
      target.blur();
      if (current) goTo(current);
    }
    return;
  }
  const open = [...document.querySelectorAll('dialog[open]')].pop();
  if (open && !(open.id === 'zoom' && zoomed)) return;
  if (key === 'Enter' && target.closest('button, summary')) return;
  if (!open && key === '/') { event.preventDefault(); get('text').select(); }
  else if (!open && key === '?') get('help').showModal();
  else if (Object.hasOwn(KEYS, key) && (current || key === 'u')) { event.preventDefault(); KEYS[key](); }
});
window.addEventListener('beforeunload', event => { if (storage === null && unsaved) event.preventDefault(); });

const kinds = ['suspects', 'relabel', 'no-class', 'duplicate', 'keep', 'all'];
get('verdicts').append(...kinds.map(verdict => make('button', {type: 'button', value: verdict,
  onclick: () => change({verdict})}, ({suspects: 'Suspects', all: 'All', ...NAMES})[verdict] + ' ',
make('span', {}, amount(rows.filter(row => ofVerdict(row, verdict)).length)))));
const perLabel = new Map();
for (const row of rows) perLabel.set(row.label, (perLabel.get(row.label) ?? 0) + 1);
get('label').append(...[...perLabel.keys()].sort().map(label =>
  make('option', {value: label}, `${shownText(label)} (${amount(perLabel.get(label))})`)));
get('labels').append(...data.labels.map(label => make('option', {value: label})));
get('text').oninput = () => change({text: get('text').value.trim().toLowerCase()});
get('state').onchange = () => change({state: get('state').value});
get('label').onchange = () => change({label: get('label').value, pair: null});
get('sort').onchange = () => change({sort: get('sort').value, descending: get('sort').value === 'wrong'});
get('direction').onclick = () => change({descending: !view.descending});
get('clear').onclick = () => { get('text').value = ''; change(ANY); };
get('accept-all').onclick = acceptAll;
get('undo').onclick = undo;
get('download').onclick = download;
get('load').onclick = () => get('file').click();
get('file').onchange = () => { load(get('file').files[0]).then(() => { get('file').value = ''; }); };
get('help-open').onclick = () => get('help').showModal();
get('more').onclick = drawMore;
get('zoom').onclose = () => {  // the browser has given the focus back to the image where the looking began
  const row = zoomed ?? current;
  zoomed = null;
  get('stage').replaceChildren();
  if (row) goTo(row);
};
for (const dialog of document.querySelectorAll('dialog'))
  dialog.onclick = event => { if (event.target === dialog || 'close' in event.target.dataset) dialog.close(); };
new ResizeObserver(() => document.documentElement.style.setProperty('--bar', `${get('tools').offsetHeight}px`))
  .observe(get('tools'));
new IntersectionObserver(seen => { if (seen.some(entry => entry.isIntersecting)) drawMore(); }, {rootMargin: '1200px'})
  .observe(get('more'));
if (matchMedia('(max-width: 1240px)').matches)
  for (const panel of document.querySelectorAll('.side details')) panel.open = false;
openStorage();
drawHeader();
drawPanels();
change({});
drawProgress();
"""

SCRIPT = _DATA + _STORE + DRAW + VIEW + _WIRE
"""One script: the data, the decisions and where they are kept, the drawing, what is shown, the keys and buttons."""
