// Page of an audit: label issues are filtered, sorted and decided; the decisions become decisions.csv.

const COLUMNS = ['path', 'sha256', 'label', 'decision', 'new_label'];

export {}; // a module of its own

/** @type {(selector: string) => any} */
const find = selector => document.querySelector(selector);
const data = JSON.parse(find('#data').textContent);
const keyOf = ({sha256, label}) => `${sha256}/${label}`;
const items = data.items.map((item, row) => ({
  ...item,
  row,
  key: keyOf(item),
  card: document.getElementById(`item-${row}`),
  text: [item.path, item.label, item.suggested ?? ''].join('\n').toLowerCase(),
}));
const filter = {verdict: items.every(item => item.is_undecided) ? 'all' : 'issues', state: 'open', pair: ['', '']};
const list = find('.items');
const {compare} = new Intl.Collator('en', {numeric: true});

// What was decided: kept by this browser, undone in steps.

const PREFIX = `retrieval-audit/${data.key}/`;
const named = fields => Object.fromEntries(COLUMNS.map((name, place) => [name, fields[place]]));
const given = new Map(data.decisions.map(named).map(entry => [keyOf(entry), entry]));
const decisions = new Map(given);
/** @type {any[]} */
const steps = [];
/** @type {Storage | null} */
let storage = null;
let unsaved = false;

try {
  storage = window.localStorage;
  storage.setItem(PREFIX, '');
  storage.removeItem(PREFIX);
  for (const name of Object.keys(storage).filter(one => one.startsWith(PREFIX))) recall(storage, name);
} catch {
  giveUp();
}

function giveUp() {
  storage = null;
  find('.warning').hidden = false;
}

function recall(from, name) {
  try {
    const entry = JSON.parse(from.getItem(name));
    if (entry === null) decisions.delete(name.slice(PREFIX.length));
    else if (PREFIX + keyOf(entry) === name) decisions.set(keyOf(entry), checkEntry(entry, 0));
  } catch {
    from.removeItem(name); // of something else
  }
}

function checkEntry(entry, row) {
  const changed = entry.decision === 'change' ? entry.new_label.trim() : '';
  if (!data.known_decisions.includes(entry.decision) || !entry.sha256 || (entry.decision === 'change' && !changed)) {
    throw new Error(`row ${row + 1}: expected keep, change with a new_label, set_aside or drop`);
  }
  return {...entry, new_label: changed};
}

/** Take [key, entry] pairs as one step; an entry of null takes a decision back. */
function take(changes, {isUndo = false} = {}) {
  if (!isUndo) steps.push(changes.map(([key]) => [key, decisions.get(key) ?? null]));
  for (const [key, entry] of changes) {
    if (entry) decisions.set(key, entry);
    else decisions.delete(key);
    unsaved = true;
    try {
      if (entry || given.has(key)) storage?.setItem(PREFIX + key, JSON.stringify(entry));
      else storage?.removeItem(PREFIX + key);
    } catch {
      giveUp();
    }
  }
  draw();
}

function decide(item, decision, label = '') {
  const now = decisions.get(item.key);
  const isBack = now && now.decision === decision && now.new_label === label;
  const {path, sha256, label: old} = item;
  take([[item.key, isBack ? null : {path, sha256, label: old, decision, new_label: label}]]);
  if (!isBack) goOn(item);
}

function undo() {
  const changes = steps.pop();
  if (!changes) return;
  take(changes, {isUndo: true});
  focus(items.find(item => item.key === changes[0][0]));
}

window.addEventListener('beforeunload', event => {
  if (storage === null && unsaved) event.preventDefault();
});

// The list: which items pass the filters, in which order, and what is decided about each.

const ofVerdict = (item, verdict) =>
  verdict === 'all' || (verdict === 'issues' ? !item.is_undecided : item.verdict === verdict);

