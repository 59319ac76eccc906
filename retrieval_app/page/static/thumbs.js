// Pictures of the gallery, with a word in their place when one cannot be shown.

import {make} from './dom.js';
import {photoUrl, pictureUrl, thumbnailUrl} from './api.js';

/** A thumbnail by id. `alt` is empty where the text beside it says the same. */
export function thumb(id, {side = 256, alt = '', eager = false} = {}) {
  return framed(thumbnailUrl(id, side), {alt, eager});
}

/** The picture by id, large. */
export function picture(id, {alt = ''} = {}) {
  return framed(pictureUrl(id), {alt, eager: true});
}

/** A photo that was sent to search with. */
export function photoThumb(token, {alt = ''} = {}) {
  return framed(photoUrl(token), {alt, eager: true});
}

function framed(source, {alt, eager}) {
  const frame = make('span', {class: 'picture'});
  const image = make('img', {
    alt,
    decoding: 'async',
    draggable: 'false',
    loading: eager ? 'eager' : 'lazy',
    onload: () => frame.classList.add('loaded'),
    onerror: () => frame.classList.add('lost'),
    src: source,
  });
  frame.append(image, make('span', {class: 'gone'}, 'No picture available'));
  return frame;
}
