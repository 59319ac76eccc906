// The sections of an image's details: why its label, what looks like it, its copies, its file and metadata.

import {button, fileSize, make, percent, shownText} from './dom.js';
import {get, isAborted, post} from './api.js';
import {thumb} from './thumbs.js';
import {toast} from './toast.js';
import {linkTo} from './url_state.js';

const NEIGHBOURS = 12;
const VOTERS = 20;
const BARS = 5;

/** A section whose nodes are still on their way; it goes if there are none. */
export function later(title, promise) {
  const section = make('section', {class: 'column'}, make('h3', {}, title), make('div', {class: 'skeleton lines'}));
  promise.then(
    nodes => (nodes ? section.lastElementChild.replaceWith(...[nodes].flat()) : section.remove()),
    error =>
      isAborted(error) || section.lastElementChild.replaceWith(make('p', {class: 'small soft'}, error.message)),
  );
  return section;
}

/** Why: the labels' shares among the nearest. */
export async function whySection(image, {signal}) {
  const {label, own_share: own, shares} = await get(`images/${image.id}/labels`, {k: VOTERS}, {signal});
  if (shares.length === 0) return null;
  const shown = shares.slice(0, BARS);
  const rest = shares.slice(BARS).reduce((sum, entry) => sum + entry.share, 0);
  return [
    make(
      'p',
      {class: 'small soft'},
      label === null
        ? 'It has no label; these are its neighbours\u2019.'
        : own === 0
          ? `None of its ${VOTERS} nearest is \u201c${shownText(label)}\u201d.`
          : `${percent(own)} of its ${VOTERS} nearest are \u201c${shownText(label)}\u201d too.`,
    ),
    make(
      'ul',
      {class: 'shares'},
      shown.map(entry =>
        make(
          'li',
          {class: entry.label === label ? 'own' : ''},
          make(
            'span',
            {class: 'clip', title: shownText(entry.label ?? 'no label')},
            shownText(entry.label ?? 'no label'),
          ),
          make('span', {class: 'bar', style: {'--share': entry.share}}),
          make(
            'span',
            {class: 'figures small', title: `mean score ${entry.mean_score.toFixed(3)}`},
            percent(entry.share),
          ),
        ),
      ),
      rest > 0.001 &&
        make(
          'li',
          {},
          make('span', {class: 'soft'}, 'others'),
          make('span', {class: 'bar', style: {'--share': rest}}),
          make('span', {class: 'figures small'}, percent(rest)),
        ),
    ),
  ];
}

/** What looks like it. */
export async function neighbourSection(image, {signal, act}) {
  const {hits} = await post(
    'search',
    {queries: [{image_id: image.id}], k: NEIGHBOURS, include: ['label', 'path']},
    {signal},
  );
  if (hits.length === 0) return make('p', {class: 'small soft'}, 'The gallery holds no other image.');
  const items = hits.map(hit => make('li', {}, drawNeighbour(hit, {image, act})));
  return make('ul', {class: 'strip'}, items);
}

function drawNeighbour(hit, {image, act}) {
  const label = shownText(hit.label ?? 'no label');
  const words = `${label}, score ${hit.score.toFixed(3)}`;
  const differs = hit.label !== null && hit.label !== image.label;
  const given = {type: 'button', title: words, 'aria-label': `Details of ${shownText(hit.path)}, ${words}`};
  return make(
    'button',
    {...given, class: differs ? 'other' : '', onclick: () => act('open', hit.id)},
    thumb(hit.id, {side: 128}),
    make('span', {class: 'clip'}, label),
  );
}

/** Its near-duplicates. */
export function drawCopies(image, act) {
  return make(
    'section',
    {class: 'column'},
    make('h3', {}, 'Near-duplicates'),
    make(
      'ul',
      {class: 'strip'},
      image.copies.map(copy => {
        const words = copy.same_bytes ? 'same file' : `${percent(copy.similarity)} alike`;
        const told = `${words}${copy.indexed ? '' : ', set aside'}`;
        return make(
          'li',
          {},
          make(
            'button',
            {
              type: 'button',
              disabled: !copy.indexed,
              title: `${shownText(copy.path)}: ${told}`,
              'aria-label': `Details of the copy ${shownText(copy.path)}, ${told}`,
              onclick: () => act('open', copy.id),
            },
            thumb(copy.id, {side: 128}),
            make('span', {class: 'clip'}, told),
          ),
        );
      }),
    ),
    make('a', {class: 'small', href: linkTo({view: 'duplicates'})}, 'Review duplicates'),
  );
}

/** Path, file and metadata. */
export function drawFacts(image) {
  const rows = [
    ['Id', image.id],
    ['Source', image.source],
    ['Size', image.size_bytes === null ? null : fileSize(image.size_bytes)],
    [
      'Changed',
      image.modified && new Date(image.modified).toLocaleString('en-GB', {dateStyle: 'medium', timeStyle: 'short'}),
    ],
    ...Object.entries(image.metadata ?? {}).map(([name, value]) => [
      name,
      typeof value === 'object' && value !== null ? JSON.stringify(value) : value,
    ]),
  ].filter(([, value]) => value !== null && value !== undefined && value !== '');
  const copy = button('Copy path', {icon: 'copy', iconOnly: true, class: 'quiet small'}, () => copyText(image.path));
  return make(
    'section',
    {class: 'column'},
    make('h3', {}, 'File and metadata'),
    make(
      'div',
      {class: 'path-row'},
      make('span', {class: 'mono grow'}, make('bdi', {}, shownText(image.path))),
      copy,
    ),
    make(
      'table',
      {class: 'table'},
      make(
        'tbody',
        {},
        rows.map(([name, value]) =>
          make(
            'tr',
            {},
            make('th', {scope: 'row'}, shownText(name)),
            make('td', {}, make('bdi', {}, shownText(value))),
          ),
        ),
      ),
    ),
  );
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    toast('Path copied', {kind: 'good'});
  } catch {
    toast('The browser does not let the page copy here. Mark the path and copy it by hand.', {kind: 'bad'});
  }
}

/** The file's name of a path. */
export function nameOf(path) {
  return shownText(path.split('/').pop());
}
