// Client of the API under /v1: every failure is an ApiError, whose message the page can show.

import {saveFile} from './dom.js';
import {ROOT, locate, send} from './transport.js';

const RETRIES = 3;
const LONGEST_WAIT_SECONDS = 8;
const SIGNED_OUT = 'You are no longer signed in. Reload the page, and type the token.';
const CALIBRATION_MILLISECONDS = 2000;
const POLL_MILLISECONDS = [400, 700, 1000, 1500];
/** Routes that change what filters find. */
const CHANGES = [
  'labels/decisions',
  'labels/set',
  'labels/drop',
  'labels/undo',
  'tags',
  'tags/undo',
  'duplicates/decisions',
  'duplicates/undo',
  'leaks',
];
/** What only counts without a field of the body. @type {Record<string, string>} */
const CHANGES_WITH = {'labels/accept': 'digest', 'duplicates/apply': 'count', 'duplicates/move': 'count'};

/** What went wrong: `message` is for people, `code` and `status` for the page, `field` names the input at fault. */
export class ApiError extends Error {
  constructor(message, {code = 'failed', status = 0, field = null, requestId = null} = {}) {
    super(message);
    Object.assign(this, {name: 'ApiError', code, status, field, requestId});
  }
}

/** True of the error of a request that the page itself aborted. */
export const isAborted = error => error?.name === 'AbortError';

/** The address of a route: `address('images', {text: 'a', include: ['label', 'path']})`; null and '' are left out. */
export function address(path, params = {}) {
  const url = new URL(path, ROOT);
  for (const [name, value] of Object.entries(params)) {
    if (value === null || value === undefined || value === '' || value === false) continue;
    url.searchParams.set(name, Array.isArray(value) ? value.join(',') : String(value));
  }
  return url.href;
}

/**
 * GET as JSON.
 *
 * @template {string} Path
 * @param {Path} path
 * @param {ParametersOf<Path, 'get'>} [params]
 * @param {Stoppable} options
 * @returns {Promise<AnswerOf<Path, 'get'>>}
 */
export const get = async (path, params, {signal} = {}) => readJson(await ask(address(path, params), {signal}));

/**
 * POST a JSON body (or a file, as it is) and read JSON.
 *
 * @template {string} Path
 * @param {Path} path
 * @param {BodyOf<Path>} body
 * @param {Stoppable & {params?: ParametersOf<Path, 'post'>}} options
 * @returns {Promise<AnswerOf<Path, 'post'>>}
 */
export async function post(path, body, {signal, params} = {}) {
  const answer = await readJson(await ask(address(path, params), {method: 'POST', signal, ...packed(body)}));
  if (CHANGES.includes(path) || /** @type {any} */ (body)?.[CHANGES_WITH[path]]) {
    described = null; // it counts the labels
    dispatchEvent(new Event('labels-decided'));
  }
  return answer;
}

/** DELETE, and read JSON. @param {string} path @param {object} params */
export const remove = async (path, params) => readJson(await ask(address(path, params), {method: 'DELETE'}));

/**
 * GET what the server has to compute first: `onProgress({done, total, behind})` is called until it is ready.
 *
 * @template {string} Path
 * @param {Path} path
 * @param {ParametersOf<Path, 'get'>} [params]
 * @param {Stoppable & {onProgress?: (progress: {done: number, total: number, behind: string | null}) => void}} options
 * @returns {Promise<AnswerOf<Path, 'get'>>}
 */
export async function getReady(path, params, {signal, onProgress = () => {}} = {}) {
  for (let turn = 0; ; turn += 1) {
    const answer = /** @type {any} */ (await get(path, params, {signal}));
    if (answer?.state === 'failed') throw new ApiError(answer.message, {code: 'failed'});
    if (answer?.state !== 'computing' && answer?.state !== 'waiting') return answer;
    onProgress({done: answer.done ?? 0, total: answer.total ?? 0, behind: answer.behind ?? null});
    await pause(POLL_MILLISECONDS[Math.min(turn, POLL_MILLISECONDS.length - 1)], signal);
  }
}

/**
 * Save what a route answers as a file, GET without a body, POST with one; gives the headers of the answer.
 *
 * @param {string} path
 * @param {object | null} body
 * @param {object} params
 */
export async function download(path, body = null, params = {}) {
  const answer = await ask(address(path, params), body === null ? {} : {method: 'POST', ...packed(body)});
  const named = /filename="?([^";]+)"?/.exec(answer.headers.get('content-disposition') ?? '');
  saveFile(await answer.blob(), named ? named[1] : path);
  return answer.headers;
}

