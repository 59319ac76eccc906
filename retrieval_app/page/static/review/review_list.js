// Working list: items load page by page, one is current, decisions show at once and reach the server one after the other.

import {get, post} from '../core/api.js';
import {isDialogOpen} from '../core/dialog.js';
import {button, debounce, refill, sentence} from '../core/dom.js';
import {isUncertain} from '../core/label_trust.js';
import {showFailure} from '../core/loading.js';
import {replaceItems} from './replaced_items.js';
import {stateOf} from './review_bar.js';
import {announce, toast, toastError} from '../core/toast.js';
import {onState} from '../core/url_state.js';

const MOST = 200; // items of one response
const POLL_MS = 1500; // while it computes a newer list
const QUIET_MS = 800; // without a key or a move of the pointer, before the list is changed in place
let touchedAt = 0;
for (const name of ['keydown', 'pointerdown', 'pointerup', 'pointermove', 'wheel']) {
  addEventListener(name, () => (touchedAt = performance.now()), {capture: true, passive: true});
}

/** @typedef {{state: 'open' | 'decided' | 'set_aside' | 'all' | 'sample', label?: string, suggested?: string, kind?: string,
 *   labels_differ?: boolean}} ListFilter */

/**
 * List in `place`, with the links below it in `more`.
 *
 * path: route of the list; area: prefix of the routes to decide and undo; size: items of a page; readFilter() -> {state,
 * ...}: filter in the URL; keyOf(item): its key; idsOf(item): images that an undo names; drawItem(item) -> {node, redraw};
 * drawNothing(list); pack(changes) -> body of a decision; words(decision | null); onChange(list, answer?): the counts have
 * changed; onRecount(answer): the server counted again after decisions; onMove(item); isBusy(): whether the list must not
 * change now; past: steps to undo, if other views add steps too.
 *
 * A newer list, for instance after decisions have recalibrated the probabilities, replaces the shown one by itself.
 *
 * @template {{decision: Decision | null}} Item
 * @template {{decision: string}} Decision
 */
export class ReviewList {
  /** @type {Item[]} */
  items = [];
  cards = new Map();
  /** @type {Item | null} */
  current = null;
  total = 0;
  tally = {open: 0, decided: 0, setAside: 0, canUndo: false};
  /** @type {{step: number, before?: [Item, Decision | null][] | null}[]} */
  #past; // steps that were made here, the last one last
  #inTurn = makeQueue();
  #turn = 0;
  #made = 0; // decisions
  #busy = false;
  #posting = 0; // decisions on their way
  #isOutdated = false; // a newer list is there, or follows
  #isRenewing = false;
  /** @type {number | undefined} */
  #used; // decisions that the order shown takes into account
  #given;

