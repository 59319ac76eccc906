// Look at a class: its images as a grid, the least typical first; what does not belong is marked and set aside at once.

import {gallery, get, post, thumbnailUrl} from '../core/api.js';
import {isDialogOpen} from '../core/dialog.js';
import {button, count, make, refill, sentence, shownText} from '../core/dom.js';
import {registerKeys} from '../core/keys.js';
import {notice, showFailure} from '../core/loading.js';
import {announce, toast, toastError} from '../core/toast.js';
import {onState, readState, writeState} from '../core/url_state.js';
import {ClassOrder} from './class_order.js';
import {drawImages, enlargeOne, moveByArrows} from './class_grid.js';
import {drawReadOnly} from './review_bar.js';
import {makeQueue} from './review_list.js';

/** The decision about an image that is set aside. */
const SET_ASIDE = 'set_aside';
const MOST = 1000; // images of one step
const PREFETCHED = 24; // thumbnails of the next class

/** @typedef {AnswerOf<'labels/class', 'get'>} ClassImages */

/** Whether the address asks for a class. */
export const isLooking = (state = readState()) => state.view === 'labels' && Boolean(state.extra.look);

/** Show a class, or go back to the list with null. @param {string | null} label */
export const lookAt = label => writeState({extra: {...readState().extra, look: label}});

/** Fill `place`, which replaces `list` while the URL names a class; `past` has the steps to undo. */
export function startLook(place, {list, past}) {
  /** @type {ClassLook | null} */
  let look = null;
  const update = () => {
    if (readState().view !== 'labels') return;
    list.hidden = isLooking();
    place.hidden = !isLooking();
    if (!isLooking()) return;
    look ??= new ClassLook(place, past);
    look.show(readState().extra.look ?? '');
  };
  const key = (keys, does, run) => ({keys, does, run: () => (look ? run(look) : false)});
  const keys = [
    key(['ArrowRight', 'ArrowDown'], 'To the images; then arrows go through them', it => it.focusFirst()),
    key(['x'], 'Mark the image: it does not belong (also Space)', it => it.toggleFocused()),
    key(['s'], 'Set the marked images aside', it => it.setAside()),
    key(['b'], 'Bring marked images back', it => it.bringBack()),
    key(['n'], 'Next class', it => it.step(1)),
    key(['p'], 'Previous class', it => it.step(-1)),
    key(['z'], 'Enlarge', it => it.enlarge()),
    key(['u', 'Ctrl+z'], 'Undo the last decision', it => it.undo()),
    key(['Escape'], 'Mark none', it => it.clear()),
  ];
  registerKeys('labels', 'Look at a class', keys, {when: isLooking});
  onState(update);
  update();
}

class ClassLook {
  #label = '';
  /** @type {ClassImages | null} */
  #shown = null;
  /** @type {Set<number>} */
  #marked = new Set();
  /** @type {Map<number, number>} */
  #places = new Map(); // of the images as they were first shown, where they come back to
  /** @type {{step: number, label?: string}[]} */
  #past;
  /** @type {Map<string, Promise<ClassImages>>} */
  #coming = new Map();
  #canReview = false;
  #inTurn = makeQueue();

