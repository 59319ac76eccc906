// The parts of the quality page that lead on: labels, confusions and searches that failed, each a link to its images.

import {bar, precise} from './charts.js';
import {button, count, make, refill, shownText} from './dom.js';
import {whereLabel} from './loading.js';
import {thumb} from './thumbs.js';
import {linkTo} from './url_state.js';

const FEW = 12;
const searchOf = (...labels) => linkTo({view: 'search', filters: [whereLabel(...labels)]});
const label = text => make('span', {class: 'label-name', title: shownText(text)}, shownText(text));

const COLUMNS = [
  {name: 'Label', value: row => row.label.toLowerCase(), down: false},
  {name: 'Images', value: row => row.images, down: true},
  {name: 'Find their label first', value: row => row.recall_at_1, down: false},
];

/** A table of the labels, worst first; a click on a heading sorts, a click on a label searches in it. */
export function drawClasses(classes) {
  if (!classes.length) return null;
  let column = 2,
    down = false,
    all = false;
  const body = make('tbody', {}),
    foot = make('div', {class: 'table-foot'});
  const heads = COLUMNS.map((entry, n) =>
    make(
      'th',
      {scope: 'col'},
      button(entry.name, {class: 'sorter'}, () => {
        down = column === n ? !down : entry.down;
        column = n;
        draw();
      }),
    ),
  );
  function draw() {
    const {value} = COLUMNS[column],
      sign = down ? -1 : 1;
    const order = (a, b) => (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0) * sign || b.images - a.images;
    const rows = [...classes].sort(order);
    heads.forEach((head, n) => {
      head.setAttribute('aria-sort', n !== column ? 'none' : down ? 'descending' : 'ascending');
    });
    refill(body, rows.slice(0, all ? undefined : FEW).map(drawClass));
    refill(
      foot,
      classes.length > FEW
        && button(all ? 'Show fewer' : `Show all ${count(classes.length, 'label')}`, {class: 'quiet'}, () => {
          all = !all;
          draw();
        }),
    );
  }
  draw();
  return make(
    'section',
    {class: 'quality-card'},
    make('h3', {}, 'By label'),
    make(
      'p',
      {class: 'soft'},
      'Which labels search finds well, and which it mixes up with others. The thin line is the 95 % interval: long where there are few images.',
    ),
    make('table', {class: 'classes'}, make('thead', {}, make('tr', {}, heads)), body),
    foot,
  );
}

function drawClass({label: name, images, recall_at_1: share, interval}) {
  const span =
    interval
    && make('u', {
      'aria-hidden': 'true',
      style: {
        left: `${100 * Math.max(0, interval[0])}%`,
        width: `${100 * (Math.min(1, interval[1]) - Math.max(0, interval[0]))}%`,
      },
    });
  return make(
    'tr',
    {},
    make(
      'th',
      {scope: 'row'},
      make('a', {href: searchOf(name), title: `Search in ${shownText(name)}`}, shownText(name)),
    ),
    make('td', {class: 'number'}, images.toLocaleString('en')),
    make(
      'td',
      {class: 'with-bar', title: interval ? `95 % interval: ${precise(interval[0])} to ${precise(interval[1])}` : null},
      make('span', {class: 'share-measure'}, bar(share), span),
      make('b', {}, precise(share)),
    ),
  );
}

/** Which label is taken for which; `ids` of a pair, if told, are the images it happened to. */
export function drawConfusion(pairs) {
  if (!pairs.length) return null;
  const most = pairs[0].count;
  const rows = pairs
    .slice(0, 40)
    .map(({label: given, found, count: times, ids}, n) =>
      make(
        'li',
        {hidden: n >= FEW},
        make(
          'a',
          {href: ids?.length ? linkTo({view: 'search', ids}) : searchOf(given, found)},
          make(
            'span',
            {class: 'label-pair'},
            label(given),
            make('span', {class: 'arrow', 'aria-label': 'finds'}, '→'),
            label(found),
          ),
          bar(times / most, 'tone-different'),
          make('b', {}, times.toLocaleString('en')),
        ),
      ),
    );
  const more =
    rows.length > FEW
    && button(`Show all ${rows.length}`, {class: 'quiet'}, event => {
      for (const row of rows) row.hidden = false;
      event.currentTarget.remove();
    });
  return make(
    'section',
    {class: 'quality-card'},
    make('h3', {}, 'Most often confused'),
    make(
      'p',
      {class: 'soft'},
      'Given label → label of the first image found, and how often. Follow one to see the images; wrong labels among them can be mended under ',
      make('a', {href: linkTo({view: 'labels'})}, 'Labels'),
      '.',
    ),
    make('ol', {class: 'confusion'}, rows),
    more,
  );
}

/** Searches whose first results are all of other labels: the query, what it found, and the way to the search. */
export function drawWorst(worst) {
  if (!worst.length) return null;
  const cards = worst.map(({id, label: given, hit, misses}, n) =>
    make(
      'li',
      {hidden: n >= FEW},
      make(
        'a',
        {class: 'failed', href: linkTo({view: 'search', parts: [{image: id, role: 'like', crop: null}]})},
        make('span', {class: 'visually-hidden'}, 'Search with this image: '),
        make('span', {class: 'failed-two'}, thumb(id), hit && thumb(hit.id)),
        make(
          'span',
          {class: 'failed-says'},
          label(given),
          make('span', {class: 'arrow'}, '→'),
          label(hit?.label ?? 'nothing'),
        ),
        hit
          && make(
            'span',
            {class: 'soft'},
            `score ${hit.score.toFixed(2)}${misses > 1 ? `, the first ${misses} all differ` : ''}`,
          ),
      ),
    ),
  );
  const more =
    cards.length > FEW
    && button(`Show all ${cards.length}`, {class: 'quiet'}, event => {
      for (const card of cards) card.hidden = false;
      event.currentTarget.remove();
    });
  return make(
    'section',
    {class: 'quality-card'},
    make('h3', {}, 'Searches that failed'),
    make(
      'p',
      {class: 'soft'},
      'Left the image searched with, right what it finds first, of another label. Often a label is wrong, or the picture shows something else as well.',
    ),
    make('ul', {class: 'failures'}, cards),
    more,
  );
}