/** The items that pass all filters but that of what is decided. */
function choose() {
  const text = find('#text').value.trim().toLowerCase();
  const kind = find('#kind').value;
  const [label, suggested] = filter.pair;
  return items.filter(
    item =>
      ofVerdict(item, filter.verdict)
      && (!text || item.text.includes(text))
      && (!label || item.label === label)
      && (!suggested || item.suggested === suggested)
      && (!kind || item.kind === kind),
  );
}

/** Show the items that pass; those that are decided from now on stay until the next call. */
function refill() {
  const [name, sign] = find('#sort').value.startsWith('-')
    ? [find('#sort').value.slice(1), -1]
    : [find('#sort').value, 1];
  const differ = (a, b) => (typeof a === 'number' ? a - b : compare(a ?? '', b ?? ''));
  const shown = choose()
    .filter(({key}) => filter.state === 'all' || decisions.has(key) === (filter.state === 'decided'))
    .sort((a, b) => sign * differ(a[name], b[name]) || a.row - b.row);
  list.replaceChildren(...shown.map(item => item.card));
  find('.nothing').hidden = shown.length > 0;
  const [label, suggested] = filter.pair;
  const pair = label && `, ${data.shown[label] ?? label}${suggested && ` → ${data.shown[suggested] ?? suggested}`}`;
  find('#found').textContent = `${shown.length} image${shown.length === 1 ? '' : 's'}${pair}`;
  draw();
}

function draw() {
  const chosen = choose();
  const decided = chosen.filter(({key}) => decisions.has(key)).length;
  find('#done').textContent = `${decided} of ${chosen.length} decided`;
  find('#undo').disabled = !steps.length;
  for (const group of ['verdict', 'state']) {
    for (const node of document.querySelectorAll(`[data-${group}]`)) {
      node.setAttribute('aria-pressed', String(node.getAttribute(`data-${group}`) === filter[group]));
    }
  }
  for (const node of document.querySelectorAll('aside [data-pair]')) {
    const pair = data.pairs[Number(node.getAttribute('data-pair'))];
    node.setAttribute('aria-pressed', String(pair.join('\n') === filter.pair.join('\n')));
  }
  for (const item of items) {
    const now = decisions.get(item.key);
    let isListed = false;
    for (const node of item.card.querySelectorAll('[data-decision]')) {
      const is = now && matches(item, node, now);
      node.setAttribute('aria-pressed', String(Boolean(is)));
      isListed ||= is;
    }
    const other = item.card.querySelector('.other');
    other.hidden = !now || isListed;
    other.textContent = now && !isListed ? `→ ${now.new_label}` : '';
  }
  find('#accepted').textContent = describeAccepted();
  find('#accept').disabled = !accepted().length;
}

const labelOf = (item, node) =>
  node.dataset.decision === 'change' ? item.suggestions[Number(node.dataset.place)] : '';
const matches = (item, node, {decision, new_label: label}) =>
  decision === node.dataset.decision && label === labelOf(item, node);

function accepted() {
  const least = Number(find('#least').value) / 100;
  return choose().filter(item => item.p_error >= least && !item.is_undecided && !decisions.has(item.key));
}

/** "17 labels change (about 14 of the new ones are right), 30 images are set aside, 5 are dropped". */
function describeAccepted() {
  const of = verdict => accepted().filter(item => item.verdict === verdict);
  const [changed, aside, dropped] = ['change', 'set_aside', 'drop'].map(of);
  const right = Math.round(changed.reduce((total, item) => total + item.p_suggested, 0));
  const are = ({length}) => (length === 1 ? 'is' : 'are');
  return (
    `${changed.length} label${changed.length === 1 ? ' changes' : 's change'}`
    + `${changed.length ? ` (about ${right} of the new ones are right)` : ''}, `
    + `${aside.length} image${aside.length === 1 ? '' : 's'} ${are(aside)} set aside, ${dropped.length} ${are(dropped)} dropped`
  );
}

