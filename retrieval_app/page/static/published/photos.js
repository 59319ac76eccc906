// Photos of the visitor, which stay in this page: kept until it is left, and embedded by a worker.

import {Refusal, readBytes, site, unpack, urlOf} from './files.js';

/** @typedef {{file: Blob, name: string, url: string, vectors: Map<string, Promise<Float32Array>>}} Photo */

/** @type {Map<string, Photo>} */
const photos = new Map();
/** @type {Promise<Worker> | null} */
let worker = null;

async function openWorker() {
  const opened = new Worker(new URL('./photo_worker.js', import.meta.url), {type: 'module'});
  const broken = new Promise((_, reject) => {
    opened.addEventListener('error', () => reject(new Refusal('This browser cannot run the model.', 500, 'failed')));
  });
  const [model, program] = await Promise.all([readBytes(site.model), unpack(site.program)]);
  const wasm = await program.arrayBuffer();
  const message = {runtime: urlOf(site.runtime), model, wasm, preprocess: site.preprocess};
  await Promise.race([broken, ask(opened, message, [model, wasm])]);
  return opened;
}

/** What the worker answers. @param {Worker} opened @param {object} message @param {Transferable[]} [moved] @returns {Promise<any>} */
function ask(opened, message, moved = []) {
  const {port1, port2} = new MessageChannel();
  opened.postMessage(message, [port2, ...moved]);
  return new Promise((resolve, reject) => {
    port1.onmessage = ({data: {answer, problem}}) => (problem ? reject(new Refusal(problem)) : resolve(answer));
  });
}

/** The unit vector of a photo or a part of it. @param {string} token @param {Crop | null} crop */
export function vectorOf(token, crop) {
  const photo = photos.get(token);
  if (!photo) throw new Refusal('This photo is no longer kept; choose it again.', 404, 'not_found');
  const key = JSON.stringify(crop);
  const known = photo.vectors.get(key);
  if (known) return known;
  worker ??= openWorker().catch(error => {
    worker = null;
    throw error;
  });
  const vector = worker.then(opened => ask(opened, {file: photo.file, name: photo.name, crop}));
  photo.vectors.set(key, vector);
  vector.catch(() => photo.vectors.delete(key));
  return vector;
}

/** Keep a photo, once it is embedded; its token. @param {Blob} file @param {string} name */
export async function keepPhoto(file, name) {
  const token = `${Date.now().toString(36)}-${photos.size}`;
  const url = URL.createObjectURL(file);
  photos.set(token, {file, name, url, vectors: new Map()});
  try {
    await vectorOf(token, null);
  } catch (error) {
    photos.delete(token);
    URL.revokeObjectURL(url);
    throw error;
  }
  return {photo: token, name, width: 0, height: 0};
}

/** The address of a photo within this page. @param {string} token */
export const urlOfPhoto = token => photos.get(token)?.url;
