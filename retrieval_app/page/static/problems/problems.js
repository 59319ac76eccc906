// Image problems: blurred, dark, tiny and other bad images, by measures whose thresholds can be moved.

import {get, isAborted} from '../core/api.js';
import {measureChart, shortNumber} from '../core/charts.js';
import {reloadAfterDecisions} from '../core/decided.js';
import {button, count, debounce, find, make, refill} from '../core/dom.js';
import {registerKeys} from '../core/keys.js';
import {notice, openView} from '../core/loading.js';
import * as selection from '../core/selection.js';
import {linkTo, onState, readState, WEIGHTS, writeState} from '../core/url_state.js';
import {makeGrid} from '../search/grid.js';
import {searchImages} from '../search/query_changes.js';
import {openResults} from '../search/results.js';

const WAIT_MS = 250;
const STEPS = 1000; // of the threshold
const WORDS = {
  blurred: ['Blurred', 'Little changes from pixel to pixel: out of focus, shaken, or enlarged from something small.'],
  dark: ['Dark', 'Nearly black on the whole.'],
  bright: ['Bright', 'Nearly white on the whole.'],
  low_information: ['Almost empty', 'Nearly one shade of grey: a flat colour, fog, or nothing at all.'],
  tiny: ['Tiny', 'So few pixels on the shorter side that the model sees little.'],
  odd_aspect: ['Odd shape', 'Much longer than wide, or wider than long: strips and banners.'],
  border: ['Border', 'Much of the picture is a uniform frame.'],
  heavy_compression: ['Heavily compressed', 'Saved with a JPEG quality that leaves blocks and rings.'],
  placeholder: ['Placeholders', 'One picture of several labels or of many images, such as “image not available”.'],
};

/** @type {ProblemsView | null} */
let view = null;

/** Fill the panel. */
export function start(panel) {
  const load = openView(panel, {
    title: 'Image problems',
    lead:
      'Images that are bad whatever their label. A threshold is chosen from this gallery’s own images and can be '
      + 'moved; select what should be dropped, tagged or given a label.',
    kind: 'problems-body',
    draw: async body => {
      const answer = await get('problems');
      view?.end();
      view = new ProblemsView(body, answer);
    },
  });
  reloadAfterDecisions('problems', load);
  addEventListener('look-again', () => readState().view === 'problems' && load());
  registerKeys('problems', 'Image problems', [
    {keys: ['j'], does: 'The next kind of problem', run: () => view?.step(1)},
    {keys: ['k'], does: 'The kind before', run: () => view?.step(-1)},
    {keys: ['h'], does: 'Move the threshold, by ← and →', run: () => view?.slide()},
    {keys: ['Enter', 'x', ' '], does: 'Of an image: search with it, select it, its details'},
  ]);
}

class ProblemsView {
  /** @type {number | null} */
  #lastSelected = null;
  #running = new AbortController();

  /** @param {HTMLElement} body @param {AnswerOf<'problems', 'get'>} answer */
  constructor(body, answer) {
    this.problems = answer.problems;
    const act = (name, item, event) => this.act(name, item.id, event);
    this.grid = makeGrid({act, moved: () => {}});
    this.total = 0;
    selection.offer('problems', {shown: () => this.grid.ids(), all: () => this.selectAll()});
    const marked = selection.onSelection(selected => this.grid.mark({selected}));

    this.kinds = make('div', {class: 'problem-kinds', role: 'group', 'aria-label': 'Kinds of problems'});
    this.head = make('div.quality-card.problem');
    this.found = make('p.row', {role: 'status'});
    this.place = make('div.column');
    refill(body, this.kinds, make('div.problem-images', this.head, this.found, this.place));
    this.readSoon = debounce(() => this.read(), WAIT_MS);
    const followed = onState(state => state.view === 'problems' && this.update());
    this.end = () => {
      for (const stop of [followed, marked]) stop();
    };
    this.update();
  }

  get shown() {
    return (
      this.problems.find(one => one.kind === readState().extra.kind)
      ?? this.problems.find(one => one.count)
      ?? this.problems[0]
    );
  }

  /** The threshold of the address, or the chosen one. */
  get threshold() {
    const given = Number(readState().extra.at);
    return readState().extra.at && Number.isFinite(given) ? given : this.shown.threshold;
  }

  get where() {
    const {column, above, where} = this.shown;
    return column === null ? where : `${column} ${above ? '>' : '<'} ${this.threshold}`;
  }

