// The page of an audit: the label list of a gallery's page over what `retrieval audit` wrote into this file.

import {button, count, debounce, icon, make, percent, refill, shownText} from '../core/dom.js';
import {registerKeys, showKeys} from '../core/keys.js';
import {toast} from '../core/toast.js';
import {start} from '../review/labels.js';
import {data, items} from './data.js';
import {openStorage, readFile} from './decisions.js';
import {countOf} from './local_api.js';
import {onState, readState, writeState} from './local_state.js';
import {drawPanels} from './panels.js';
import {moreFilters} from './surroundings.js';

const VERDICTS = {suspects: 'Suspects', change: 'Change', drop: 'Drop', keep: 'Keep', all: 'All verdicts'};
const SORTS = {
  '-wrong': 'Sort: chance wrong',
  confidence: 'Sort: own-label confidence',
  label: 'Sort: given label',
  suggested: 'Sort: suggested label',
  path: 'Sort: path',
  verdict: 'Sort: verdict',
};
const choose = change => writeState({extra: {...readState().extra, ...change}});

function drawHeader() {
  const fact = (number, words) => make('li', make('b', number), ` ${words}`);
  const shown = items.length < data.total ? 'on this page, the most suspicious' : 'on this page';
  return make('header.audit-top', [
    make('h1', icon('label', 22), `Label audit · ${data.run}`),
    make('ul.soft.small', [
      fact(data.total.toLocaleString('en'), data.total === 1 ? 'image' : 'images'),
      fact(percent(data.noise_rate), `of labels estimated wrong${data.is_lower_bound ? ', a lower bound' : ''}`),
      Object.entries(data.verdicts).map(([verdict, number]) => fact(number.toLocaleString('en'), verdict)),
      fact(items.length.toLocaleString('en'), `of ${data.total.toLocaleString('en')} ${shown}`),
    ]),
  ]);
}

function drawTools() {
  const verdicts = Object.entries(VERDICTS).map(([value, text]) =>
    button(text, {value}, () => choose({verdict: value})),
  );
  for (const node of verdicts) node.append(make('span.tally', countOf(node.value).toLocaleString('en')));
  const search = debounce(words => choose({text: words}), 150);
  const text = make('input', {
    class: 'input',
    type: 'search',
    placeholder: 'Search path or label',
    'aria-label': 'Search path or label',
    oninput: () => search(text.value),
    onkeydown: event => {
      if (!['Enter', 'Escape'].includes(event.key)) return;
      event.preventDefault(); // or Escape would empty it and tell nobody
      text.blur();
    },
  });
  const sort = make('select', {class: 'select', 'aria-label': 'Sort by', onchange: () => choose({sort: sort.value})}, [
    Object.entries(SORTS).map(([value, words]) => make('option', {value}, words)),
  ]);
  const turn = button('Turn the order round', {icon: 'shuffle', iconOnly: true}, () => {
    const now = moreFilters(readState()).sort;
    choose({sort: now.startsWith('-') ? now.slice(1) : `-${now}`});
  });
  const file = make('input', {type: 'file', accept: '.csv,text/csv', hidden: true, onchange: () => load(file)});
  registerKeys('labels', 'Page', [{keys: ['/'], does: 'Search path or label', run: () => text.select()}]);
  const update = state => {
    const now = moreFilters(state);
    for (const node of verdicts) node.setAttribute('aria-pressed', String(node.value === now.verdict));
    sort.value = SORTS[now.sort] ? now.sort : SORTS[`-${now.sort}`] ? `-${now.sort}` : now.sort.slice(1);
    if (document.activeElement !== text) text.value = state.extra.text ?? '';
  };
  onState(update);
  update(readState());
  return make('div.row.audit-tools', [
    make('div', {class: 'segments', role: 'group', 'aria-label': 'Verdict'}, verdicts),
    text,
    sort,
    turn,
    button('Load decisions…', {}, () => file.click()),
    file,
    button('Keys', {icon: 'keyboard', iconOnly: true}, showKeys),
  ]);
}

async function load(field) {
  const [file] = field.files;
  if (!file) return;
  try {
    toast(`${count(readFile(await file.text()), 'decision')} loaded`, {kind: 'good'});
    choose({turn: (readState().extra.turn ?? 0) + 1});
  } catch (error) {
    toast(`${shownText(file.name)} was not loaded: ${error.message}`, {kind: 'bad'});
  }
  field.value = '';
}

const warning = make('p', {class: 'read-only', role: 'alert', hidden: true});
const list = make('main');
openStorage(() => {
  warning.textContent =
    'This browser does not keep what is decided on this page: download the decisions before you close it, and load them when you open it again.';
  warning.hidden = false;
});
refill(document.body, [
  make('div.app.audit', drawHeader(), warning, drawTools(), make('div.audit-layout', drawPanels(), list)),
]);
start(list);
