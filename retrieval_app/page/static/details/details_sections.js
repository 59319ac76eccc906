// The sections of an image's details: why its label, what looks like it, its duplicates, its file and metadata.

import {askTag, changeTag} from '../core/bulk.js';
import {button, fileSize, make, percent, shownText} from '../core/dom.js';
import {get, isAborted, post} from '../core/api.js';
import {thumb} from '../core/thumbs.js';
import {copyText} from '../core/toast.js';
import {linkTo} from '../core/url_state.js';

const NEIGHBOURS = 12;
const VOTERS = 20;
const BARS = 5;
/** @type {Intl.DateTimeFormatOptions} */
const WHEN = {dateStyle: 'medium', timeStyle: 'short'};

/**
 * Section whose nodes are still loading; it is removed if nothing comes.
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
  const rest = shares.slice(BARS).reduce((sum, entry) => sum + entry.share, 0);
  const words =
    label === null
      ? 'It has no label; these are its neighbours\u2019.'
      : own
        ? `${percent(own)} of its ${VOTERS} nearest are \u201c${shownText(label)}\u201d too.`
        : `None of its ${VOTERS} nearest is \u201c${shownText(label)}\u201d.`;
  const bars = shares.slice(0, BARS).map(entry => {
    const name = shownText(entry.label ?? 'no label');
    const given = {own: entry.label === label, title: `mean score ${entry.mean_score.toFixed(3)}`};
    return drawShare(make('span', {class: 'two-lines', title: name}, name), entry.share, given);
  });
  const others = rest > 0.001 && drawShare(make('span.soft', 'others'), rest);
  return [make('p.small.soft', words), make('ul.shares', bars, others)];
}

/** @param {Element} name @param {number} share */
function drawShare(name, share, {own = false, title = /** @type {string | null} */ (null)} = {}) {
  return make('li', {class: own ? 'own' : ''}, [
    name,
    make('span', {class: 'bar', style: {'--share': share}}),
    make('span', {class: 'figures small', title}, percent(share)),
  ]);
}

/** What looks like it. @param {ImageDetails} image */
export async function neighbourSection(image, {signal, act}) {
  const body = {queries: [{image_id: image.id}], k: NEIGHBOURS, include: /** @type {any} */ (['label', 'path'])};
  const {hits} = await post('search', body, {signal});
  if (hits.length === 0) return make('p.small.soft', 'The gallery holds no other image.');
  const items = hits.map(hit => {
    const label = shownText(hit.label ?? 'no label');
    const words = `${label}, score ${hit.score.toFixed(3)}`;
    const differs = hit.label !== null && hit.label !== image.label;
    const given = {title: words, 'aria-label': `Details of ${shownText(hit.path ?? `image ${hit.id}`)}, ${words}`};
    const run = () => act('open', hit.id);
    return drawInStrip(hit.id, label, {...given, class: differs ? 'other' : '', onclick: run});
  });
  return make('ul.strip', items);
}

/** An image to press, with words below. @param {number} id */
function drawInStrip(id, words, props) {
  return make('li', make('button', props, thumb(id, {side: 128}), make('span.clip', words)));
}

/** Its near-duplicates. @param {ImageDetails} image */
export function drawDuplicates(image, act) {
  const items = image.duplicates.map(twin => {
    const alike = twin.similarity === null ? 'alike' : `${percent(twin.similarity)} alike`;
    const told = `${twin.same_bytes ? 'same file' : alike}${twin.indexed ? '' : ', left out'}`;
    const name = shownText(twin.path);
    const given = {title: `${name}: ${told}`, 'aria-label': `Details of the duplicate ${name}, ${told}`};
    return drawInStrip(twin.id, told, {...given, disabled: !twin.indexed, onclick: () => act('open', twin.id)});
  });
  return make('section.column', [
    make('h3', 'Near-duplicates'),
    make('ul.strip', items),
    make('a', {class: 'small review-duplicates', href: linkTo({view: 'duplicates'})}, 'Review duplicates'),
  ]);
}

/** Its tags, and what changes them; `changed()` is called afterwards. @param {ImageDetails} image */
export function drawTags(image, {facts, changed}) {
  const can = facts.permissions.review;
  const body = {ids: [image.id]};
  const drawTag = tag => {
    const filters = [`tag = '${tag.replaceAll("'", "''")}'`];
    const remove = () => changeTag({...body, tag, action: 'remove'}, changed);
    return make('li.chip', [
      make(
        'a',
        {href: linkTo({parts: [], ids: [], text: '', filters}), title: 'Show all with this tag'},
        shownText(tag),
      ),
      can
        && button(
          `Remove the tag ${shownText(tag)}`,
          {icon: 'close', iconOnly: true, class: 'quiet chip-remove'},
          remove,
        ),
    ]);
  };
  if (!can && image.tags.length === 0) return null;
  return make('section.column', [
    make('h3', 'Tags'),
    make('ul.chips', [
      image.tags.map(drawTag),
      can
        && make(
          'li',
          button('Tag…', {icon: 'plus', class: 'small'}, () => askTag({body, amount: 1, done: changed})),
        ),
    ]),
  ]);
}

/** Path, file and metadata. @param {ImageDetails} image */
export function drawFacts(image) {
  const {width, height, jpeg_quality: quality, ...measures} = image.measures;
  const rows = [
    ['Id', image.id],
    ['Source', image.source],
    ['Size', image.size_bytes === null ? null : fileSize(image.size_bytes)],
    ['Pixels', width && `${width} × ${height}`],
    ['JPEG quality', quality],
    ...Object.entries(measures).map(([name, value]) => [name[0].toUpperCase() + name.slice(1), value]),
    ['Changed', image.modified && new Date(image.modified).toLocaleString('en-GB', WHEN)],
    ...Object.entries(image.metadata ?? {}).map(([name, value]) => [
      name,
      typeof value === 'object' && value ? JSON.stringify(value) : value,
    ]),
  ].filter(([, value]) => value !== null && value !== undefined && value !== '');
  const lines = rows.map(([name, value]) =>
    make('tr', make('th', {scope: 'row'}, shownText(name)), make('td', make('bdi', shownText(value)))),
  );
  const copy = button('Copy path', {icon: 'copy', iconOnly: true, class: 'quiet small'}, () =>
    copyText(image.path, 'Path copied'),
  );
  return make('section.column', [
    make('h3', 'File and metadata'),
    make('div.path-row', make('span.mono.grow', make('bdi', shownText(image.path))), copy),
    make('table.table', make('tbody', lines)),
  ]);
}

/** The file's name of a path. */
export const nameOf = path => shownText(path.split('/').pop());
