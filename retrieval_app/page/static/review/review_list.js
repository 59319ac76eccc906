// A working list: items come page by page, one of them is current, decisions show at once and reach the server in turn.

import {get, post} from '../core/api.js';
import {button, debounce, refill} from '../core/dom.js';
import {showFailure} from '../core/loading.js';
import {announce, toast, toastError} from '../core/toast.js';

/** @typedef {{state: 'open' | 'decided' | 'all', label?: string, suggested?: string}} ListFilter */

/**
 * @template Item, Decision
 * @typedef {{
 *   items: Item[], cards: Map<any, any>, current: Item | null, filter: ListFilter,
 *   total: number, tally: {open: number, decided: number, canUndo: boolean},
 *   take: (answer: any, fresh: boolean) => void, refresh: () => void, setCurrent: (item: Item) => void,
 *   goTo: (item: Item) => void, step: (by: number) => void, undo: () => void,
 *   decide: (changes: [Item, Decision | null][], how?: {onward?: boolean}) => void,
 * }} ReviewList
 */

/**
 * The list in `place`, with what leads on in `more`.
 *
 * path: the list's route, area: of those that decide and undo; size: of a page; readFilter() -> {state, ...}: what the address asks for;
 * keyOf(item): its name; idsOf(item): the images an undo speaks of; drawItem(item) -> {node, redraw}; drawNothing(list);
 * pack(changes) -> body of a decision; words(decision | null); onChange(list, answer?): counts are others; onMove(item).
 *
 * @template {{decision: Decision | null}} Item
 * @template Decision
 * @param {{
 *   path: 'labels/doubts' | 'duplicates', area: 'labels' | 'duplicates', size: number, readFilter: () => ListFilter,
 *   keyOf: (item: Item) => any, idsOf: (item: Item) => number[], drawItem: (item: Item) => any,
 *   drawNothing: (list: any) => Child, pack: (changes: [Item, Decision | null][]) => any,
 *   words: (decision: Decision | null) => string, place: HTMLElement, more: HTMLElement,
 *   onChange: (list: any, answer?: any) => void, onMove?: (item: Item) => void,
 * }} given
 * @returns {ReviewList<Item, Decision>}
 */
