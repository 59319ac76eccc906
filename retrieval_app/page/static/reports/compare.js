// The page of a comparison: two candidates side by side on the queries where they differ.

export {}; // a module of its own

/** @type {(selector: string) => any} */
const find = selector => document.querySelector(selector);
const data = JSON.parse(find('#data').textContent);
const WORDS = {first: 'A right, B wrong', second: 'B right, A wrong', wrong: 'Both wrong'};
const LISTED = 8; // classes
const now = {a: 0, b: 1, filter: 'second', label: ''};
const {candidates} = data;
const number = value => value.toLocaleString('en');
const queriesOf = value => `${number(value)} quer${value === 1 ? 'y' : 'ies'}`;

/**
 * An element with text and other nodes in it.
 * @param {string} tag
 * @param {any} attributes
 * @param {any[]} inside
 */
function make(tag, {className = '', ...attributes} = {}, ...inside) {
  const node = document.createElement(tag);
  node.className = className;
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...inside.filter(one => one !== null));
  return node;
}

/** Comparison of two candidates, in either order of the data. */
function pairOf(a, b) {
  const pair = data.pairs.find(({first, second}) => first === Math.min(a, b) && second === Math.max(a, b));
  if (a < b) return pair;
  const turn = ({first, second, ...more}) => ({first: second, second: first, ...more});
  return {...pair, words: pair.words_back, counts: turn(pair.counts), shown: turn(pair.shown)};
}

const labelOf = query => data.photos[data.queries[query].photo].label;

function drawPreview(photo, alt) {
  const {problem, picture} = data.photos[photo];
  if (problem) return make('span', {className: 'picture'}, `No image: ${problem}`);
  return make(
    'span',
    {className: 'picture'},
    make('img', {alt, src: `data:image/webp;base64,${picture}`, loading: 'lazy', decoding: 'async'}),
  );
}

function drawRanking(letter, candidate, {hits, photo}) {
  const {label} = data.photos[photo];
  const shots = hits[candidate].map(([found, score], place) => {
    const is = data.photos[found].label === label ? 'right' : 'wrong';
    const name = data.photos[found].name ?? 'no label';
    return make(
      'li',
      {className: `hit ${is}`, title: `${data.photos[found].path}, ${score.toFixed(3)}`},
      drawPreview(found, `${place + 1}: ${is}, ${name}`),
      make('span', {className: 'small clip name'}, name),
    );
  });
  const {name} = candidates[candidate];
  return make(
    'section',
    {'aria-label': `What ${letter}, ${name}, finds`},
    make('h3', {}, make('span', {className: 'letter'}, letter), ` ${name}`),
    make('ol', {className: 'shots hits'}, ...shots),
  );
}

function drawQuery(query) {
  const {photo} = data.queries[query];
  const {path, name} = data.photos[photo];
  return make(
    'li',
    {className: 'panel item query', tabindex: '-1', 'aria-label': `${name}: ${path}`},
    make(
      'div',
      {className: 'asked'},
      drawPreview(photo, `The query, ${name}`),
      make('b', {className: 'clip', title: name}, name),
      make('span', {className: 'soft small clip', title: path}, path),
    ),
    make('div', {}, drawRanking('A', now.a, data.queries[query]), drawRanking('B', now.b, data.queries[query])),
  );
}

function drawClasses() {
  const classes = data.classes
    .map(([label, name, queries, right]) => ({label, name, queries, a: right[now.a], b: right[now.b]}))
    .map(one => ({...one, gain: one.b - one.a}))
    .sort((one, other) => other.gain - one.gain || other.queries - one.queries);
  const list = (title, some) => [
    make('h3', {}, `${title} in ${some.length} class${some.length === 1 ? '' : 'es'}`),
    make('ul', {}, ...some.slice(0, LISTED).map(drawClass)),
  ];
  find('#classes').replaceChildren(
    ...list(
      'B gains',
      classes.filter(({gain}) => gain > 0),
    ),
    ...list('B loses', classes.filter(({gain}) => gain < 0).reverse()),
  );
}

