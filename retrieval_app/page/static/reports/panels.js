// Beside the list: the labels by their share of mistakes, and which labels stand in place of which.

import {bar} from '../core/charts.js';
import {count, make, percent, shownName, shownText} from '../core/dom.js';
import {data, items} from './data.js';
import {onState, readState, writeState} from './local_state.js';

const approximate = number => Number(number.toFixed(number < 9.95 ? 1 : 0)).toLocaleString('en');

/** The panels; what is pressed in them filters the list. */
export function drawPanels() {
  const element = make('aside', {class: 'audit-side', 'aria-label': 'Noise'}, [
    drawPanel('Classes', 'estimated share of wrong labels', data.classes.map(drawClass)),
    drawPanel('Confusions', 'given → shown, estimated images', findPairs().map(drawPair)),
  ]);
  const mark = ({extra: {label = '', suggested = ''}}) => {
    for (const node of /** @type {NodeListOf<HTMLButtonElement>} */ (element.querySelectorAll('button'))) {
      node.setAttribute('aria-pressed', String(node.value === JSON.stringify([label, suggested])));
    }
  };
  onState(mark);
  mark(readState());
  return element;
}

function drawPanel(title, about, buttons) {
  const open = !matchMedia('(max-width: 1240px)').matches;
  return make('details', {open, class: 'panel'}, [
    make('summary', make('b', title), make('span.small.soft', about)),
    make('ul', buttons.length ? buttons.map(button => make('li', button)) : make('li.soft', 'None')),
  ]);
}

function drawChoice(label, suggested, title, ...inside) {
  const value = JSON.stringify([label, suggested]);
  return make(
    'button',
    {
      value,
      title,
      onclick: event => {
        const pressed = event.currentTarget.getAttribute('aria-pressed') === 'true';
        writeState({extra: {...readState().extra, label: pressed ? '' : label, suggested: pressed ? '' : suggested}});
      },
    },
    inside,
  );
}

function drawClass([label, number, rate]) {
  const title = `${shownText(label)}: ${count(number, 'image')}, about ${approximate(rate * number)} wrong`;
  return drawChoice(
    label,
    '',
    title,
    make('span.grow', shownName(label)),
    bar(rate, 'bad'),
    make('span.figures', percent(rate)),
  );
}

function drawPair({label, suggested, rate, number, here}) {
  const words = `${shownText(label)} → ${shownText(suggested)}`;
  const estimate = rate === null ? 'no estimate' : `about ${approximate(number)} in all, ${percent(rate)}`;
  return drawChoice(
    label,
    suggested,
    `${words}: ${here.toLocaleString('en')} on this page; ${estimate}`,
    make('span.grow', [shownName(label), ' → ', shownName(suggested)]),
    make('span.figures', rate === null ? '–' : `${approximate(number)} · ${percent(rate)}`),
  );
}

// Those that are estimated, and those that only the page's images show.
function findPairs() {
  const pairs = new Map();
  const find = (label, suggested) => {
    const name = JSON.stringify([label, suggested]);
    if (!pairs.has(name)) pairs.set(name, {label, suggested, rate: null, number: 0, here: 0});
    return pairs.get(name);
  };
  for (const [label, suggested, rate, number] of data.pairs) Object.assign(find(label, suggested), {rate, number});
  for (const {label, suggested} of items) if (suggested) find(label, suggested).here += 1;
  return [...pairs.values()].sort((a, b) => b.number - a.number || b.here - a.here);
}
