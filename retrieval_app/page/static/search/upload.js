// Photos from outside: chosen, dropped or pasted, or fetched from a pasted address by a server that may. The server
// answers with a token for each.

import {button, fileSize, icon, make} from '../core/dom.js';
import {gallery, isAborted, post} from '../core/api.js';
import {toast, toastError} from '../core/toast.js';

const names = new Map();

/** The name of the file that a token stands for; null after a reload. */
export const photoName = token => names.get(token) ?? null;

/**
 * A place for photos: click to choose, or drop. `sent(tokens)` is called with what arrived. `title` and `hint` say what
 * it is for.
 *
 * @param {{title: string, hint?: string, sent: (tokens: string[]) => void, small?: boolean}} given
 */
export function makeDrop({title, hint, sent, small = false}) {
  const input = make('input', {
    type: 'file',
    accept: 'image/*',
    multiple: true,
    'aria-label': `${title}. ${hint ?? ''}`,
  });
  const words = make('strong', title);
  const zone = make('label', {class: `drop${small ? ' small' : ''}`}, [
    icon(small ? 'plus' : 'photo', small ? 18 : 34),
    input,
    words,
    hint && make('span', hint),
  ]);
  const take = files =>
    sendPhotos(files, progress => {
      zone.classList.toggle('sending', progress !== null);
      words.textContent = progress ?? title;
    }).then(tokens => tokens.length > 0 && sent(tokens));
  input.addEventListener('change', () => {
    take([...(input.files ?? [])]);
    input.value = '';
  });
  for (const name of /** @type {const} */ (['dragenter', 'dragover', 'dragleave', 'drop'])) {
    zone.addEventListener(name, event => {
      if (!holdsFiles(event)) return;
      event.preventDefault();
      event.stopPropagation();
      zone.classList.toggle('over', name === 'dragenter' || name === 'dragover');
      if (name === 'drop') take(filesOf(event));
    });
  }
  return zone;
}

/** A line for the address of an image; hidden where this server fetches none. */
export function makeAddressLine({sent}) {
  const input = make('input.input', {
    type: 'url',
    name: 'address',
    required: true,
    placeholder: 'Or the address of one',
    'aria-label': 'The address of an image to search with',
  });
  const form = make('form', {class: 'row nowrap address-line', hidden: true}, [
    input,
    button('Search', {type: 'submit'}),
  ]);
  form.addEventListener('submit', event => {
    event.preventDefault();
    takeAddress(input.value.trim(), sent).then(taken => taken && (input.value = ''));
  });
  gallery().then(
    ({permissions}) => (form.hidden = !permissions.fetch),
    () => {},
  );
  return form;
}

/** Search with the image at an address; true if there was one. */
async function takeAddress(address, sent) {
  const close = toast('Fetching the image…');
  try {
    const answer = await post('photos/address', {address});
    names.set(answer.photo, answer.name);
    sent([answer.photo]);
    return true;
  } catch (error) {
    if (!isAborted(error)) toastError(error);
    return false;
  } finally {
    close();
  }
}

/** Photos pasted, or dropped anywhere on the page while `active()`; a drop elsewhere never makes the browser leave. */
export function takeEverywhere({active, sent}) {
  const veil = make('div', {class: 'app drop-veil', hidden: true}, [
    icon('photo', 40),
    make('strong', 'Drop to search with it'),
  ]);
  document.body.append(veil);
  const take = files => {
    const close = toast(files.length > 1 ? `Reading ${files.length} photos…` : 'Reading the photo…');
    sendPhotos(files, () => {}).then(tokens => {
      close();
      if (tokens.length > 0) sent(tokens);
    });
  };
  addEventListener('paste', event => {
    const files = [...(event.clipboardData?.files ?? [])];
    if (files.length > 0 && active()) take(files);
    const text = event.clipboardData?.getData('text/plain').trim() ?? '';
    const typing = event.target instanceof Element && event.target.closest('input, textarea, [contenteditable]');
    if (files.length > 0 || typing || !active() || !/^https?:\/\/\S+$/i.test(text)) return;
    takeAddress(text, sent);
  });
  addEventListener('dragover', event => {
    if (!holdsFiles(event)) return;
    event.preventDefault();
    veil.hidden = !active();
  });
  addEventListener('dragleave', event => {
    if (event.relatedTarget === null) veil.hidden = true;
  });
  addEventListener('drop', event => {
    if (!holdsFiles(event)) return;
    event.preventDefault();
    if (active()) take(filesOf(event));
  });
  const lift = () => {
    veil.hidden = true;
  };
  addEventListener('drop', lift, {capture: true}); // also of what another place takes
}

async function sendPhotos(files, onProgress) {
  const tokens = [];
  const {limits} = await gallery().catch(() => ({limits: {max_upload_bytes: Infinity, max_queries: 16}}));
  const taken = files.slice(0, limits.max_queries);
  if (taken.length < files.length) {
    toast(`At most ${limits.max_queries} photos make one search; the first ones were taken.`);
  }
  for (const [number, file] of taken.entries()) {
    onProgress(taken.length > 1 ? `Reading photo ${number + 1} of ${taken.length}…` : 'Reading the photo…');
    try {
      tokens.push(await sendPhoto(file, limits.max_upload_bytes));
    } catch (error) {
      if (!isAborted(error)) toastError(error);
    }
  }
  onProgress(null);
  return [...new Set(tokens)];
}

/** @param {File} file @param {number} limit */
async function sendPhoto(file, limit) {
  const name = file.name || 'photo';
  if (file.size > limit) {
    throw new Error(`${name}: ${fileSize(file.size)}, at most ${fileSize(limit)} are taken. Use a smaller copy.`);
  }
  if (file.type && !file.type.startsWith('image/')) throw new Error(`${name} is not an image.`);
  const answer = await post('photos', /** @type {Blob} */ (file), {params: {name: name.slice(0, 200)}});
  names.set(answer.photo, name);
  return answer.photo;
}

/** @param {DragEvent} event */
const filesOf = event => [...(event.dataTransfer?.files ?? [])];

/** @param {DragEvent} event */
const holdsFiles = event => [...(event.dataTransfer?.types ?? [])].includes('Files');
