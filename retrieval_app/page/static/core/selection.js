// Selected images, by their ids or as all that a search finds, and the bar at the foot with what can be done with them.

import {askBulkLabel, askTag, dropImages} from './bulk.js';
import {button, count, make, refill} from './dom.js';
import {openExport} from './export_command.js';
import {download, get, withGallery} from './api.js';
import {registerKeys} from './keys.js';
import {announce, toast, toastError} from './toast.js';
import {onState, readState, writeState} from './url_state.js';

/** @typedef {{where: string, text: string | null, count: number}} Whole all images that a filter finds */

const VIEWS = ['search', 'map', 'problems', 'duplicates'];
const NARROW = matchMedia('(max-width: 760px)').matches;
const PAGE = 500;
const listeners = new Set();
/** @type {Set<number>} */
const ids = new Set();
/** @type {Whole | null} */
let whole = null;
/** @type {Set<number>} */
const except = new Set(); // of the whole
let element = null;
let facts = null;
/** @typedef {{shown: () => number[], all: () => ({text: string, run: () => void} | null)}} Shown */
/** @type {Map<string, Shown>} */
const shownIn = new Map();
const results = () => shownIn.get(readState().view);

export const size = () => (whole ? whole.count - except.size : ids.size);

/** Say what there is to select in a view: `shown()` ids, and `all()`, a button for more. @param {Shown} given */
export function offer(view, given) {
  shownIn.set(view, given);
}

/** Call `run({has})` after every change, which tells of an id whether it is selected; gives what ends it. */
export function onSelection(run) {
  listeners.add(run);
  return () => listeners.delete(run);
}

/** @param {Iterable<number>} next */
export function select(next) {
  const list = [...next];
  whole = null;
  ids.clear();
  for (const id of list) ids.add(id);
  update();
}

/** Select all that a filter finds, shown or not. @param {Whole} next */
export function selectWhole(next) {
  ids.clear();
  except.clear();
  whole = next;
  update();
}

/** Select nothing; false where nothing was selected. */
export function clear() {
  if (size() === 0) return false;
  select([]);
  return true;
}

export function toggle(id) {
  const chosen = whole ? except : ids;
  if (!chosen.delete(id)) chosen.add(id);
  if (whole && size() === 0) whole = null;
  update();
}

/** All between two, as they stand on the page. */
export function extend(from, to) {
  if (whole) return;
  const order = results()?.shown() ?? [];
  const [start, end] = [order.indexOf(from), order.indexOf(to)].sort((one, other) => one - other);
  select([...ids, ...(start < 0 ? [to] : order.slice(start, end + 1))]);
}

function update() {
  attach();
  document.body.classList.toggle('selecting', size() > 0);
  draw();
  const has = id => (whole ? !except.has(id) : ids.has(id));
  for (const run of listeners) run({has});
  announce(`${size()} selected`);
}

/** Put the bar on the page, once. */
function attach() {
  if (element) return;
  element = make('div', {class: 'app selection', role: 'toolbar', 'aria-label': 'Selection', hidden: true});
  document.body.append(element);
  onState(draw);
  withGallery(given => {
    facts = given;
    draw();
  });
}

const named = name => ({class: 'small', dataset: {name}});