function drawClass({label, name, queries, a, b, gain}) {
  const node = make(
    'button',
    {type: 'button', title: `${name}: ${a} right by A, ${b} by B, of ${queriesOf(queries)}`},
    make('span', {className: 'grow clip'}, name),
    make('span', {className: 'soft figures'}, `${a} → ${b} of ${queries}`),
    make('b', {className: 'figures'}, gain > 0 ? `+${gain}` : `−${-gain}`),
  );
  node.setAttribute('aria-pressed', String(label === now.label));
  node.addEventListener('click', () => choose({label: label === now.label ? '' : label}));
  return make('li', {}, node);
}

function draw() {
  const pair = pairOf(now.a, now.b);
  find('#a').value = String(now.a);
  find('#b').value = String(now.b);
  find('#label').value = now.label;
  for (const node of document.querySelectorAll('[data-filter]')) {
    const name = node.getAttribute('data-filter') ?? '';
    node.setAttribute('aria-pressed', String(name === now.filter));
    node.replaceChildren(`${WORDS[name]} `, make('span', {className: 'tally'}, number(pair.counts[name])));
  }
  const {counts, words} = pair;
  find('#summary').replaceChildren(
    make('b', {}, `B, ${candidates[now.b].name}, alone is right on ${queriesOf(counts.second)}`),
    `, A, ${candidates[now.a].name}, alone on ${number(counts.first)}; both are right on ${number(counts.right)}, `
      + `none on ${number(counts.wrong)}. Recall@1 of B less that of A: ${words}.`,
  );
  drawClasses();
  const queries = pair.shown[now.filter].filter(query => !now.label || labelOf(query) === now.label);
  const total = now.label ? queries.length : counts[now.filter];
  find('#found').textContent = queries.length
    ? `${queries.length} of ${queriesOf(total)}${queries.length < total ? ', drawn at random' : ''}: ${WORDS[now.filter]}`
    : `None of ${queriesOf(total)} is among those drawn for this page; queries.csv has all.`;
  find('.items').replaceChildren(...queries.map(drawQuery));
}

function choose(change) {
  Object.assign(now, change);
  draw();
}

/** Let A and B change places; the same queries stay. */
function swap() {
  const filter = {first: 'second', second: 'first'}[now.filter] ?? now.filter;
  choose({a: now.b, b: now.a, filter});
}

function step(by) {
  const cards = /** @type {HTMLElement[]} */ ([...document.querySelectorAll('.query')]);
  const here = cards.findIndex(card => card.contains(document.activeElement));
  const next = cards[Math.min(cards.length - 1, Math.max(0, here < 0 ? 0 : here + by))];
  next?.focus({preventScroll: true});
  next?.scrollIntoView({block: 'nearest'});
}

for (const which of ['a', 'b']) {
  find(`#${which}`).addEventListener('change', () => {
    const place = Number(find(`#${which}`).value);
    if (place === (which === 'a' ? now.b : now.a)) swap();
    else choose({[which]: place});
  });
}
for (const node of document.querySelectorAll('[data-filter]')) {
  node.addEventListener('click', () => choose({filter: node.getAttribute('data-filter')}));
}
for (const [value, name] of data.classes) find('#label').append(make('option', {value}, name));
find('#label').addEventListener('change', () => choose({label: find('#label').value}));
find('#swap').addEventListener('click', swap);
document.addEventListener('keydown', event => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target instanceof Element && event.target.matches('select')) return;
  const run = {
    j: () => step(1),
    k: () => step(-1),
    x: swap,
    1: () => choose({filter: 'first'}),
    2: () => choose({filter: 'second'}),
    3: () => choose({filter: 'wrong'}),
    Escape: () => choose({label: ''}),
  }[event.key];
  if (!run) return;
  event.preventDefault();
  run();
});
draw();
