// The search view: what the address asks for is shown; whatever is pressed changes the address.

import {button, find, make} from '../core/dom.js';
import {calibratedGallery, gallery} from '../core/api.js';
import {makeDetails} from '../details/details.js';
import {makeFacets} from './facets.js';
import {makeFilterBox} from './filters.js';
import {makeGrid} from './grid.js';
import {makeQueryCard} from './query_card.js';
import {addPhotos, searchImages, searchPhotos, weighImage} from './query_changes.js';
import {registerKeys} from '../core/keys.js';
import {kindOf, readImages} from './results.js';
import {ResultsPane} from './results_pane.js';
import {makeSavedSearches} from './saved_searches.js';
import {makeSettings} from './settings.js';
import {makeStart} from './start.js';
import {makeDrop, takeEverywhere} from './upload.js';
import * as selection from '../core/selection.js';
import {depth, onState, readState, writeState} from '../core/url_state.js';

const AT_TOP = 70;

/** Fill the panel; called once. */
export function start(panel) {
  new SearchView(panel).begin();
}

class SearchView {
  /** @type {string | null} */
  #facetKey = null;
  /** @type {number | null} */
  #lastSelected = null;
  /** @type {number | null} */
  #detailed = null; // the id of what the details show
  /** @type {number | null} */
  #openedAt = null; // how deep in the history the details were opened

  constructor(panel) {
    const act = (name, id, event) => this.act(name, id, event);
    this.grid = makeGrid({act: (name, item, event) => act(name, item.id, event), moved: item => this.follow(item.id)});
    this.card = makeQueryCard({
      changed: parts => writeState({parts}),
      add: addPhotos,
      open: id => this.open(id),
      labelled: label => this.grid.mark({label}),
    });
    this.facets = makeFacets({changed: () => this.box.update(readState())});
    this.box = makeFilterBox({nameOf: this.facets.nameOf, leave: () => this.grid.focusFirst()});
    this.settings = makeSettings();
    this.startBox = makeStart({sent: searchPhotos, search: id => searchImages([id])});
    this.details = makeDetails({
      hit: id => this.grid.item(id),
      act,
      decided: image => this.grid.relabel(image),
      step: by => this.step(by),
      close: () => this.close(),
    });
    this.saved = makeSavedSearches();
    this.results = new ResultsPane(this.grid, {
      refused: message => this.box.say(message, true),
      filled: () => this.showOpened(),
      retried: () => this.countFacets(readState()),
    });
    selection.offer('search', {shown: () => this.grid.ids(), all: () => this.results.selectAll()});
    selection.onSelection(selected => this.grid.mark({selected}));
    this.opener = button(
      'Filters',
      {icon: 'filter', class: 'filters-button', 'aria-expanded': 'false', 'aria-controls': 'narrow'},
      () => this.showFilters(true),
    );
    const hide = () => this.showFilters(false);
    const close = button('Close', {icon: 'close', iconOnly: true, class: 'quiet'}, hide);
    this.narrow = make('div', {class: 'narrow', id: 'narrow'}, [
      make('div.narrow-head', make('h2', 'Filters'), close),
      this.settings.element,
      this.saved.element,
      this.facets.element,
      button('Show results', {class: 'primary narrow-done'}, hide),
    ]);
    this.upload = makeDrop({title: 'Search with a photo', small: true, sent: searchPhotos});
    this.draw(panel);
    takeEverywhere({active: () => readState().view === 'search', sent: searchPhotos});
    registerViewKeys(this);
  }

  draw(panel) {
    const side = make('div.side', this.card.element, this.upload, this.narrow);
    const filterRow = make('div.filter-row', this.box.element, this.opener);
    const middle = make('div.middle', filterRow, this.startBox.element, this.results.elements);
    panel.append(make('div.search', side, middle, this.details.element));
  }

  begin() {
    const keepPlace = () => readState().view === 'search' && this.results.keepPlace();
    addEventListener('scroll', keepPlace, {passive: true});
    onState((state, how) => state.view === 'search' && this.update(state, how));
    addEventListener('labels-decided', () => {
      const shown = readState().view === 'search';
      this.#facetKey = null;
      this.results.forget({shown});
      if (shown) this.countFacets(readState());
    });
    addEventListener('gallery-changed', () => {
      this.#facetKey = null;
      this.results.forget({shown: false}); // what is shown stays until something is pressed
    });
    addEventListener('look-again', () => {
      selection.clear();
      if (readState().view === 'search') this.results.refresh(readState());
    });
    this.update(readState(), {travelled: false});
    this.awaitCalibration();
  }

  update(state, {travelled}) {
    this.card.update(state);
    this.box.update(state);
    this.settings.update(state);
    this.saved.update(state);
    const {parts, ids, filters, text} = state;
    const starting = parts.length === 0 && ids.length === 0 && filters.length === 0 && !text;
    this.startBox.element.hidden = !starting;
    if (starting) this.startBox.load();
    this.upload.hidden = starting || parts.length > 0;
    this.showDetails(state.details);
    this.countFacets(state);
    if (this.results.show(state, {travelled})) selection.clear();
    this.grid.mark({open: state.details});
  }

