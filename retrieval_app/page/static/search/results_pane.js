// The results with their line above: fetched, shown, continued, restored on Back, or replaced by a notice.

import {button, count, make, refill, sentence} from '../core/dom.js';
import {isAborted, withGallery} from '../core/api.js';
import {precisionLegend} from '../core/precision.js';
import {drawSkeletons} from './grid.js';
import {kindOf, openResults, resultsKey, whereOf} from './results.js';
import {select, selectWhole} from '../core/selection.js';
import {drawEmpty, drawFailure, findLostPhotos} from './search_notices.js';
import {announce, toast, toastError} from '../core/toast.js';
import {WEIGHTS, readState, writeState} from '../core/url_state.js';

/** @typedef {ReturnType<typeof openResults>} Results */

/** A button that makes the words, as they were read, a condition. @param {WordsAnswer} words */
function drawOnly({understood}) {
  const text = Object.entries(understood).flatMap(([word, terms]) => (word.startsWith('-') ? [] : terms.slice(0, 1)));
  const narrow = () => writeState({parts: [], text: text.join(' ').replaceAll('*', '')});
  return button('Only these', {icon: 'filter', class: 'quiet small', title: 'Only images with these words'}, narrow);
}

const ORDERS = {'': 'As indexed', '-taken': 'Newest first', taken: 'Oldest first'};

/** The order of images that are browsed; hidden where no file says when it was taken. Has `element`, `update(state)`. */
function makeOrder() {
  const options = Object.entries(ORDERS).map(([value, named]) => make('option', {value}, named));
  const change = event => writeState({sort: event.target.value});
  const element = make(
    'select',
    {class: 'select order', 'aria-label': 'Order', hidden: true, onchange: change},
    options,
  );
  let isDated = false;
  function update(state) {
    element.value = state.sort in ORDERS ? state.sort : '';
    element.hidden = !isDated || kindOf(state) !== 'browsing';
  }
  withGallery(({metadata_columns: columns}) => {
    isDated = columns.includes('taken');
    update(readState());
  });
  return {element, update};
}

const REMEMBERED = 12;
const AHEAD = '600px';
const NO_TEXT = '\u00a0';

/**
 * The pane around a grid. Calls `refused(message)` for conditions that the server refuses, `filled()` for results
 * that are shown now, `retried()` of Retry.
 */
export class ResultsPane {
  #grid;
  #refused;
  #filled;
  #retried;
  #edge;
  /** @type {Results | null} */
  #results = null;
  /** @type {string | null} */
  #key = null;
  #running = new AbortController();
  #failed = false;
  #closeNotice = () => {};
  #remembered = new Map(); // results by key, so that Back shows them at once, where they were left
  #status = make('h2.found', NO_TEXT);
  #legend = precisionLegend();
  #order = makeOrder();
  #place = make('div.results');
  #more = button('Show more', {class: 'more', hidden: true}, () => this.#loadMore({focus: true}));