// Which item the keys are about, and the images, which are set when they come into sight.

const cards = () => /** @type {HTMLElement[]} */ ([...list.children]);
const current = () => {
  const card = cards().find(one => one.contains(document.activeElement)) ?? cards()[0];
  return items.find(item => item.card === card);
};

function focus(item) {
  if (!item?.card.isConnected) return;
  item.card.focus({preventScroll: true});
  item.card.scrollIntoView({block: 'nearest'});
}

function step(by) {
  const all = cards();
  const here = all.findIndex(card => card.contains(document.activeElement));
  const next = all[Math.min(all.length - 1, Math.max(0, here < 0 ? 0 : here + by))];
  focus(items.find(item => item.card === next));
}

function goOn(item) {
  const rest = cards().slice(cards().indexOf(item.card) + 1);
  const next = rest.find(card => !decisions.has(items[Number(card.id.slice(5))].key));
  focus(next ? items[Number(next.id.slice(5))] : item);
}

function acceptVerdict(item) {
  // `keep` is the verdict on a rare class or a near-duplicate that stays, even where the label is probably wrong.
  const isOpen = item.is_undecided && item.p_error >= 0.5;
  if (isOpen) tell('Look: no recommendation. L keeps the label, D sets the image aside, X drops it.');
  else decide(item, item.verdict, item.new_label ?? '');
}

const seen = new IntersectionObserver(
  entries => {
    for (const {target, isIntersecting} of entries) {
      if (!isIntersecting) continue;
      seen.unobserve(target);
      for (const image of target.querySelectorAll('img')) {
        const number = Number(image.getAttribute('data-picture'));
        image.setAttribute('src', `data:image/webp;base64,${data.pictures[number]}`);
      }
    }
  },
  {rootMargin: '600px'},
);
for (const {card} of items) seen.observe(card);

// Buttons, fields and keys.

list.addEventListener('click', event => {
  const node = event.target.closest('[data-decision]');
  const item = node && items.find(({card}) => card.contains(node));
  if (item) decide(item, node.dataset.decision, labelOf(item, node));
});
list.addEventListener('change', event => {
  const item = items.find(({card}) => card.contains(event.target));
  const label = event.target.value.trim();
  event.target.value = '';
  if (item && label) decide(item, label === item.label ? 'keep' : 'change', label === item.label ? '' : label);
});
document.addEventListener('click', event => {
  const node =
    event.target instanceof Element ? event.target.closest('[data-verdict], [data-state], [data-pair]') : null;
  if (!(node instanceof HTMLElement)) return;
  const {verdict, state, pair} = node.dataset;
  if (verdict) filter.verdict = verdict;
  if (state) filter.state = state;
  if (pair) filter.pair = node.getAttribute('aria-pressed') === 'true' ? ['', ''] : data.pairs[Number(pair)];
  refill();
});
find('#text').addEventListener('input', refill);
find('#kind').addEventListener('change', refill);
find('#sort').addEventListener('change', refill);
find('#least').addEventListener('input', draw);
find('#undo').addEventListener('click', undo);
find('#load').addEventListener('click', () => find('#file').click());
find('#file').addEventListener('change', load);
find('#download').addEventListener('click', download);
find('#accept').addEventListener('click', () => {
  find('#effect').textContent = `${describeAccepted()}. Undo takes all of it back.`;
  find('dialog').showModal();
});
find('dialog').addEventListener('close', () => {
  if (find('dialog').returnValue !== 'accept') return;
  take(
    accepted().map(({key, path, sha256, label, verdict, new_label: other}) => [
      key,
      {path, sha256, label, decision: verdict, new_label: other ?? ''},
    ]),
  );
});

