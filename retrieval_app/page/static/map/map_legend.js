// The legend of the map: labels with their colour and count, to point at, to choose, and to find among many.

import {button, count, make, refill, shownText} from '../core/dom.js';

const COLOURS = 12;
const TOLD_APART = 1000; // labels whose colours look at each other; the small ones after them take turns
const CAPTIONED = 300;
const LONGEST_CAPTION = 28;
const LISTED = 30;
const GRID = 12;
const NAMELESS = 'without a label';

/**
 * Labels by size: [{name (null: without a label), place: index in `labels` or -1, amount, centre: [x, y], colour: 1..12, 0 without a label}].
 * More colours are indistinguishable, so they repeat: each label takes the one that is farthest away from it.
 *
 * @param {GalleryMap} map
 */
export function rankLabels(map) {
  const {label, labels} = map;
  const amounts = new Map();
  for (const place of label) amounts.set(place, (amounts.get(place) ?? 0) + 1);
  const centres = findCentres(map);
  const centresOf = Array.from({length: COLOURS}, () => /** @type {[number, number][]} */ ([]));
  return [...amounts]
    .sort((a, b) => b[1] - a[1] || a[0] - b[0])
    .map(([place, amount], rank) => {
      const centre = /** @type {[number, number]} */ (centres.get(place));
      const name = place < 0 ? null : labels[place];
      if (name === null) return {place, amount, name, centre, colour: 0};
      const colour = rank < TOLD_APART ? farthestColour(centre, centresOf) : rank % COLOURS;
      centresOf[colour].push(centre);
      return {place, amount, name, centre, colour: colour + 1};
    });
}

/** The first unused colour, else the one whose nearest label is farthest away. */
function farthestColour([x, y], centresOf) {
  const distances = centresOf.map(centres =>
    centres.reduce((nearest, [otherX, otherY]) => Math.min(nearest, Math.hypot(otherX - x, otherY - y)), Infinity),
  );
  return distances.indexOf(Math.max(...distances));
}

/** Amid the densest cell of each label, on a coarse grid. @param {GalleryMap} map */
function findCentres({x, y, label}) {
  const cellsOf = new Map();
  label.forEach((place, i) => {
    if (!cellsOf.has(place)) cellsOf.set(place, new Map());
    const cells = cellsOf.get(place);
    const cell = Math.floor(x[i] * GRID) * 1000 + Math.floor(y[i] * GRID);
    const [amount, sumX, sumY] = cells.get(cell) ?? [0, 0, 0];
    cells.set(cell, [amount + 1, sumX + x[i], sumY + y[i]]);
  });
  const densest = cells => [...cells.values()].reduce((best, cell) => (cell[0] > best[0] ? cell : best));
  return new Map(
    [...cellsOf].map(([place, cells]) => {
      const [amount, sumX, sumY] = densest(cells);
      return [place, [sumX / amount, sumY / amount]];
    }),
  );
}

/** Note that colours repeat, where they do. */
export const colourWords = entries =>
  entries.length > COLOURS + 1 ? ' Colours repeat; labels that lie side by side have different ones.' : '';

export const nameOf = entry => (entry.name === null ? NAMELESS : shownText(entry.name));

/** Where the names of the labels stand, the largest first; labels without space are left out when drawing. */
export function placeCaptions(entries) {
  return entries
    .filter(entry => entry.name !== null)
    .slice(0, CAPTIONED)
    .map(entry => ({x: entry.centre[0], y: entry.centre[1], place: entry.place, text: shorten(nameOf(entry))}));
}

const shorten = text => (text.length > LONGEST_CAPTION ? `${text.slice(0, LONGEST_CAPTION - 1)}…` : text);

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
