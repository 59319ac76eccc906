// Tables of the quality page: labels, confusions and failed searches, each with links to its images.

import {bar, precise} from '../core/charts.js';
import {button, count, make, refill, shownName, shownScore, shownText} from '../core/dom.js';
import {whereLabel} from '../core/loading.js';
import {thumb} from '../core/thumbs.js';
import {linkTo} from '../core/url_state.js';

const FEW = 12;
const searchOf = (...labels) => linkTo({view: 'search', filters: [whereLabel(...labels)]});
const label = text => make('span', {class: 'label-name', title: shownText(text)}, shownName(text));

const COLUMNS = [
  {name: 'Label', value: row => row.label.toLowerCase(), down: false},
  {name: 'Images', value: row => row.images, down: true},
  {name: 'Find their label first', value: row => row.recall_at_1, down: false},
];

/**
 * A table of the labels, worst first; a click on a heading sorts, a click on a label searches in it.
 *
 * @param {ClassEntry[]} classes
 */
export function drawClasses(classes) {
  if (!classes.length) return null;
  let column = 2;
  let down = false;
  let all = false;
  const body = make('tbody');
  const foot = make('div.table-foot');
  const heads = COLUMNS.map((entry, n) =>
    make('th', {scope: 'col'}, [
      button(entry.name, {class: 'sorter'}, () => {
        down = column === n ? !down : entry.down;
        column = n;
        draw();
      }),
    ]),
  );
  function draw() {
    const {value} = COLUMNS[column];
    const sign = down ? -1 : 1;
    const order = (a, b) => (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0) * sign || b.images - a.images;
    const rows = [...classes].sort(order);
    heads.forEach((head, n) => {
      head.setAttribute('aria-sort', n !== column ? 'none' : down ? 'descending' : 'ascending');
    });
    refill(body, rows.slice(0, all ? undefined : FEW).map(drawClass));
    refill(foot, [
      classes.length > FEW
        && button(all ? 'Show fewer' : `Show all ${count(classes.length, 'label')}`, {class: 'quiet'}, () => {
          all = !all;
          draw();
        }),
    ]);
  }
  draw();
  return make('section.quality-card', [
    make('h3', 'By label'),
    make('p.soft', [
      'Which labels search finds well, and which it mixes up with others. The thin line is the 95 % interval: long where there are few images.',
    ]),
    make('table.classes', make('thead', make('tr', heads)), body),
    foot,
  ]);
}

/** @param {ClassEntry} row */
function drawClass({label: name, images, recall_at_1: share, interval}) {
  const [low, high] = interval;
  const span = make('u', {'aria-hidden': 'true', style: {left: `${100 * low}%`, width: `${100 * (high - low)}%`}});
  return make('tr', [
    make('th', {scope: 'row'}, [
      make('a', {href: searchOf(name), title: `Search in ${shownText(name)}`}, shownName(name)),
    ]),
    make('td.number', images.toLocaleString('en')),
    make('td', {class: 'with-bar', title: `95 % interval: ${precise(low)} to ${precise(high)}`}, [
      make('span.share-measure', bar(share), span),
      make('b', precise(share)),
    ]),
  ]);
}

/** Confusions of labels, with their images. @param {Confusion[]} pairs */
export function drawConfusion(pairs) {
  if (!pairs.length) return null;
  const most = pairs[0].count;
  const rows = pairs
    .slice(0, 40)
    .map(({label: given, found, count: times, ids}, n) =>
      make('li', {hidden: n >= FEW}, [
        make('a', {href: linkTo({view: 'search', ids})}, [
          make('span.label-pair', [
            label(given),
            make('span', {class: 'arrow', 'aria-label': 'finds'}, '→'),
            label(found),
          ]),
          bar(times / most, 'tone-different'),
          make('b', times.toLocaleString('en')),
        ]),
      ]),
    );
  return make('section.quality-card', [
    make('h3', 'Most often confused'),
    make('p.soft', [
      'Given label → label of the first image found, and how often. Follow one to see the images; wrong labels among them can be fixed under ',
      make('a', {href: linkTo({view: 'labels'})}, 'Labels'),
      '.',
    ]),
    make('ol.confusion', rows),
    showAll(rows),
  ]);
}

/**
 * Searches whose first results are all of other labels: the query, what it found, and the way to the search.
 *
 * @param {WorstQueryEntry[]} worst
 */
export function drawWorst(worst) {
  if (!worst.length) return null;
  const cards = worst.map(({id, label: given, hit, misses}, n) =>
    make('li', {hidden: n >= FEW}, [
      make('a', {class: 'failed', href: linkTo({view: 'search', parts: [{image: id, role: 'like', crop: null}]})}, [
        make('span.visually-hidden', 'Search with this image: '),
        make('span.failed-two', thumb(id), thumb(hit.id)),
        make('span.failed-says', label(given), make('span.arrow', '→'), label(hit.label)),
        make('span.soft', `score ${shownScore(hit.score)}${misses > 1 ? `, the first ${misses} all differ` : ''}`),
      ]),
    ]),
  );
  return make('section.quality-card', [
    make('h3', 'Searches that failed'),
    make('p.soft', [
      'Left the image searched with, right what it finds first, of another label. Often a label is wrong, or the image shows something else as well.',
    ]),
    make('ul.failures', cards),
    showAll(cards),
  ]);
}

/** Button that shows the rest of a list; nothing where all of it is shown. */
function showAll(nodes) {
  if (nodes.length <= FEW) return null;
  const all = button(`Show all ${nodes.length}`, {class: 'quiet'}, () => {
    for (const node of nodes) node.hidden = false;
    all.remove();
  });
  return all;
}
