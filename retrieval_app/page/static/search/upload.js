// Photos from outside: chosen, dropped or pasted. The server answers with a token for each.

import {fileSize, icon, make} from '../core/dom.js';
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