  update() {
    if (!this.problems.length) return;
    const {kind} = this.shown;
    refill(
      this.kinds,
      this.problems.map(one =>
        button(
          `${WORDS[one.kind][0]} ${one.count.toLocaleString('en')}`,
          {class: one.count ? '' : 'quiet', 'aria-pressed': String(one.kind === kind)},
          () => this.choose(one.kind),
        ),
      ),
    );
    if (this.head.dataset.kind !== kind) this.drawHead();
    this.drawChart();
    this.readSoon();
  }

  choose(kind) {
    writeState({extra: {...readState().extra, kind, at: null}});
  }

  step(by) {
    const at = this.problems.indexOf(this.shown) + by;
    if (this.problems[at]) this.choose(this.problems[at].kind);
  }

  slide() {
    this.head.querySelector('input')?.focus();
  }

  /** The button that selects all images of the problem, and what it does. */
  selectAll() {
    if (this.total === 0) return null;
    const whole = {where: this.where, text: null, count: this.total};
    return {text: `Select all ${this.total.toLocaleString('en')}`, run: () => selection.selectWhole(whole)};
  }

  drawHead() {
    const {kind, column, left_out: more} = this.shown;
    this.head.dataset.kind = kind;
    const [title, about] = WORDS[kind];
    const slider =
      column !== null
      && make('input', {
        type: 'range',
        min: 0,
        max: STEPS,
        'aria-label': `Threshold of ${column}`,
        oninput: event => this.move(Number(event.target.value) / STEPS),
      });
    refill(
      this.head,
      make('h3', title),
      make('p.soft', about),
      more > 0 && make('p.soft', `${count(more, 'more image')} of further placeholders: after these are dropped.`),
      make('div.problem-chart'),
      slider && make('label.problem-threshold', slider, make('span.threshold')),
    );
  }

  /** Move the threshold to a place in the histogram, 0 to 1. */
  move(place) {
    const {edges} = this.shown;
    const at = place * (edges.length - 1);
    const bin = Math.min(Math.floor(at), edges.length - 2);
    const value = edges[bin] + (at - bin) * (edges[bin + 1] - edges[bin]);
    writeState(
      {extra: {...readState().extra, kind: this.shown.kind, at: String(Number(value.toPrecision(3)))}},
      {replace: true},
    );
  }

  drawChart() {
    const {column, above, edges, counts, threshold: chosen} = this.shown;
    if (column === null) return;
    const at = /** @type {number} */ (this.threshold);
    const bin = Math.max(
      0,
      edges.findLastIndex(edge => edge <= at),
    );
    const within = bin < edges.length - 1 ? (at - edges[bin]) / (edges[bin + 1] - edges[bin]) : 0;
    const slider = /** @type {HTMLInputElement} */ (find(this.head, 'input'));
    const place = (bin + within) / (edges.length - 1);
    if (document.activeElement !== slider) slider.value = String(Math.round(STEPS * place));
    slider.setAttribute('aria-valuetext', `${column} ${above ? 'above' : 'below'} ${at}`);
    find(this.head, '.threshold').textContent =
      `${column} ${above ? '>' : '<'} ${at}${at === chosen ? '' : ` (proposed: ${shortNumber(/** @type {number} */ (chosen))})`}`;
    const marked = value => (above ? value > at : value < at);
    refill(find(this.head, '.problem-chart'), measureChart({title: column, edges, counts, marked}));
  }

  async read() {
    this.#running.abort();
    this.#running = new AbortController();
    const {signal} = this.#running;
    selection.clear();
    this.total = 0;
    const results = openResults({...readState(''), filters: [this.where]}, WEIGHTS);
    const more = button('Show more', {}, () => next());
    const next = async () => {
      try {
        this.grid.append(await results.next(signal));
        more.hidden = results.done;
      } catch (error) {
        if (!isAborted(error)) refill(this.place, notice({title: 'No images', text: error.message, bad: true}));
      }
    };
    this.grid.fill([]);
    await next();
    if (signal.aborted) return;
    const all = linkTo({view: 'search', filters: [this.where]});
    const total = results.total ?? 0;
    this.total = total;
    const whole = this.selectAll();
    refill(
      this.found,
      make('strong', count(total, 'image')),
      whole && button(whole.text, {class: 'small', title: 'Ctrl + A'}, whole.run),
      total > 0 && make('a', {href: all}, 'All of them in Search'),
    );
    refill(this.place, total ? [this.grid.element, more] : notice({icon: 'check', title: 'No such images'}));
  }

  act(name, id, event) {
    if (name === 'search') searchImages([id]);
    else if (name === 'select') this.select(id, event);
    else writeState({view: 'search', filters: [this.where], details: id});
  }

  select(id, event) {
    if (event?.shiftKey && this.#lastSelected !== null) selection.extend(this.#lastSelected, id);
    else selection.toggle(id);
    this.#lastSelected = id;
  }
}
