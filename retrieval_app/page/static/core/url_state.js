// The page's state is its address: a link shows the same search to whoever opens it, and Back goes back.

const DEFAULT_K = 48;

/** The value of `collapse` that is no column. */
export const NEAR_DUPLICATES = '1';

/** How much a part counts in the query. */
export const WEIGHTS = {like: 1, more: 0.7, less: -0.4};

const OWN = 'view image photo words more less crop text f k min collapse by sort ids details'.split(' ');
const listeners = new Set();

/**
 * What the address says now:
 * - view: one that the frame has a link to
 * - parts: [{image: ID}, {photo: TOKEN} or {words: TEXT}, each with role 'like' | 'more' | 'less' and crop {x, y, width, height} or
 *   null]
 * - text, filters [where expressions], k, min (lowest score) or null, collapse (NEAR_DUPLICATES, a column, 'folder' or ''),
 *   by ('semantic' or 'copy', what is compared), sort ('-taken': by this column, '' for none), ids [shown as they are], details (id) or null
 * - extra: whatever else it holds, by name; for the other views
 *
 * @returns {State}
 */
export function readState(search = location.search) {
  const params = new URLSearchParams(search);
  const view = params.get('view');
  const k = Number(params.get('k'));
  return {
    view: view !== null && isView(view) ? view : 'search',
    parts: readParts(params),
    text: params.get('text') ?? '',
    filters: [...new Set(params.getAll('f'))].filter(Boolean),
    k: Number.isInteger(k) && k >= 1 && k <= 1000 ? k : DEFAULT_K,
    min: readNumber(params.get('min')),
    collapse: params.get('collapse') ?? '',
    by: params.get('by') === 'copy' ? 'copy' : 'semantic',
    sort: params.get('sort') ?? '',
    ids: (params.get('ids') ?? '').split(',').flatMap(text => readId(text) ?? []),
    details: readId(params.get('details')),
    extra: Object.fromEntries([...params].filter(([name]) => !OWN.includes(name))),
  };
}

/**
 * Change the address: a new entry of the history, unless `replace`; then all listeners are called.
 *
 * @param {Partial<State>} change
 */
export function writeState(change, {replace = false} = {}) {
  const link = linkTo(change);
  if (link === linkTo({})) return;
  show(link, replace);
}

/**
 * The address that the present one becomes with a change: for real links. A change of the view keeps nothing else
 * but what the change itself says.
 *
 * @param {Partial<State>} change
 */
export function linkTo(change) {
  const now = readState();
  const other = change.view !== undefined && change.view !== now.view;
  return writeQuery({...(other ? readState('') : now), ...change});
}

/**
 * Call `run(state, {travelled})` after every change, `travelled` by Back or Forward; gives what ends it.
 *
 * @param {(state: State, how: {travelled: boolean}) => void} run
 */
export function onState(run) {
  listeners.add(run);
  return () => listeners.delete(run);
}

/** A name for a part, the same for the same image or words: 'i12', 'pTOKEN', 'wTEXT'. @param {Part} part */
export function partKey(part) {
  if (part.words !== undefined) return `w${part.words}`;
  return part.image !== undefined ? `i${part.image}` : `p${part.photo}`;
}