  async countFacets(state) {
    const key = JSON.stringify([state.filters, state.text, kindOf(state) === 'named' && state.ids]);
    if (key === this.#facetKey) return;
    this.#facetKey = key;
    if (!(await this.facets.update(state)) && this.#facetKey === key) this.#facetKey = null; // the next change asks again
  }

  /** Open or close the details; the results get another width by it, but their card stays where it is. */
  showDetails(id) {
    const card = this.grid.card(id ?? this.#detailed);
    const top = card?.getBoundingClientRect().top ?? 0;
    const turns = (id === null) !== (this.#detailed === null);
    this.#detailed = id;
    this.details.show(id);
    if (turns && card) scrollBy(0, card.getBoundingClientRect().top - top);
  }

  /** The results are there: the one whose details a link shows is gone to. */
  showOpened() {
    if (this.#detailed === null) return;
    this.details.place();
    this.grid.card(this.#detailed)?.scrollIntoView({block: 'nearest'});
  }

  act(name, id, event) {
    const actions = {
      search: () => searchImages([id]),
      details: () => this.open(id),
      open: () => this.follow(id),
      select: () => this.select(id, event),
      duplicates: () => this.toggleDuplicates(id),
      more: () => weighImage(id, 'more'),
      less: () => weighImage(id, 'less'),
    };
    actions[name]();
  }

  select(id, event) {
    if (event?.shiftKey && this.#lastSelected !== null) selection.extend(this.#lastSelected, id);
    else selection.toggle(id);
    this.#lastSelected = id;
  }

  async toggleDuplicates(id) {
    const item = this.grid.item(id);
    const badge = find(this.grid.element, `[data-id="${id}"] .card-duplicates`);
    const ids = item.duplicates.map(one => one.id);
    const opened = badge.getAttribute('aria-expanded') === 'true';
    badge.setAttribute('aria-expanded', String(!opened));
    badge.textContent = opened ? `+${item.duplicates_count.toLocaleString('en')}` : `\u2212${ids.length}`;
    if (opened) {
      this.grid.remove(ids);
      return;
    }
    const facts = new Map(
      (await readImages(ids).catch(() => [])).map(image => /** @type {const} */ ([image.id, image])),
    );
    const duplicates = item.duplicates.filter(one => !this.grid.item(one.id));
    this.grid.insertAfter(
      id,
      duplicates.map(one => ({...facts.get(one.id), ...one, duplicateOf: item.rank})),
    );
  }

  open(id) {
    const wasOpen = this.details.isOpen();
    writeState({details: id}, {replace: wasOpen});
    if (!wasOpen) this.#openedAt = depth();
    this.details.focus();
  }

  /** Show another image in the open details. */
  follow(id) {
    if (this.details.isOpen()) writeState({details: id}, {replace: true});
  }

  /** The result before or after the one that the details show. */
  step(by) {
    const ids = this.grid.ids();
    const id = ids[ids.indexOf(readState().details) + by];
    if (id === undefined) return;
    this.follow(id);
    this.grid.card(id)?.scrollIntoView({block: 'nearest'});
  }

  close() {
    const {details} = readState();
    // Going back, so that Back does not open and close it again.
    if (this.#openedAt === depth() && depth() > 0) history.back();
    else writeState({details: null}, {replace: true});
    if (details !== null && !this.grid.focus(details)) this.grid.focusFirst();
  }

  showFilters(wanted) {
    this.narrow.classList.toggle('open', wanted);
    document.body.classList.toggle('showing-filters', wanted);
    this.opener.setAttribute('aria-expanded', String(wanted));
    if (wanted) find(this.narrow, 'button').focus();
    else this.opener.focus();
  }

  /** The precisions come with the calibration, which a fresh gallery needs some seconds for. */
  async awaitCalibration() {
    const before = await gallery().catch(() => null);
    const facts = await calibratedGallery();
    if (facts === null || facts === before) return; // the server is gone, as the next search reports; or nothing changed
    this.settings.learn();
    const state = readState();
    if (state.view === 'search' && state.parts.length > 0 && scrollY < AT_TOP) this.results.refresh(state);
  }
}

/** The keys of the view; the grid handles those of a card, which are only listed here. */
function registerViewKeys(view) {
  const enterGrid = event => {
    if (view.details.isOpen() && ['ArrowLeft', 'ArrowRight'].includes(event.key)) {
      view.step(event.key === 'ArrowLeft' ? -1 : 1);
      return true;
    }
    if (document.activeElement !== document.body && !document.activeElement?.matches('.view')) return false;
    if (event.key === 'ArrowUp' || event.key === 'ArrowLeft') return false;
    return view.grid.focusFirst();
  };
  registerKeys('search', 'Search', [
    {keys: ['/'], does: 'Write in the text box', run: () => view.box.focus()},
    {keys: ['Escape'], does: 'Close, clear the selection, or go back', run: () => leave(view), whileTyping: true},
    {keys: ['Ctrl+v'], does: 'Search with a copied photo'},
  ]);
  registerKeys('search', 'Results', [
    {keys: ['ArrowLeft', 'ArrowUp', 'ArrowDown', 'ArrowRight'], does: 'Move through the results', run: enterGrid},
    {keys: ['Enter'], does: 'Search with this image'},
    {keys: [' ', 'i'], does: 'Details'},
    {keys: ['m'], does: 'More like this'},
    {keys: ['l'], does: 'Less like this'},
    {keys: ['x'], does: 'Select; with Shift and a click, all between'},
  ]);
}

function leave(view) {
  if (view.narrow.classList.contains('open')) view.showFilters(false);
  else if (view.details.isOpen()) view.close();
  else if (selection.clear()) return true;
  else if (depth() > 0) history.back();
  else return false;
  return true;
}