document.addEventListener('keydown', event => {
  const isTyping = event.target instanceof Element && event.target.matches('input, select');
  if (event.ctrlKey || event.metaKey || event.altKey || find('dialog').open) return;
  if (isTyping) {
    if (event.key === 'Escape' && document.activeElement instanceof HTMLElement) document.activeElement.blur();
    return;
  }
  const item = current();
  const run = {
    j: () => step(1),
    ArrowDown: () => step(1),
    k: () => step(-1),
    ArrowUp: () => step(-1),
    a: () => item && acceptVerdict(item),
    l: () => item && decide(item, 'keep'),
    d: () => item && decide(item, 'set_aside'),
    x: () => item && decide(item, 'drop'),
    r: () => item?.card.querySelector('input').focus(),
    u: undo,
    '/': () => find('#text').select(),
    1: () => suggest(item, 0),
    2: () => suggest(item, 1),
    3: () => suggest(item, 2),
  }[event.key];
  if (!run) return;
  event.preventDefault();
  run();
});

function suggest(item, place) {
  const label = item?.suggestions[place];
  if (!label) return;
  if (label === item.label) decide(item, 'keep');
  else decide(item, 'change', label);
}

/** @type {number | undefined} */
let hiding;

function tell(text, isBad = false) {
  const toast = find('.toast');
  toast.textContent = text;
  toast.classList.toggle('bad', isBad);
  toast.hidden = false;
  clearTimeout(hiding);
  hiding = setTimeout(() => (toast.hidden = true), 6000);
}

// decisions.csv.

function download() {
  const here = new Set(items.map(({key}) => key));
  const ours = items.filter(({key}) => decisions.has(key)).map(({key, path}) => ({...decisions.get(key), path}));
  const entries = [...ours, ...[...decisions].filter(([key]) => !here.has(key)).map(([, entry]) => entry)];
  const table = [COLUMNS, ...entries.map(entry => COLUMNS.map(name => entry[name]))];
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob(table.map(writeLine), {type: 'text/csv;charset=utf-8'}));
  link.download = 'decisions.csv';
  link.click();
  URL.revokeObjectURL(link.href);
  unsaved = false;
  tell(`${entries.length} decision${entries.length === 1 ? '' : 's'} written to decisions.csv`);
}

async function load() {
  const [file] = find('#file').files;
  if (!file) return;
  try {
    const [header, ...lines] = readCsv(await file.text());
    const places = COLUMNS.map(name => (header ?? []).indexOf(name));
    if (places.includes(-1)) throw new Error(`expected a header with the columns ${COLUMNS.join(',')}`);
    const entries = lines.map((fields, row) => checkEntry(named(places.map(place => fields[place] ?? '')), row));
    take([...new Map(entries.map(entry => [keyOf(entry), entry]))]);
    refill();
    tell(`${entries.length} decision${entries.length === 1 ? '' : 's'} loaded`);
  } catch (error) {
    tell(`${file.name} was not loaded: ${error.message}`, true);
  }
  find('#file').value = '';
}

function writeLine(fields) {
  return `${fields.map(field => (/[",\r\n]/.test(field) ? `"${field.replaceAll('"', '""')}"` : field)).join(',')}\r\n`;
}

function readCsv(text) {
  /** @type {string[][]} */
  const table = [];
  /** @type {string[]} */
  let fields = [];
  const pattern = /(?:"((?:[^"]|"")*)"|([^,"\r\n]*))(,|\r\n|\n|\r|$)/gy;
  pattern.lastIndex = text.charCodeAt(0) === 0xfeff ? 1 : 0;
  while (pattern.lastIndex < text.length) {
    const found = pattern.exec(text);
    if (!found) throw new Error('a quote stands where none can');
    const [, quoted, plain, end] = found;
    fields.push(quoted?.replaceAll('""', '"') ?? plain);
    if (end === ',' && pattern.lastIndex < text.length) continue;
    if (end === ',') fields.push('');
    if (fields.length > 1 || fields[0] !== '') table.push(fields);
    fields = [];
  }
  return table;
}

refill();