export function makeReviewList({
  path,
  area,
  size,
  readFilter,
  keyOf,
  idsOf,
  drawItem,
  drawNothing,
  pack,
  words,
  place,
  more,
  onChange,
  onMove = () => {},
}) {
  const inTurn = makeQueue();
  /** @type {{step: number, before: [Item, Decision | null][] | null}[]} */
  const past = [];
  /** @type {ReviewList<Item, Decision>} */
  const list = {
    items: [],
    cards: new Map(),
    current: null,
    filter: readFilter(),
    total: 0,
    tally: {open: 0, decided: 0, canUndo: false},
    take,
    refresh,
    setCurrent,
    goTo,
    step,
    decide,
    undo,
  };
  let turn = 0;
  let busy = false;

  function take(answer, fresh) {
    const {tally} = list;
    if (fresh) {
      Object.assign(list, {items: [], cards: new Map(), current: null});
      refill(place);
    }
    list.total = answer.total;
    Object.assign(tally, {open: answer.open, decided: answer.decided, canUndo: answer.can_undo ?? tally.canUndo});
    for (const item of answer.items) {
      if (list.cards.has(keyOf(item))) continue;
      list.items.push(item);
      list.cards.set(keyOf(item), drawItem(item));
      place.append(list.cards.get(keyOf(item)).node);
    }
    place.classList.toggle('all-decided', list.filter.state === 'decided');
    if (!list.current && list.items.length) setCurrent(list.items[0]);
    if (!list.items.length) refill(place, drawNothing(list));
    drawMore(answer.items.length > 0);
    onChange(list, answer);
  }
  function drawMore(goesOn) {
    const left = list.total - countShown();
    const next = goesOn && left > 0 && button(`Show more (${left.toLocaleString('en')} left)`, {}, fetchMore);
    refill(more, next);
    if (!next) return;
    new IntersectionObserver(
      (seen, watch) => {
        if (!seen.some(entry => entry.isIntersecting)) return;
        watch.disconnect();
        fetchMore();
      },
      {rootMargin: '900px'},
    ).observe(next);
  }
  // What was decided since stays in sight, but is not among those that the server counts any more.
  const countShown = () =>
    list.items.filter(
      item => list.filter.state === 'all' || (item.decision !== null) === (list.filter.state === 'decided'),
    ).length;
  async function fetchMore() {
    if (busy) return;
    busy = true;
    const now = turn;
    try {
      const answer = await inTurn(() => get(path, {...list.filter, offset: countShown(), limit: size}));
      if (now === turn) take(answer, false);
    } catch (error) {
      toastError(error);
    } finally {
      busy = false;
    }
  }
  async function refresh() {
    const now = (turn += 1);
    list.filter = readFilter();
    place.classList.add('stale');
    try {
      const answer = await inTurn(() => get(path, {...list.filter, offset: 0, limit: size}));
      if (now !== turn) return;
      for (const entry of past) entry.before = null;
      take(answer, true);
      const above = (place.parentElement ?? place).getBoundingClientRect().top - 60;
      if (above < 0) window.scrollBy(0, above);
      announce(`${list.total.toLocaleString('en')} shown`);
    } catch (error) {
      showFailure(place, error, refresh);
    } finally {
      place.classList.remove('stale');
    }
  }
  // The same picture may be decided with another one: the server counts.
  const recount = debounce(
    () =>
      inTurn(() => get(path, {...list.filter, offset: 0, limit: 1})).then(
        ({open, decided}) => {
          Object.assign(list.tally, {open, decided});
          onChange(list);
        },
        () => null,
      ),
    400,
  );

  function setCurrent(item) {
    if (list.current === item) return;
    if (list.current) list.cards.get(keyOf(list.current))?.node.classList.remove('current');
    list.current = item;
    list.cards.get(keyOf(item)).node.classList.add('current');
  }
  function goTo(item) {
    setCurrent(item);
    const {node} = list.cards.get(keyOf(item));
    node.scrollIntoView({block: 'nearest'});
    if (!document.querySelector('dialog[open]')) node.focus({preventScroll: true});
    onMove(item);
  }
  async function step(by) {
    if (!list.current) return;
    const next = list.items.indexOf(list.current) + by;
    if (!list.items[next] && by > 0 && more.firstChild) await fetchMore();
    goTo(list.items[next] ?? list.current);
  }

  /**
   * One step for undo; shown at once, and taken back if the server refuses.
   *
   * @param {[Item, Decision | null][]} changes
   * @param {{onward?: boolean}} how
   */
  function decide(changes, {onward = false} = {}) {
    if (!changes.length) return;
    const before = changes.map(([item]) => /** @type {[Item, Decision | null]} */ ([item, item.decision]));
    for (const [item, decision] of changes) put(item, decision);
    inTurn(() => post(/** @type {const} */ (`${area}/decisions`), pack(changes))).then(
      answer => {
        past.push({step: answer.step, before});
        list.tally.canUndo = answer.can_undo;
        onChange(list);
        recount();
      },
      error => {
        for (const [item, decision] of before) put(item, decision);
        fail(error);
      },
    );
    announce(changes.length === 1 ? words(changes[0][1]) : `${changes.length} decisions made`);
    if (onward) step(1);
    else if (list.current) onMove(list.current);
  }
  /** @param {Item} item @param {Decision | null} decision */
  function put(item, decision) {
    const added = Number(decision !== null) - Number(item.decision !== null);
    list.tally.open -= added;
    list.tally.decided += added;
    item.decision = decision;
    list.cards.get(keyOf(item))?.redraw();
    onChange(list);
  }
  async function undo() {
    try {
      const {own, answer} = await inTurn(undoLast);
      list.tally.canUndo = answer.can_undo;
      const ids = new Set(answer.undone);
      if (!ids.size) {
        toast(own ? 'It was taken back before' : 'Nothing to undo');
        if (own) await refresh();
        else onChange(list);
        return;
      }
      if (own?.before?.every(([item]) => idsOf(item).some(id => ids.has(id)))) {
        for (const [item, decision] of own.before) put(item, decision);
      } else await refresh(); // it was decided elsewhere, or before
      const item = list.items.find(candidate => idsOf(candidate).some(id => ids.has(id)));
      if (item) goTo(item);
      announce('Undone');
      recount();
    } catch (error) {
      fail(error);
    }
  }
  // The last step that was made here, by its number, so that nobody's later one is taken back for it.
  async function undoLast() {
    const own = past.pop();
    try {
      return {own, answer: await post(/** @type {const} */ (`${area}/undo`), own ? {step: own.step} : {})};
    } catch (error) {
      if (own) past.push(own);
      throw error;
    }
  }
  // Where others decided meanwhile, or nobody knows whether the server has done it, the list is asked for anew.
  function fail(error) {
    toastError(error);
    if (['conflict', 'timeout'].includes(error.code)) refresh();
  }
  return list;
}

/** One after the other, so that an undo never overtakes a decision. */
function makeQueue() {
  /** @type {Promise<unknown>} */
  let last = Promise.resolve();
  /** @template T @param {() => Promise<T>} run @returns {Promise<T>} */
  return run => {
    const turn = last.then(run);
    last = turn.catch(() => null);
    return turn;
  };
}