  /**
   * @param {{
   *   path: 'labels/issues' | 'duplicates', area: 'labels' | 'duplicates', size: number, readFilter: () => ListFilter,
   *   keyOf: (item: Item) => any, idsOf: (item: Item) => number[], drawItem: (item: Item) => any,
   *   drawNothing: (list: any) => Child, pack: (changes: [Item, Decision | null][]) => any,
   *   words: (decision: Decision | null) => string, place: HTMLElement, more: HTMLElement,
   *   onChange: (list: any, answer?: any) => void, onRecount?: (answer: any) => void,
   *   onMove?: (item: Item) => void, isBusy?: () => boolean, past?: {step: number}[],
   * }} given
   */
  constructor(given) {
    this.#given = given;
    this.#past = given.past ?? [];
    this.filter = given.readFilter();
    addEventListener('labels-decided', () => {
      if (this.#posting) return;
      this.#isOutdated = true; // decided in another view, or by the bar of a selection
      this.#follow();
    });
    onState(() => this.#isOutdated && this.#follow());
  }

  /** @param {Item} item */
  #cardOf(item) {
    return this.cards.get(this.#given.keyOf(item));
  }

  /** Show an answer of the server: in place of the list if `fresh`, else behind it. */
  take(answer, fresh) {
    const {keyOf, drawItem, place} = this.#given;
    if (fresh) {
      Object.assign(this, {items: [], cards: new Map(), current: null});
      refill(place);
      this.#used = answer.decisions_used;
      this.#isOutdated = answer.is_updating;
      if (this.#isOutdated) this.#follow();
    }
    for (const item of answer.items) {
      if (this.#cardOf(item)) continue;
      this.items.push(item);
      this.cards.set(keyOf(item), drawItem(item));
      place.append(this.#cardOf(item).node);
    }
    this.#count(answer);
  }

  /** Show how many there are, below the list too. */
  #count(answer) {
    const {drawNothing, place, onChange} = this.#given;
    const {tally} = this;
    this.total = answer.total;
    Object.assign(tally, countsOf(answer), {canUndo: answer.can_undo ?? tally.canUndo});
    place.classList.toggle('all-decided', ['decided', 'set_aside'].includes(this.filter.state));
    if (!this.current && this.items.length) this.setCurrent(this.items[0]);
    if (!this.items.length) refill(place, drawNothing(this));
    this.#drawMore(answer.items.length > 0);
    onChange(this, answer);
  }

  #drawMore(goesOn) {
    const left = this.total - this.#countShown();
    const fetchMore = () => this.#fetchMore();
    const next = goesOn && left > 0 && button(`Show more (${left.toLocaleString('en')} left)`, {}, fetchMore);
    refill(this.#given.more, next);
    if (!next) return;
    const seen = (entries, watch) => {
      if (!entries.some(entry => entry.isIntersecting)) return;
      watch.disconnect();
      fetchMore();
    };
    new IntersectionObserver(seen, {rootMargin: '900px'}).observe(next);
  }

  // Items decided since stay visible, but the server no longer counts them.
  #countShown() {
    const {state} = this.filter;
    if (state === 'sample') {
      return this.items.filter(item => !item.decision || isUncertain(/** @type {any} */ (item.decision))).length;
    }
    return this.items.filter(item => state === 'all' || stateOf(item) === state).length;
  }

  /** Items of the list on the server, from an offset on. @returns {Promise<any>} */
  #ask(offset, limit = this.#given.size) {
    const parameters = /** @type {any} */ ({...this.filter, offset, limit});
    return this.#inTurn(() => get(this.#given.path, parameters));
  }

  async #fetchMore() {
    if (this.#busy) return;
    this.#busy = true;
    const now = this.#turn;
    try {
      const answer = await this.#ask(this.#countShown());
      if (now === this.#turn) this.take(answer, false);
    } catch (error) {
      toastError(error);
    } finally {
      this.#busy = false;
    }
  }

  /** Fetch again what the URL asks for. */
  async refresh() {
    const {place, readFilter} = this.#given;
    const now = (this.#turn += 1);
    this.filter = readFilter();
    place.classList.add('stale');
    try {
      const answer = await this.#ask(0);
      if (now !== this.#turn) return;
      for (const entry of this.#past) entry.before = null;
      this.take(answer, true);
      const above = (place.parentElement ?? place).getBoundingClientRect().top - 60;
      if (above < 0) window.scrollBy(0, above);
      announce(`${this.total.toLocaleString('en')} shown`);
    } catch (error) {
      showFailure(place, error, () => this.refresh());
    } finally {
      place.classList.remove('stale');
    }
  }

  // The same image may be decided with another one: the server counts, and counts again after a decision. It also
  // knows whether a newer list is ready, or follows.
  #follow = debounce(async () => {
    if (!this.#isShown() || this.#isRenewing) return;
    const made = this.#made;
    const answer = await this.#ask(0, 1).catch(() => null);
    if (!answer || made !== this.#made) return;
    Object.assign(this.tally, countsOf(answer));
    this.#given.onChange(this);
    this.#given.onRecount?.(answer);
    const isNewer = answer.decisions_used !== this.#used || (this.#isOutdated && !answer.is_updating);
    this.#isOutdated ||= isNewer || answer.is_updating;
    if (isNewer) await this.#renew().catch(() => null);
    if (this.#isOutdated) this.#followLater();
  }, 400);
  #followLater = debounce(() => this.#follow(), POLL_MS);

  /** Whether the server knows all decisions. */
  get isSettled() {
    return this.#posting === 0;
  }

  #isShown() {
    return this.#given.place.offsetParent !== null;
  }

  /** Whether the list may change now without disturbing the user. */
  #isQuiet() {
    const isBusy =
      this.#posting > 0 || isDialogOpen() || this.#given.isBusy?.() || document.querySelector('select:focus');
    return !isBusy && performance.now() - touchedAt > QUIET_MS;
  }

  /** Fetch the shown items again, and replace them as soon as that does not disturb the user. */
  async #renew() {
    this.#isRenewing = true;
    try {
      while (!this.#isQuiet()) await new Promise(done => setTimeout(done, QUIET_MS / 4));
      if (this.#isShown()) await this.#renewNow();
    } finally {
      this.#isRenewing = false;
    }
  }

  async #renewNow() {
    const [made, turn] = [this.#made, this.#turn];
    const size = Math.max(this.#given.size, this.#countShown());
    let answer = await this.#ask(0, Math.min(MOST, size));
    const items = answer.items;
    while (items.length < Math.min(size, answer.total)) {
      answer = await this.#ask(items.length, Math.min(MOST, size - items.length));
      if (!answer.items.length) break;
      items.push(...answer.items);
    }
    if (made !== this.#made || turn !== this.#turn || !this.#isQuiet()) return; // it is tried again
    this.#used = answer.decisions_used;
    this.#isOutdated = answer.is_updating;
    replaceItems(this, items, this.#given);
    for (const entry of this.#past) {
      if (!entry.before?.every(([item]) => this.items.includes(item))) entry.before = null;
    }
    this.#count(answer);
  }

  /** @param {Item} item */
  setCurrent(item) {
    if (this.current === item) return;
    if (this.current) this.#cardOf(this.current)?.node.classList.remove('current');
    this.current = item;
    this.#cardOf(item).node.classList.add('current');
  }

  /** Make it the current item, visible and focused. @param {Item} item */
  goTo(item) {
    this.setCurrent(item);
    const {node} = this.#cardOf(item);
    node.scrollIntoView({block: 'nearest'});
    if (!document.querySelector('dialog[open]')) node.focus({preventScroll: true});
    this.#given.onMove?.(item);
  }

  async step(by) {
    if (!this.current) return;
    const next = this.items.indexOf(this.current) + by;
    if (!this.items[next] && by > 0 && this.#given.more.firstChild) await this.#fetchMore();
    this.goTo(this.items[next] ?? this.current);
  }

  /**
   * One step for undo; shown at once, and undone if the server refuses.
   *
   * @param {[Item, Decision | null][]} changes
   * @param {{onward?: boolean}} how
   */
  decide(changes, {onward = false} = {}) {
    if (!changes.length) return;
    const {area, pack, words, onChange, onMove} = this.#given;
    const before = changes.map(([item]) => /** @type {[Item, Decision | null]} */ ([item, item.decision]));
    this.#made += 1;
    this.#posting += 1;
    this.#putAll(changes);
    this.#inTurn(() => post(/** @type {const} */ (`${area}/decisions`), pack(changes)))
      .then(
        answer => {
          this.#past.push({step: answer.step, before});
          this.tally.canUndo = answer.can_undo;
          onChange(this);
        },
        error => {
          this.#putAll(before);
          this.#fail(error);
        },
      )
      .finally(() => {
        this.#posting -= 1;
        this.#follow();
      });
    announce(changes.length === 1 ? words(changes[0][1]) : `${changes.length} decisions made`);
    if (onward) this.step(1);
    else if (this.current) onMove?.(this.current);
  }

  /**
   * Decide on shown and other items as one step, which the server chooses; false without a change if its choice no longer
   * has the body's digest.
   *
   * @param {'labels/accept' | 'duplicates/apply'} path
   */
  async accept(path, body, words) {
    try {
      const {step} = await this.#inTurn(() => post(path, body));
      if (step !== null) this.#past.push({step, before: null});
      toast(sentence(words));
      await this.refresh();
    } catch (error) {
      if (error.field === 'digest') return false;
      this.#fail(error);
    }
    return true;
  }

  /** @param {[Item, Decision | null][]} changes */
  #putAll(changes) {
    for (const [item, decision] of changes) {
      this.tally[TALLIES[stateOf(item)]] -= 1;
      item.decision = decision;
      this.tally[TALLIES[stateOf(item)]] += 1;
      this.#cardOf(item)?.redraw();
      this.#given.onChange(this);
    }
  }

  async undo() {
    const {idsOf, onChange} = this.#given;
    this.#made += 1;
    this.#posting += 1;
    try {
      const {own, answer} = await this.#inTurn(() => this.#undoLast());
      this.tally.canUndo = answer.can_undo;
      const ids = new Set(answer.undone);
      const isUndone = item => idsOf(item).some(id => ids.has(id));
      if (!ids.size) {
        toast(own ? 'It was already undone' : 'Nothing to undo');
        if (own) await this.refresh();
        else onChange(this);
        return;
      }
      if (own?.before?.every(([item]) => isUndone(item))) this.#putAll(own.before);
      else await this.refresh(); // it was decided elsewhere, or before
      const item = this.items.find(isUndone);
      if (item) this.goTo(item);
      announce('Undone');
    } catch (error) {
      this.#fail(error);
    } finally {
      this.#posting -= 1;
      this.#follow();
    }
  }

  // Undo the last step made here, by its number, and never a later step of another user.
  async #undoLast() {
    const own = this.#past.pop();
    try {
      return {own, answer: await post(/** @type {const} */ (`${this.#given.area}/undo`), own ? {step: own.step} : {})};
    } catch (error) {
      if (own) this.#past.push(own);
      throw error;
    }
  }

  // Fetch the list again where others decided meanwhile, or where it is unknown whether the server did it.
  #fail(error) {
    toastError(error);
    if (['conflict', 'not_found', 'timeout'].includes(error.code)) this.refresh();
  }
}

/** @type {Record<string, 'open' | 'decided' | 'setAside'>} */
const TALLIES = {open: 'open', decided: 'decided', set_aside: 'setAside'};

const countsOf = ({open, decided, set_aside: setAside = 0}) => ({open, decided, setAside});

/** Requests one after the other, so that an undo never overtakes a decision. */
export function makeQueue() {
  /** @type {Promise<unknown>} */
  let last = Promise.resolve();
  /** @template T @param {() => Promise<T>} run @returns {Promise<T>} */
  return run => {
    const turn = last.then(run);
    last = turn.catch(() => null);
    return turn;
  };
}