  constructor(place, past) {
    this.#past = past;
    this.order = new ClassOrder(lookAt);
    const act = (text, run, props = {}) => button(text, props, run);
    this.undoButton = act('Undo', () => this.undo(), {
      icon: 'undo',
      title: 'Undo the last decision (U)',
      disabled: true,
    });
    this.found = make('p', {role: 'status'});
    this.grid = make('ol', {class: 'class-grid', 'aria-label': 'Images of the class'});
    this.more = make('div.more-line');
    this.out = make('ol', {class: 'class-grid', 'aria-label': 'Images set aside'});
    this.outTitle = make('h3', 'Set aside');
    this.outNote = make('p.small.soft', 'Nothing of this class yet. Marked images come here, and can be brought back.');
    this.readOnly = make('div');
    const keys = 'Click or X marks, S sets aside, N goes to the next class, ? lists all keys.';
    this.hint = make('span.small.soft.push.review-hint', keys);
    this.bar = make('div', {class: 'review-several', role: 'group', 'aria-label': 'Marked images', hidden: true});
    this.body = make('div.class-columns', [
      make('div', this.grid, this.more),
      make('section.class-out', this.outTitle, this.outNote, this.out),
    ]);
    this.fault = make('div');
    refill(place, [
      make('div.view-head', [
        make('h2', 'Look at a class'),
        make('p.lead', 'The least typical images come first. Mark what does not belong, and set it aside.'),
      ]),
      this.readOnly,
      make('div.review-bar.class-bar', [
        act('Label issues', () => lookAt(null), {icon: 'label', title: 'Back to the list of label issues'}),
        this.order.choice,
        make('div', {class: 'segments', role: 'group', 'aria-label': 'Other classes'}, [
          act('Previous', () => this.step(-1), {title: 'Previous class (P)'}),
          act('Next class', () => this.step(1), {title: 'Next class (N)'}),
        ]),
        make('div.review-end', this.order.progress, this.undoButton),
      ]),
      make('div.row.review-line', [this.found, this.hint]),
      this.fault,
      this.body,
      this.bar,
    ]);
    for (const element of [this.grid, this.out]) {
      element.addEventListener('click', event => this.#press(event));
      element.addEventListener('keydown', moveByArrows);
    }
    addEventListener('labels-decided', () => this.#coming.clear());
  }

  /** Show a class, or load it again if it is shown already. @param {string} label */
  async show(label) {
    const isOther = label !== this.#label;
    if (isOther) {
      this.#label = label;
      this.#marked.clear();
      this.#places.clear();
      this.body.classList.add('stale');
    }
    try {
      const [answer] = await Promise.all([this.#fetch(label), this.#readAbout()]);
      if (label !== this.#label) return;
      refill(this.fault);
      this.#take(answer, isOther);
      this.#prefetch();
    } catch (error) {
      if (label === this.#label) showFailure(this.fault, error, () => this.show(label));
    } finally {
      this.body.classList.remove('stale');
    }
  }

  /** @param {string} label @returns {Promise<ClassImages>} */
  #fetch(label) {
    const coming = this.#coming.get(label) ?? get('labels/class', {label});
    this.#coming.delete(label);
    return coming;
  }

  async #readAbout() {
    const [{permissions}] = await Promise.all([gallery(), this.order.read()]);
    this.#canReview = permissions.review;
    refill(this.readOnly, drawReadOnly(this.#canReview));
    this.hint.hidden = !this.#canReview;
  }

  // What is shown next, with the thumbnails that are seen first, so that it is there at once.
  #prefetch() {
    const next = this.order.step(this.#label, 1);
    if (next === null || this.#coming.has(next)) return;
    const coming = get('labels/class', {label: next});
    this.#coming.set(next, coming);
    coming.then(
      ({images}) => {
        for (const {id} of images.slice(0, PREFETCHED)) new Image().src = thumbnailUrl(id);
      },
      () => this.#coming.delete(next),
    );
  }

  /** @param {ClassImages} answer */
  #take(answer, isOther) {
    for (const {id} of answer.images) if (!this.#places.has(id)) this.#places.set(id, isOther ? this.#places.size : -1);
    const placeOf = image => this.#places.get(image.id) ?? 0;
    answer.images.sort((one, other) => placeOf(one) - placeOf(other));
    this.#shown = answer;
    this.#draw();
    if (isOther) {
      scrollTo(0, 0);
      if (this.#canReview) this.focusFirst();
      announce(`${shownText(answer.label)}, ${count(answer.total, 'image')}`);
    }
  }

  #draw() {
    const {images, left_out: out, total, label, can_undo: canUndo} = /** @type {ClassImages} */ (this.#shown);
    const errors = this.order.errorsOf(label);
    const wrong = errors === null ? '' : errors < 0.5 ? ', hardly any wrong' : `, about ${Math.round(errors)} wrong`;
    refill(this.found, make('b', shownText(label)), ` · ${count(total, 'image')}${wrong}`);
    refill(this.grid, drawImages(images, {canMark: this.#canReview}));
    const left = total - images.length;
    const fetchMore = () => this.#fetchMore();
    refill(this.more, left > 0 && button(`Show more (${left.toLocaleString('en')} left)`, {}, fetchMore));
    const dropped = out.filter(({decision}) => decision?.decision === 'drop').length;
    const number = (some, words) => (some ? `${words} (${some.toLocaleString('en')})` : '');
    const titles = [number(out.length - dropped, 'set aside'), number(dropped, 'dropped')];
    this.outTitle.textContent = sentence(titles.filter(Boolean).join(', ') || 'set aside');
    this.outNote.hidden = out.length > 0;
    refill(this.out, drawImages(out, {canMark: this.#canReview}));
    if (!images.length) refill(this.more, notice({icon: 'check', title: 'No image has this label any more'}));
    this.undoButton.disabled = !canUndo;
    this.undoButton.hidden = !this.#canReview;
    this.order.draw(label);
    this.#drawMarks();
  }

  #drawMarks() {
    for (const node of this.body.querySelectorAll('.class-image')) {
      const isMarked = this.#marked.has(Number(node.dataset.id));
      if (this.#canReview) node.setAttribute('aria-pressed', String(isMarked));
    }
    const [here, out] = [this.#markedIn('images').length, this.#markedIn('left_out').length];
    this.bar.hidden = !here && !out;
    refill(this.bar, [
      make('b', {role: 'status'}, `${count(here + out, 'image')} marked`),
      here > 0
        && make('button', {class: 'button primary', onclick: () => this.setAside()}, [
          `Set ${here.toLocaleString('en')} aside`,
          make('kbd', {'aria-hidden': 'true'}, 'S'),
        ]),
      out > 0
        && make('button', {class: 'button', onclick: () => this.bringBack()}, [
          `Bring ${out.toLocaleString('en')} back`,
          make('kbd', {'aria-hidden': 'true'}, 'B'),
        ]),
      button('Mark none', {icon: 'close', iconOnly: true, class: 'quiet'}, () => this.clear()),
    ]);
  }

  /** Marked ids of the class, or of the images that are left out. @param {'images' | 'left_out'} part */
  #markedIn(part) {
    return (this.#shown?.[part] ?? []).map(image => image.id).filter(id => this.#marked.has(id));
  }

  #press(event) {
    const node = event.target.closest('.class-image');
    if (!node) return;
    if (this.#canReview) this.#toggle(Number(node.dataset.id));
    else this.enlarge();
  }

  #toggle(id) {
    if (!this.#marked.delete(id)) this.#marked.add(id);
    this.#drawMarks();
  }

  toggleFocused() {
    const id = this.#focusedId();
    if (id !== null && this.#canReview) this.#toggle(id);
  }

  #focusedId() {
    const node = /** @type {HTMLElement | null} */ (document.activeElement?.closest('.class-image') ?? null);
    return node && this.body.contains(node) ? Number(node.dataset.id) : null;
  }

  clear() {
    if (!this.#marked.size) return false;
    this.#clear(this.#marked);
  }

  /** @param {Iterable<number>} ids */
  #clear(ids) {
    for (const id of [...ids]) this.#marked.delete(id);
    this.#drawMarks();
  }

  focusFirst() {
    if (this.#focusedId() !== null) return false;
    this.grid.querySelector('.class-image')?.focus({preventScroll: true});
  }

  setAside() {
    if (!this.#canReview) return;
    const ids = this.#markedIn('images');
    if (ids.length) this.#decide(ids, SET_ASIDE, `${count(ids.length, 'image')} set aside`);
    else toast('Mark what does not belong first: click it, or press X.');
  }

  bringBack() {
    if (!this.#canReview) return;
    const ids = this.#markedIn('left_out');
    if (ids.length) this.#decide(ids, 'open', `${count(ids.length, 'image')} brought back`);
    else toast('Mark images that are set aside first: click them, or press X.');
  }

  /** One step for undo. @param {number[]} ids @param {'set_aside' | 'open'} decision */
  #decide(ids, decision, words) {
    if (ids.length > MOST) return toast(`At most ${MOST.toLocaleString('en')} images at once.`);
    const label = this.#label;
    this.#clear(ids);
    this.#inTurn(async () => {
      try {
        const decisions = ids.map(id => ({image_id: id, decision, label: null, label_seen: label}));
        const {step} = await post('labels/decisions', {decisions});
        this.#past.push({step, label});
        toast(words, {kind: 'good', action: {text: 'Undo', run: () => this.undo()}});
      } catch (error) {
        toastError(error);
      }
      await this.#showAgain(ids);
    });
  }

  // The focus goes to the image after the ones that left.
  async #showAgain(ids = /** @type {number[]} */ ([])) {
    const nodes = [...this.body.querySelectorAll('.class-image')];
    const focused = this.#focusedId();
    const from = nodes.findIndex(node => Number(node.dataset.id) === focused);
    const gone = new Set(ids);
    const rest = [...nodes.slice(Math.max(from, 0)), ...nodes.slice(0, Math.max(from, 0)).reverse()];
    const next = rest.map(node => Number(node.dataset.id)).find(id => !gone.has(id));
    await this.show(this.#label);
    if (next !== undefined && !isDialogOpen()) this.#focus(next);
  }

  /** @param {number} id */
  #focus(id) {
    this.body.querySelector(`.class-image[data-id="${id}"]`)?.focus({preventScroll: true});
  }

  async #fetchMore() {
    const shown = /** @type {ClassImages} */ (this.#shown);
    try {
      const {images} = await get('labels/class', {label: shown.label, offset: shown.images.length});
      if (shown !== this.#shown) return;
      const known = new Set(shown.images.map(image => image.id));
      const fresh = images.filter(image => !known.has(image.id));
      for (const {id} of fresh) this.#places.set(id, this.#places.size);
      this.#shown = {...shown, images: [...shown.images, ...fresh]};
      this.#draw();
    } catch (error) {
      toastError(error);
    }
  }

  undo() {
    if (!this.#canReview) return;
    this.#inTurn(async () => {
      const own = this.#past.pop();
      try {
        const {undone} = await post('labels/undo', own ? {step: own.step} : {});
        if (undone.length) toast(`Undone for ${count(undone.length, 'image')}`);
        else toast(own ? 'It was already undone' : 'Nothing to undo');
      } catch (error) {
        if (own) this.#past.push(own);
        toastError(error);
      }
      if (own?.label && own.label !== this.#label) lookAt(own.label);
      else await this.#showAgain();
    });
  }

  /** The next class, or the one before. @param {1 | -1} by */
  step(by) {
    const marks = this.#markedIn('images').length;
    if (marks) return toast(`${count(marks, 'image')} marked: S sets aside, Esc marks none.`);
    this.order.keepLooked(this.#label);
    const next = this.order.step(this.#label, by);
    if (next !== null) return lookAt(next);
    toast(by > 0 ? 'That was the last class.' : 'This is the first class.');
  }

  enlarge() {
    const id = this.#focusedId();
    if (id === null || !this.#shown) return;
    const {label, images, left_out: out} = this.#shown;
    enlargeOne([...images, ...out], {
      id,
      label,
      isMarked: one => this.#marked.has(one),
      toggle: this.#canReview ? one => this.#toggle(one) : null,
      onClose: one => this.#focus(one),
    });
  }
}