  constructor(grid, {refused, filled, retried}) {
    this.#grid = grid;
    this.#refused = refused;
    this.#filled = filled;
    this.#retried = retried;
    this.#legend.hidden = true;
    this.elements = [make('div.status-row', this.#status, this.#order.element, this.#legend), this.#place, this.#more];
    const seen = entries => entries.some(entry => entry.isIntersecting) && this.#loadMore();
    this.#edge = new IntersectionObserver(seen, {rootMargin: AHEAD});
  }

  /** Keep the place that the page is scrolled to. */
  keepPlace() {
    if (this.#results) this.#results.scroll = scrollY;
  }

  /** Show the results of a state, unless they are shown; true if there was something to do. */
  show(state, {travelled = false, again = false} = {}) {
    this.#order.update(state);
    const key = resultsKey(state);
    if (key === this.#key && !again) return false;
    this.#running.abort();
    this.#running = new AbortController();
    this.#failed = false;
    const first = this.#key === null;
    this.#key = key;
    const known = travelled ? this.#remembered.get(key) : undefined;
    if (known) {
      this.#results = known;
      this.#fill(known);
      scrollTo(0, known.scroll);
    } else {
      this.#results = openResults(state, WEIGHTS);
      if (first || !this.#grid.element.isConnected) refill(this.#place, drawSkeletons(12));
      this.#wait();
      this.#load(state, this.#results);
    }
    return true;
  }

  /** Forget what was fetched; the shown results stay until another view or search is shown. */
  forget({shown}) {
    this.#remembered.clear();
    if (!shown) this.#key = null;
  }

  /** Fetch the shown results again; a failure stays until the user retries. @param {State} state */
  refresh(state) {
    if (!this.#failed) this.show(state, {again: true});
  }

  /** The button that selects all that was found, and what it does; null where nothing was. */
  selectAll() {
    const results = this.#results;
    if (!results || results.items.length === 0) return null;
    const {kind, items, total, done} = results;
    const {filters, text, min} = readState();
    if (kind === 'browsing' && total !== null) {
      const whole = {where: whereOf(filters) ?? 'id >= 0', text: text || null, count: total};
      return {text: `Select all ${total.toLocaleString('en')}`, run: () => selectWhole(whole)};
    }
    const isEndless = kind === 'ranking' && min === null;
    const all = () => select(results.items.map(item => item.id));
    if (done || isEndless) {
      return {text: `Select all ${items.length.toLocaleString('en')}${done ? '' : ' shown'}`, run: all};
    }
    return {text: 'Select all', run: () => this.#loadAll(results).then(all, toastError)};
  }

  /** @param {Results} results */
  async #loadAll(results) {
    while (!results.done && results === this.#results) {
      this.#grid.append(await results.next(this.#running.signal));
    }
    this.#tell(results);
    this.#settle(results);
  }

  /** @param {State} state @param {Results} results */
  async #load(state, results) {
    try {
      await results.next(this.#running.signal);
      if (results !== this.#results) return;
      this.#remember(results); // not before, or Back would find nothing in what was left too soon
      this.#fill(results);
      if (this.#place.getBoundingClientRect().top < 0) scrollTo(0, 0);
      this.#filled();
      announce(this.#status.textContent);
      if (results.collapsed === false) this.#tellUncollapsed();
    } catch (error) {
      if (isAborted(error) || results !== this.#results) return;
      await this.#fail(error, state);
    }
  }

  #tellUncollapsed() {
    const action = {text: 'Search again', run: () => this.show(readState(), {again: true})};
    this.#closeNotice(); // of the search before
    this.#closeNotice = toast('Near-duplicates are still being looked for; nothing is collapsed yet.', {action});
  }

  async #loadMore({focus = false} = {}) {
    const results = this.#results;
    if (!results || results.done || results.loading || results.items.length === 0) return;
    results.loading = true;
    this.#more.textContent = 'Loading…';
    try {
      const items = await results.next(this.#running.signal);
      if (results !== this.#results) return;
      this.#grid.append(items);
      if (focus && items.length > 0) this.#grid.focus(items[0].id);
      this.#tell(results);
      this.#watchEdge();
    } catch (error) {
      const action = {text: 'Retry', run: () => this.#loadMore()};
      if (!isAborted(error)) toast(error.message, {kind: 'bad', action});
    } finally {
      results.loading = false;
      this.#more.textContent = 'Show more';
      if (results === this.#results) this.#settle(results);
    }
  }

  /** Observe the end again: an observer reports changes only, and a short page may leave the end where it was. */
  #watchEdge() {
    this.#edge.unobserve(this.#more);
    this.#edge.observe(this.#more);
  }

  /** @param {Results} results */
  #remember(results) {
    this.#remembered.delete(this.#key);
    this.#remembered.set(this.#key, results);
    if (this.#remembered.size > REMEMBERED) this.#remembered.delete(this.#remembered.keys().next().value);
  }

  #wait() {
    this.#place.classList.add('loading');
    this.#place.setAttribute('aria-busy', 'true');
    this.#more.hidden = true;
  }

  /** @param {Results} results */
  #settle({done, items}) {
    this.#place.classList.remove('loading');
    this.#place.removeAttribute('aria-busy');
    this.#more.hidden = done || items.length === 0;
    this.#legend.hidden = !items.some(item => item.precision_at_score);
  }

  /** @param {Results} results */
  #fill(results) {
    const {items} = results;
    this.#settle(results);
    if (items.length === 0) {
      this.#status.textContent = 'Nothing found';
      refill(this.#place, drawEmpty(readState()));
      return;
    }
    const held = this.#place.contains(document.activeElement);
    if (!this.#grid.element.isConnected) refill(this.#place, this.#grid.element);
    this.#grid.fill(items);
    if (held) this.#place.closest('.view')?.focus({preventScroll: true}); // from where the arrow keys go on
    this.#tell(results);
    this.#watchEdge();
  }

  async #fail(error, state) {
    this.#failed = true;
    const lost = [404, 410].includes(error.status) ? await findLostPhotos(state.parts) : [];
    if (error.status === 422 && state.filters.length > 0) this.#refused(sentence(error.message));
    this.#wait();
    this.#place.classList.remove('loading');
    this.#place.removeAttribute('aria-busy');
    this.#legend.hidden = true;
    this.#status.textContent = NO_TEXT;
    const retry = () => {
      this.#retried();
      this.show(readState(), {again: true});
    };
    refill(this.#place, drawFailure(error, {state, lost, retry}));
  }

  /** @param {Results} results */
  #tell({kind, items, total, tookMs, done, words}) {
    if (kind === 'ranking') {
      const number = done ? count(items.length, 'result') : `${items.length.toLocaleString('en')} nearest`;
      const time = tookMs !== null && `in ${tookMs < 10 ? tookMs.toFixed(1) : Math.round(tookMs)} ms`;
      const read = words && make('span.soft', ` \u00b7 ${words.explanation}`);
      const only = words && words.images > 0 && drawOnly(words);
      refill(this.#status, number, time && make('span.soft', ` ${time}`), read, only);
      return;
    }
    const {text, filters} = readState();
    const images = count(total ?? items.length, kind === 'named' ? 'chosen image' : 'image');
    const all = kind === 'browsing' && !text && filters.length === 0;
    this.#status.textContent = all ? `All ${images}` : kind === 'named' ? images : `${images} found`;
  }
}
