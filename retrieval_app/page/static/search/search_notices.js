// Notices in place of results: nothing found, with what to change, or a failure.

import {button, make, sentence} from '../core/dom.js';
import {photoUrl} from '../core/api.js';
import {notice} from '../core/loading.js';
import {makeDrop} from './upload.js';
import {partKey, writeState} from '../core/url_state.js';

const AND = new Intl.ListFormat('en');

/** Nothing found: why that may be, and buttons that change it. */
export function drawEmpty(state) {
  const ways = [
    state.min !== null && button('Take any score', {}, () => writeState({min: null})),
    state.filters.length > 0
      && button(state.filters.length > 1 ? 'Remove all conditions' : 'Remove the condition', {}, () =>
        writeState({filters: []}),
      ),
    state.text && button('Remove the words', {}, () => writeState({text: ''})),
  ].filter(Boolean);
  const limits = [
    state.min !== null && `scores of at least ${state.min.toFixed(2)}`,
    state.filters.length > 0 && 'the conditions',
    state.text && `the words \u201c${state.text}\u201d`,
  ].filter(Boolean);
  const text = limits.length > 0 ? `No image fits ${AND.format(limits)}.` : 'The gallery holds no other image.';
  return notice({icon: 'search', size: 40, title: 'Nothing found', text}, make('div.row', ways));
}

/** Those photos of a query that the server no longer keeps; the browser may still have kept their images. */
export async function findLostPhotos(parts) {
  const photos = parts.filter(part => part.photo !== undefined);
  const answers = await Promise.all(
    photos.map(part => fetch(photoUrl(part.photo), {cache: 'no-store'}).catch(() => null)),
  );
  return photos.filter((_, number) => [404, 410].includes(answers[number]?.status));
}

/** Message for a failure. `lost` are the photos of the query that the server no longer keeps. */
export function drawFailure(error, {state, lost, retry}) {
  if (lost.length > 0) return drawLost(state, lost);
  const refused = error.status === 422 || error.status === 400;
  const title = refused ? 'That cannot be searched' : 'That did not work';
  const ways = [
    refused && state.filters.length > 0
      ? button('Remove the conditions', {class: 'primary'}, () => writeState({filters: []}))
      : button('Retry', {class: 'primary'}, retry),
    error.status === 404 && button('Start over', {}, () => writeState({parts: [], ids: []})),
  ];
  const text = sentence(error.message);
  return notice({icon: 'warning', size: 40, title, text, bad: true}, make('div.row', ways));
}

function drawLost(state, lost) {
  const keys = new Set(lost.map(partKey));
  const rest = state.parts.filter(part => !keys.has(partKey(part)));
  const sent = tokens => writeState({parts: [...rest, ...tokens.map(photo => ({photo, role: 'like', crop: null}))]});
  const title = lost.length > 1 ? 'These photos are no longer kept' : 'This photo is no longer kept';
  const text =
    'Photos that are searched with stay in memory for a while only, and are never stored. '
    + 'Choose it once more to go on.';
  return notice({icon: 'photo', size: 40, title, text, role: 'alert'}, [
    makeDrop({title: 'Choose the photo again', small: true, sent}),
    button(rest.length > 0 ? 'Search without it' : 'Start over', {class: 'quiet'}, () => writeState({parts: rest})),
  ]);
}
