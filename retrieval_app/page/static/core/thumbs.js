// Images of the gallery, with a word in their place when one cannot be shown.

import {make} from './dom.js';
import {photoUrl, imageProblem, previewUrl, thumbnailUrl} from './api.js';

/** A thumbnail by id. `alt` is empty where the text beside it says the same. @param {number} id */
export function thumb(id, {side = 256, alt = '', eager = false} = {}) {
  return framed(thumbnailUrl(id, side), {alt, eager, problem: imageProblem(id)});
}

/** The image by id, large. */
export const picture = (id, {alt = ''} = {}) => framed(previewUrl(id), {alt, eager: true, problem: imageProblem(id)});

/** A photo that was sent to search with. */
export const photoThumb = (token, {alt = ''} = {}) => framed(photoUrl(token), {alt, eager: true});

/** A thumbnail to press, which enlarges it. @param {number} id @param {string} name @param {() => void} run */
export const zoomer = (id, name, run, side = 256) =>
  make('button', {class: 'zoomer', 'aria-label': `Enlarge ${name}`, onclick: run}, thumb(id, {side}));

function framed(source, {alt, eager, problem = imageProblem()}) {
  const frame = make('span.picture');
  const image = make('img', {
    alt,
    decoding: 'async',
    draggable: 'false',
    loading: eager ? 'eager' : 'lazy',
    onload: () => frame.classList.add('loaded'),
    onerror: () => frame.classList.add('lost'),
    src: source,
  });
  frame.append(image, make('span.gone', problem));
  return frame;
}
