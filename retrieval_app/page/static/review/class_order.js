// Order of the classes to review, the most wrong labels first, and the classes that were reviewed in this session.

import {gallery, get} from '../core/api.js';
import {count, make, refill, shownText} from '../core/dom.js';
import {keep, readKept} from '../core/kept.js';

const LOOKED = 'classes-looked-at';

export class ClassOrder {
  /** @type {AnswerOf<'labels/classes', 'get'>['classes']} */
  #classes = [];
  /** @type {Set<string>} */
  #looked = new Set();
  #name = '';

  /** @param {(label: string) => void} choose */
  constructor(choose) {
    this.choice = make('select', {
      class: 'select class-choice',
      'aria-label': 'Class',
      onchange: () => choose(this.choice.value),
    });
    this.track = make('div', {class: 'progress', role: 'progressbar', 'aria-label': 'Looked at', 'aria-valuemin': 0});
    this.words = make('span', {class: 'figures', role: 'status'});
    this.progress = make('div.review-done', this.track, this.words);
  }

  /** Read the classes; the order stays that of the first estimates, or the next class would change. */
  async read() {
    const [{name}, {classes}] = await Promise.all([gallery(), get('labels/classes')]);
    const now = new Map(classes.map(one => [one.label, one]));
    const isRanked = this.#classes.some(one => one.errors !== null);
    const before = isRanked ? this.#classes.map(one => now.get(one.label) ?? {...one, images: 0, errors: 0}) : [];
    const known = new Set(before.map(one => one.label));
    this.#classes = [...before, ...classes.filter(one => !known.has(one.label))];
    this.#name = name;
    try {
      this.#looked = new Set(JSON.parse(readKept(`${LOOKED}/${name}`, {session: true}) ?? '[]'));
    } catch {
      this.#looked = new Set();
    }
  }

  /** The first class that was not looked at; null where there is no class. */
  first() {
    return (this.#classes.find(one => !this.#looked.has(one.label)) ?? this.#classes[0])?.label ?? null;
  }

  /** The next class or the one before; null at the end. @param {string} label @param {1 | -1} by */
  step(label, by) {
    return this.#classes[this.#classes.findIndex(one => one.label === label) + by]?.label ?? null;
  }

  /** Estimated wrong labels; null where they are not known. @param {string} label */
  errorsOf(label) {
    return this.#classes.find(one => one.label === label)?.errors ?? null;
  }

  /** @param {string} label */
  keepLooked(label) {
    this.#looked.add(label);
    keep(`${LOOKED}/${this.#name}`, JSON.stringify([...this.#looked]), {session: true});
    this.draw(label);
  }

  /** Show the choice, and how many were looked at. @param {string} shown */
  draw(shown) {
    const draw = ({label, images, errors}) => {
      const wrong = errors === null || errors < 0.5 ? '' : `, about ${Math.round(errors)} wrong`;
      const text = `${this.#looked.has(label) ? '✓ ' : ''}${shownText(label)} (${images.toLocaleString('en')}${wrong})`;
      return make('option', {value: label, selected: label === shown}, text);
    };
    refill(this.choice, this.#classes.map(draw));
    const all = this.#classes.length;
    const looked = this.#classes.filter(one => this.#looked.has(one.label)).length;
    this.track.style.setProperty('--share', String(all ? looked / all : 0));
    this.track.setAttribute('aria-valuemax', String(all));
    this.track.setAttribute('aria-valuenow', String(looked));
    this.words.textContent = `${looked.toLocaleString('en')} of ${count(all, 'class', 'classes')} looked at`;
  }
}

/** The label of the first class that was not looked at in this session. */
export async function findFirstClass() {
  const order = new ClassOrder(() => {});
  await order.read();
  return order.first();
}