function draw() {
  element.hidden = size() === 0 || !VIEWS.includes(readState().view);
  if (element.hidden || !facts) return;
  const {limits, permissions} = facts;
  const focused = element.querySelector(':focus')?.dataset.name;
  const all = !whole && results()?.all();
  const searches = !whole && ids.size <= limits.max_queries;
  refill(element, [
    make('strong.figures', `${size().toLocaleString('en')} selected`),
    all && button(all.text, named('all'), all.run),
    permissions.review && [
      button('Set label…', {icon: 'label', title: 'Shift + L', ...named('label')}, setLabel),
      button('Tag…', {icon: 'plus', title: 'T', ...named('tag')}, setTag),
      button('Drop', {title: 'Leave them out of results and label files (Shift + D)', ...named('drop')}, drop),
    ],
    searches
      && button(NARROW ? 'Search' : 'Search with these', {icon: 'search', ...named('search')}, () => {
        const parts = [...ids].map(image => ({image, role: /** @type {const} */ ('like'), crop: null}));
        writeState({view: 'search', parts, ids: [], details: null});
        scrollTo(0, 0);
      }),
    saver('csv', limits.max_export_csv, 'Ids, paths, labels and metadata as a table'),
    saver('zip', limits.max_export_zip, 'The images, and the table, which says of each that cannot be read why'),
    permissions.review
      && button(
        'Data set…',
        {icon: 'download', title: 'The command that exports them for training', ...named('data')},
        exportThem,
      ),
    button('Clear', {icon: 'close', class: 'quiet small', dataset: {name: 'clear'}}, () => select([])),
  ]);
  if (focused) element.querySelector(`[data-name="${focused}"]`)?.focus();
}

function saver(format, most, contents) {
  const refusal = size() > most ? `At most ${most.toLocaleString('en')} at once` : null;
  const given = {
    class: 'small save-selected',
    icon: 'download',
    disabled: refusal !== null,
    title: refusal ?? contents,
    dataset: {name: format},
  };
  return button(format.toUpperCase(), given, () => save(format));
}

async function save(format) {
  const close = format === 'zip' || whole ? toast(`Packing ${count(size(), 'image')}…`) : () => {};
  try {
    const chosen = whole ? await listIds(whole) : [...ids];
    await download('export', {ids: chosen, format});
    const saved = format === 'zip' ? 'Images and table' : 'Table';
    toast(`${saved} of ${count(chosen.length, 'image')} saved`, {kind: 'good'});
  } catch (error) {
    toastError(error);
  } finally {
    close();
  }
}

/** @param {Whole} given */
async function listIds(given) {
  const {where, text} = filterOf(given);
  const found = [];
  for (let after = -1; ;) {
    const page = await get('images', {where, text, after, limit: PAGE});
    found.push(...page.images.map(image => image.id));
    if (page.next_after === null) return found;
    after = page.next_after;
  }
}

/** @param {Whole} given */
function filterOf({where, text}) {
  return {where: except.size ? `(${where}) AND id NOT IN (${[...except].join(', ')})` : where, text};
}

/** The selection as the API takes it. */
function asBody() {
  return whole ? {...filterOf(whole), count: size()} : {ids: [...ids]};
}

function exportThem() {
  const {where, text} = whole ? filterOf(whole) : {where: `id IN (${[...ids].join(', ')})`, text: null};
  if (text) toast('A command takes no search by words: tag these images (T), and export the tag.');
  else openExport(where === 'id >= 0' ? null : where);
}

function setLabel() {
  if (canChange()) askBulkLabel({body: asBody(), amount: size(), done: () => select([])});
}

function setTag() {
  if (canChange()) askTag({body: asBody(), amount: size()});
}

function drop() {
  if (canChange()) dropImages({body: asBody(), done: () => select([])});
}

function canChange() {
  if (size() > 0 && facts?.permissions.review) return true;
  if (size() === 0) toast('Select images first: X selects the one that has the focus.');
  return false;
}

function selectAll() {
  const all = results()?.all();
  if (!all) return false;
  all.run();
  return true;
}

for (const view of VIEWS) {
  registerKeys(view, 'Selection', [
    {keys: ['Ctrl+a'], does: 'Select all that were found', run: selectAll},
    {keys: ['Shift+l'], does: 'Set the label of the selected images', run: setLabel},
    {keys: ['t'], does: 'Tag the selected images', run: setTag},
    {keys: ['Shift+d'], does: 'Drop the selected images', run: drop},
    {keys: ['Escape'], does: 'Clear the selection', run: () => clear()},
  ]);
}