/** A click on a link within the page becomes a change of state; any other click is left to the browser. */
export function followLink(event) {
  const link = event.target.closest?.('a[href]');
  if (!link || event.defaultPrevented || event.button !== 0) return;
  if (event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  if (link.target || link.hasAttribute('download')) return;
  const url = new URL(link.href);
  if (url.origin !== location.origin || url.pathname !== location.pathname || url.hash) return;
  event.preventDefault();
  if (url.search === location.search) return;
  show(url.search || url.pathname);
}

/** How many steps Back stays within the page. */
export const depth = () => history.state?.depth ?? 0;

function show(link, replace = false) {
  const address = link === '?' ? location.pathname : link; // rather than an address that ends in a bare mark
  if (replace) history.replaceState(history.state, '', address);
  else history.pushState({depth: depth() + 1}, '', address);
  tell({travelled: false});
}

function tell(how) {
  const state = readState();
  for (const run of [...listeners]) run(state, how);
}

history.scrollRestoration = 'manual';
addEventListener('popstate', () => tell({travelled: true}));

const isView = name => document.querySelector(`nav a[data-view="${CSS.escape(name)}"]`) !== null;

function readParts(params) {
  const crops = new Map();
  for (const text of params.getAll('crop')) {
    const [key, numbers = ''] = text.split(':');
    const crop = readCrop(numbers);
    if (crop) crops.set(key, crop);
  }
  const parts = new Map();
  for (const [name, value] of params) {
    const part = readPart(name, value);
    if (part && !parts.has(partKey(part))) parts.set(partKey(part), part);
  }
  return [...parts].map(([key, part]) => ({...part, crop: crops.get(key) ?? null}));
}

/** @returns {Part | null} */
function readPart(name, value) {
  const roles = /** @type {Record<string, Role>} */ ({more: 'more', less: 'less'});
  const role = roles[name] ?? (['image', 'photo', 'words'].includes(name) ? 'like' : null);
  if (!role) return null;
  const words = name === 'words' ? value : /^words\.(.+)$/s.exec(value)?.[1];
  if (words !== undefined) return words.trim() ? {words, role, crop: null} : null;
  const token = name === 'photo' ? value : /^photo\.(.+)$/.exec(value)?.[1];
  if (token) return /^[\w-]{1,128}$/.test(token) ? {photo: token, role, crop: null} : null;
  const image = readId(value);
  return image === null ? null : {image, role, crop: null};
}

function readCrop(text) {
  const [x, y, width, height] = text.split(',').map(Number);
  const whole = [x, y, width, height].every(Number.isFinite);
  if (!whole || x < 0 || y < 0 || width <= 0 || height <= 0 || x + width > 1.0005 || y + height > 1.0005) return null;
  return {x, y, width: Math.min(width, 1 - x), height: Math.min(height, 1 - y)};
}

const readId = text => (/^\d{1,15}$/.test(text ?? '') ? Number(text) : null);

const readNumber = text => (text === null || text === '' || !Number.isFinite(Number(text)) ? null : Number(text));

/** @param {State} state */
function writeQuery(state) {
  const params = new URLSearchParams();
  if (state.view !== 'search') params.set('view', state.view);
  for (const part of state.parts) writePart(params, part);
  if (state.text) params.set('text', state.text);
  for (const filter of state.filters) params.append('f', filter);
  if (state.k !== DEFAULT_K) params.set('k', String(state.k));
  if (state.min !== null) params.set('min', String(state.min));
  if (state.collapse) params.set('collapse', state.collapse);
  if (state.by !== 'semantic') params.set('by', state.by);
  if (state.sort) params.set('sort', state.sort);
  if (state.ids.length) params.set('ids', state.ids.join(','));
  if (state.details !== null) params.set('details', String(state.details));
  for (const [name, value] of Object.entries(state.extra)) {
    if (value !== null && value !== undefined && value !== '') params.set(name, value);
  }
  return `?${params.toString().replaceAll('%2C', ',').replaceAll('%3A', ':')}`;
}

/** @param {URLSearchParams} params @param {Part} part */
function writePart(params, part) {
  const kind = part.words !== undefined ? 'words' : part.photo !== undefined ? 'photo' : 'image';
  const value = String(part.words ?? part.photo ?? part.image);
  if (part.role === 'like') params.append(kind, value);
  else params.append(part.role, kind === 'image' ? value : `${kind}.${value}`);
  if (part.crop) {
    const {x, y, width, height} = part.crop;
    const numbers = [x, y, width, height].map(number => Number(number.toFixed(4)));
    params.append('crop', `${partKey(part)}:${numbers.join(',')}`);
  }
}
