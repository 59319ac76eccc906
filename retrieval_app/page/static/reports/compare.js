// The page of a comparison: its table, and two candidates side by side on the queries where they differ.

import {button, count, icon, make, refill, shownText} from '../core/dom.js';
import {registerKeys, showKeys} from '../core/keys.js';
import {drawClasses} from './compare_classes.js';
import {data, FILTERS, pairOf} from './compare_data.js';
import {drawQueries} from './compare_queries.js';
import {drawCaveats, drawTable, judge, shownDifference} from './compare_table.js';
import {onState, readState, writeState} from './local_state.js';

const WORDS = {first: 'A right, B wrong', second: 'B right, A wrong', wrong: 'Both wrong'};
const usual = {a: 0, b: 1, filter: 'second', label: null};

/** What is shown: candidates `a` and `b`, which queries, and of which class. */
const chosen = () => ({...usual, ...readState().extra});
const choose = change => writeState({extra: {...chosen(), ...change}});

const {candidates} = data;
const nameOf = place => shownText(candidates[place].name);
const summary = make('p.summary', {role: 'status'});
const side = make('aside.panel.classes', {'aria-label': 'By class'});
const list = make('main');
const filters = FILTERS.map(name => button(WORDS[name], {value: name}, () => choose({filter: name})));
const labels = make('select.select', {
  'aria-label': 'Class',
  onchange: () => choose({label: labels.value.slice(1) || null}),
});
const [selectA, selectB] = ['a', 'b'].map(which => {
  const select = make('select.select', {'aria-label': `Candidate ${which.toUpperCase()}`});
  select.append(...candidates.map((_, place) => make('option', {value: place}, nameOf(place))));
  select.addEventListener('change', () => take(which, Number(select.value)));
  return select;
});

/** Choose a candidate; where it is the other one already, both change places. */
function take(which, place) {
  const {a, b} = chosen();
  const other = which === 'a' ? b : a;
  if (place === other) swap();
  else choose({[which]: place});
}

/** Let A and B change places; the same queries stay. */
function swap() {
  const {a, b, filter} = chosen();
  choose({a: b, b: a, filter: {first: 'second', second: 'first'}[filter] ?? filter});
}

function drawHeader() {
  const fact = (number, noun, nouns) => make('li', count(number, noun, nouns));
  return make('header.compare-top', [
    make('h1', icon('chart', 22), `Comparison · ${shownText(data.source)}`),
    make('ul.soft.small', [
      fact(data.images, 'image'),
      fact(data.classes.length, 'class', 'classes'),
      fact(data.asked, 'query', 'queries'),
      fact(candidates.length, 'candidate'),
      data.skipped > 0 && make('li', `${count(data.skipped, 'file')} skipped`),
    ]),
  ]);
}

function drawTools() {
  return make('div.row.compare-tools', [
    make('label.row.nowrap', make('span.letter', 'A'), selectA),
    button('Let A and B change places', {icon: 'shuffle', iconOnly: true}, swap),
    make('label.row.nowrap', make('span.letter', 'B'), selectB),
    make('div', {class: 'segments', role: 'group', 'aria-label': 'Queries'}, filters),
    labels,
    button('Keys', {icon: 'keyboard', iconOnly: true, class: 'push'}, showKeys),
  ]);
}

/** Which class a query has. */
const labelOf = number => data.photos[data.queries[number].photo][1];

function update() {
  const now = chosen();
  const pair = pairOf(now.a, now.b);
  selectA.value = String(now.a);
  selectB.value = String(now.b);
  for (const node of filters) {
    const text = WORDS[node.value];
    node.setAttribute('aria-pressed', String(node.value === now.filter));
    refill(node, text, make('span.tally', pair.counts[node.value].toLocaleString('en')));
  }
  drawLabels(pair.shown[now.filter], now.label);
  refill(summary, ...sayWho(now, pair));
  drawClasses(side, now, label => choose({label}));
  const queries = pair.shown[now.filter].filter(number => now.label === null || labelOf(number) === now.label);
  const total = now.label === null ? pair.counts[now.filter] : queries.length;
  drawQueries(list, queries, {...now, total});
}

function drawLabels(queries, label) {
  const counts = new Map();
  for (const number of queries) counts.set(labelOf(number), (counts.get(labelOf(number)) ?? 0) + 1);
  if (label !== null && !counts.has(label)) counts.set(label, 0);
  const names = [...counts.keys()].sort((one, other) => one.localeCompare(other));
  // A letter before each name, so that the empty value is none's.
  refill(
    labels,
    make('option', {value: ''}, 'All classes'),
    names.map(name => make('option', {value: `=${name}`}, `${shownText(name)} (${counts.get(name)})`)),
  );
  labels.value = label === null ? '' : `=${label}`;
}

function sayWho({a, b}, {counts, recall, enough}) {
  const {words} = judge({recall, enough});
  const both = `both are right on ${counts.right.toLocaleString('en')}, none on ${counts.wrong.toLocaleString('en')}`;
  return [
    make('b', `B, ${nameOf(b)}, alone is right on ${count(counts.second, 'query', 'queries')}`),
    `, A, ${nameOf(a)}, alone on ${counts.first.toLocaleString('en')}; ${both}. `,
    `Recall@1 of B is ${words === 'not clear' ? 'not clearly another' : words}: ${shownDifference(recall)}.`,
  ];
}

/** Go to the next query, or to the one before. */
function step(by) {
  const cards = /** @type {HTMLElement[]} */ ([...list.querySelectorAll('.query')]);
  if (!cards.length) return;
  const here = cards.findIndex(card => card.contains(document.activeElement));
  const next = cards[Math.min(cards.length - 1, Math.max(0, here < 0 ? 0 : here + by))];
  next.focus({preventScroll: true});
  next.scrollIntoView({block: 'nearest'});
}

/** Go on to the next candidate but the other one. */
function turn(which) {
  const {a, b} = chosen();
  const other = which === 'a' ? b : a;
  let place = ((which === 'a' ? a : b) + 1) % candidates.length;
  if (place === other) place = (place + 1) % candidates.length;
  choose({[which]: place});
}

registerKeys('labels', 'Queries', [
  {keys: ['j', 'ArrowDown'], does: 'Next query', run: () => step(1)},
  {keys: ['k', 'ArrowUp'], does: 'Query before', run: () => step(-1)},
  ...FILTERS.map((filter, n) => ({keys: [String(n + 1)], does: WORDS[filter], run: () => choose({filter})})),
]);
registerKeys('labels', 'Candidates', [
  {keys: ['a'], does: 'Another A', run: () => turn('a')},
  {keys: ['b'], does: 'Another B', run: () => turn('b')},
  {keys: ['x'], does: 'A and B change places', run: swap},
  {keys: ['Escape'], does: 'All classes', run: () => choose({label: null})},
]);
onState(update);
refill(document.body, [
  make('div.app.compare', [
    drawHeader(),
    drawTable(),
    drawCaveats(),
    drawTools(),
    summary,
    make('div.compare-layout', side, list),
  ]),
]);
update();
