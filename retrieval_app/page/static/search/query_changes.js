// What buttons and keys do to the query: a new one, one more image, more or less like an image.

import {gallery} from '../core/api.js';
import {toast} from '../core/toast.js';
import {partKey, readState, writeState} from '../core/url_state.js';

/** @param {number} image @param {Role} role @returns {Part} */
const ofImage = (image, role = 'like') => ({image, role, crop: null});
/** @param {string} photo @returns {Part} */
const ofPhoto = photo => ({photo, role: 'like', crop: null});

/** Search with images of the gallery. */
export function searchImages(ids) {
  begin(ids.map(id => ofImage(id)));
}

/** Search with photos that were sent; the former query can still be combined with them. */
export function searchPhotos(tokens) {
  const former = readState().parts;
  begin(tokens.map(ofPhoto));
  const action = {text: 'Combine with the former', run: () => combine(former)};
  if (former.length > 0) toast('A new search.', {action});
}

/** Search by words alone. */
export function searchByWords(words) {
  begin([{words, role: 'like', crop: null}]);
}

/** Photos that were sent, added to the query. */
export function addPhotos(tokens) {
  combine(tokens.map(ofPhoto));
}

/** An image that the query shall be more like, or less like. @param {number} id @param {'more' | 'less'} role */
export async function weighImage(id, role) {
  const {parts} = readState();
  const others = parts.filter(part => part.image !== id);
  if (role === 'less' && !others.some(part => part.role !== 'less')) {
    toast('\u201cLess like\u201d needs a search to change: start one, then take away from it.');
    return;
  }
  if (!(await hasRoom(others))) return;
  writeState({parts: [...others, ofImage(id, others.length === 0 ? 'like' : role)], ids: []});
  toast(`Looking for ${role} like it`, {action: {text: 'Undo', run: () => writeState({parts})}});
}

async function hasRoom(parts) {
  const {limits} = await gallery();
  if (parts.length < limits.max_queries) return true;
  toast(`A search takes at most ${limits.max_queries} images. Remove one first.`);
  return false;
}

function begin(parts) {
  writeState({parts, ids: [], details: null});
  scrollTo(0, 0);
}

async function combine(added) {
  const {parts} = readState();
  const known = new Set(parts.map(partKey));
  const fresh = added.filter(part => !known.has(partKey(part)));
  const {limits} = await gallery();
  writeState({parts: [...parts, ...fresh].slice(0, limits.max_queries), ids: []});
  if (parts.length + fresh.length > limits.max_queries) {
    toast(`A search takes at most ${limits.max_queries} images; the first ones were taken.`);
  }
}