/** A thumbnail of an image of the gallery. */
export const thumbnailUrl = (id, side = 256) => locate(address(`images/${id}/thumbnail`, {side}));

/** Text in place of an image that cannot be shown. @type {(id?: number) => string} */
export const imageProblem = () => 'No image available';

/** The image itself, of at most 2048 pixels. */
export const previewUrl = id => locate(address(`images/${id}/preview`));

/** A photo that was sent to search with. */
export const photoUrl = token => locate(address(`photos/${encodeURIComponent(token)}/preview`));

/** @type {Promise<GalleryFacts> | null} */
let described = null;

/** Facts of the gallery (GET /v1/gallery), fetched once. */
export function gallery() {
  described ??= get('gallery').catch(error => {
    described = null;
    throw error;
  });
  return described;
}

/** Its facts now; another version than before is told as 'gallery-changed'. */
export async function newestGallery() {
  const before = await gallery();
  const facts = await get('gallery');
  if (facts.version === before.version) return before;
  described = Promise.resolve(facts);
  dispatchEvent(new Event('gallery-changed'));
  return facts;
}

/** Facts of the gallery where a failure may be ignored: the frame shows it. @param {(facts: GalleryFacts) => void} use */
export const withGallery = use => gallery().then(use, () => {});

/** What it is once its calibration is no longer on its way; null where the server is gone. */
export async function calibratedGallery() {
  for (;;) {
    const facts = await gallery().catch(() => null);
    if (!['computing', 'waiting'].includes(facts?.calibration?.state ?? '')) return facts;
    await pause(CALIBRATION_MILLISECONDS);
    described = null;
  }
}

/** @returns {RequestInit} */
function packed(body) {
  if (body instanceof Blob) return {body};
  return {body: JSON.stringify(body), headers: {'Content-Type': 'application/json'}};
}

/** @param {string} url @param {RequestInit} request */
async function ask(url, request) {
  for (let turn = 0; ; turn += 1) {
    let answer;
    try {
      answer = await send(url, request);
    } catch (error) {
      if (isAborted(error)) throw error;
      throw new ApiError('The server gave no answer. Is it still running?', {code: 'offline'});
    }
    if (answer.ok) return answer;
    const error = await readError(answer);
    if (turn >= RETRIES || !mayRepeat(answer, error, request)) throw error;
    await pause(1000 * waitSeconds(answer, turn), request.signal);
  }
}

// A request that changes something is repeated only where the server answers that it has not begun.
function mayRepeat(answer, error, {method = 'GET'}) {
  return answer.status === 503 && answer.headers.has('retry-after') && (method === 'GET' || error.code === 'busy');
}

function waitSeconds(answer, turn) {
  const asked = Number(answer.headers.get('retry-after')) || 1;
  return Math.min(asked * (turn + 1), LONGEST_WAIT_SECONDS) * (0.75 + Math.random() / 2);
}

async function readError(answer) {
  const body = await answer.json().catch(() => null);
  const error = body?.error;
  const message = (answer.status === 401 ? null : shortenField(error)) ?? fallbackMessage(answer.status);
  return new ApiError(message, {
    code: error?.code,
    status: answer.status,
    field: error?.field ?? null,
    requestId: body?.request_id ?? null,
  });
}

/** The message of a failure; a field that it begins with is named as in `label`, not `decisions.0.label`. */
function shortenField(error) {
  const {message, field} = error ?? {};
  if (!field || !message?.startsWith(`${field}: `)) return message;
  const names = field.split('.').filter(name => !/^\d+$/.test(name));
  return `${names.at(-1)}${message.slice(field.length)}`;
}

function fallbackMessage(status) {
  if (status === 401) return SIGNED_OUT;
  if (status === 503) return 'The server is busy. Try again in a moment.';
  return `The server answered with status ${status}.`;
}

async function readJson(answer) {
  try {
    return await answer.json();
  } catch (error) {
    if (isAborted(error)) throw error;
    throw new ApiError('The answer broke off. Try again.', {code: 'broken', status: answer.status});
  }
}

/** @param {number} milliseconds @param {AbortSignal | null} [signal] @returns {Promise<void>} */
function pause(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(new DOMException('stopped', 'AbortError'));
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener('abort', stop);
      resolve();
    }, milliseconds);
    if (signal?.aborted) stop();
    signal?.addEventListener('abort', stop, {once: true});
  });
}
