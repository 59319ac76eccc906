// The sections of an image's details: why its label, what looks like it, its duplicates, its file and metadata.

import {button, fileSize, make, percent, shownText} from '../core/dom.js';
import {get, isAborted, post} from '../core/api.js';
import {thumb} from '../core/thumbs.js';
import {toast} from '../core/toast.js';
import {linkTo} from '../core/url_state.js';

const NEIGHBOURS = 12;
const VOTERS = 20;
const BARS = 5;

/**
 * A section whose nodes are still on their way; it goes if there are none.
 *
 * @param {string} title
 * @param {Promise<Element | Element[] | null>} promise
 */
export function later(title, promise) {
  const waiting = make('div.skeleton.lines');
  const section = make('section.column', make('h3', title), waiting);
  promise.then(
    nodes => (nodes ? waiting.replaceWith(...[nodes].flat()) : section.remove()),
    error => isAborted(error) || waiting.replaceWith(make('p.small.soft', error.message)),
  );
  return section;
}

/** Why: the labels' shares among the nearest. @param {ImageDetails} image */
export async function whySection(image, {signal}) {
  const {label, own_share: own, shares} = await get(`images/${image.id}/labels`, {k: VOTERS}, {signal});
  if (shares.length === 0) return null;
  const shown = shares.slice(0, BARS);
  const rest = shares.slice(BARS).reduce((sum, entry) => sum + entry.share, 0);
  return [
    make(
      'p.small.soft',
      label === null
        ? 'It has no label; these are its neighbours\u2019.'
        : !own
          ? `None of its ${VOTERS} nearest is \u201c${shownText(label)}\u201d.`
          : `${percent(own)} of its ${VOTERS} nearest are \u201c${shownText(label)}\u201d too.`,
    ),
    make(
      'ul.shares',
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
      rest > 0.001
        && make(
          'li',
          make('span.soft', 'others'),
          make('span', {class: 'bar', style: {'--share': rest}}),
          make('span.figures.small', percent(rest)),
        ),
    ),
  ];
}

/** What looks like it. @param {ImageDetails} image */
export async function neighbourSection(image, {signal, act}) {
  const {hits} = await post(
    'search',
    {queries: [{image_id: image.id}], k: NEIGHBOURS, include: ['label', 'path']},
    {signal},
  );
  if (hits.length === 0) return make('p.small.soft', 'The gallery holds no other image.');
  const items = hits.map(hit => make('li', drawNeighbour(hit, {image, act})));
  return make('ul.strip', items);
}

/** @param {SearchHit} hit */
function drawNeighbour(hit, {image, act}) {
  const label = shownText(hit.label ?? 'no label');
  const words = `${label}, score ${hit.score.toFixed(3)}`;
  const differs = hit.label !== null && hit.label !== image.label;
  const given = {type: 'button', title: words, 'aria-label': `Details of ${shownText(hit.path)}, ${words}`};
  return make(
    'button',
    {...given, class: differs ? 'other' : '', onclick: () => act('open', hit.id)},
    thumb(hit.id, {side: 128}),
    make('span.clip', label),
  );
}

/** Its near-duplicates. @param {ImageDetails} image */
export function drawDuplicates(image, act) {
  return make(
    'section.column',
    make('h3', 'Near-duplicates'),
    make(
      'ul.strip',
      image.copies.map(twin => {
        const alike = twin.similarity === null ? 'alike' : `${percent(twin.similarity)} alike`;
        const words = twin.same_bytes ? 'same file' : alike;
        const told = `${words}${twin.indexed ? '' : ', set aside'}`;
        return make(
          'li',
          make(
            'button',
            {
              type: 'button',
              disabled: !twin.indexed,
              title: `${shownText(twin.path)}: ${told}`,
              'aria-label': `Details of the duplicate ${shownText(twin.path)}, ${told}`,
              onclick: () => act('open', twin.id),
            },
            thumb(twin.id, {side: 128}),
            make('span.clip', told),
          ),
        );
      }),
    ),
    make('a', {class: 'small', href: linkTo({view: 'duplicates'})}, 'Review duplicates'),
  );
}

/** Path, file and metadata. @param {ImageDetails} image */
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
    'section.column',
    make('h3', 'File and metadata'),
    make('div.path-row', make('span.mono.grow', make('bdi', shownText(image.path))), copy),
    make(
      'table.table',
      make(
        'tbody',
        rows.map(([name, value]) =>
          make('tr', make('th', {scope: 'row'}, shownText(name)), make('td', make('bdi', shownText(value)))),
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
