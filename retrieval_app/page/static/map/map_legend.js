// The legend of the map: labels with their colour and count, to point at, to choose, and to find among many.

import {button, count, make, refill, shownText} from '../core/dom.js';

const COLOURED = 12;
const LISTED = 30;
const GRID = 12;
const NAMELESS = 'without a label';

/**
 * Labels by size: [{name (null: none), place in `labels` or -1, amount, colour: 1..12 or 0 for grey}].
 * Only the largest have a colour of their own, as more cannot be told apart.
 *
 * @param {GalleryMap} map
 */
export function rankLabels({label, labels}) {
  const amounts = new Map();
  for (const place of label) amounts.set(place, (amounts.get(place) ?? 0) + 1);
  let next = 0;
  return [...amounts]
    .sort((a, b) => b[1] - a[1] || a[0] - b[0])
    .map(([place, amount]) => ({
      place,
      amount,
      name: place < 0 ? null : labels[place],
      colour: place >= 0 && next < COLOURED ? (next += 1) : 0,
    }));
}

/** Why some are grey; empty if none is. */
export const greyWords = entries =>
  entries.filter(entry => entry.name !== null && !entry.colour).length > 1 ? ' The smallest share one grey.' : '';

export const nameOf = entry => (entry.name === null ? NAMELESS : shownText(entry.name));

/** Where the names of the coloured labels stand: amid the densest cell of each, on a coarse grid. */
export function placeCaptions(entries, {x, y, label}) {
  const places = new Map(entries.filter(entry => entry.colour).map(entry => [entry.place, new Map()]));
  label.forEach((place, i) => {
    const cells = places.get(place);
    const cell = Math.floor(x[i] * GRID) * 1000 + Math.floor(y[i] * GRID);
    if (!cells) return;
    const [amount, sumX, sumY] = cells.get(cell) ?? [0, 0, 0];
    cells.set(cell, [amount + 1, sumX + x[i], sumY + y[i]]);
  });
  return entries
    .filter(entry => entry.colour)
    .map(entry => {
      const [amount, sumX, sumY] = [...places.get(entry.place).values()].reduce((best, cell) =>
        cell[0] > best[0] ? cell : best,
      );
      return {x: sumX / amount, y: sumY / amount, place: entry.place, text: nameOf(entry).slice(0, 24)};
    });
}

/** Draw it; on: {point(entry | null), choose(entry)}; `mark(chosen)` shows which places are chosen. */
export function drawLegend(entries, on) {
  let all = false;
  let wanted = '';
  let chosen = new Set();
  const list = make('ul.legend-list');
  const more = make('div');
  const field =
    entries.length > LISTED
    && make('input', {
      class: 'input',
      type: 'search',
      placeholder: `Find among ${entries.length} labels`,
      'aria-label': 'Find a label',
      oninput: event => {
        wanted = event.target.value.trim().toLowerCase();
        draw();
      },
    });
  function draw() {
    const found = entries.filter(entry => nameOf(entry).toLowerCase().includes(wanted));
    const listed =
      all || wanted ? found.slice(0, 500) : found.filter((entry, n) => n < LISTED || chosen.has(entry.place));
    refill(list, listed.map(drawEntry), !listed.length && make('li.small.soft', 'No label of that name'));
    refill(more, [
      found.length > listed.length
        && !wanted
        && button(`Show all ${count(entries.length, 'label')}`, {class: 'quiet small'}, () => {
          all = true;
          draw();
        }),
    ]);
  }
  function drawEntry(entry) {
    return make('li', [
      make(
        'button',
        {
          class: 'legend-entry',
          'aria-pressed': String(chosen.has(entry.place)),
          title: nameOf(entry),
          dataset: {place: entry.place},
          onclick: () => on.choose(entry),
          onpointerenter: () => on.point(entry),
          onpointerleave: () => on.point(null),
          onfocus: event => event.currentTarget.matches(':focus-visible') && on.point(entry),
          onblur: () => on.point(null),
        },
        make('i', {class: `swatch colour-${entry.colour}`, 'aria-hidden': 'true'}),
        make('span.clip', nameOf(entry)),
        make('span.soft.figures', entry.amount.toLocaleString('en')),
      ),
    ]);
  }
  draw();
  return {
    element: make('div.map-legend', field, list, more),
    mark(places) {
      chosen = places;
      const focused = list.querySelector(':focus')?.dataset.place;
      draw();
      if (focused !== undefined) list.querySelector(`[data-place="${focused}"]`)?.focus();
    },
  };
}
