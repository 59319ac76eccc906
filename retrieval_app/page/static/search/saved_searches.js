// Saved searches: named addresses of this view, to open, to share, and to delete.

import {gallery, get, post, remove} from '../core/api.js';
import {askName} from '../core/ask_name.js';
import {button, make, refill, shownText} from '../core/dom.js';
import {toast, toastError} from '../core/toast.js';
import {linkTo} from '../core/url_state.js';

/** The list with its button. Has `element` and `update(state)`. */
export function makeSavedSearches() {
  const element = make('section', {class: 'saved column', 'aria-labelledby': 'saved-title', hidden: true});
  /** @type {{name: string, query: string}[]} */
  let searches = [];
  let canSave = false;
  /** @type {State | null} */
  let state = null;

  const queryNow = () => linkTo({details: null}).slice(1);

  function draw() {
    const hasPhoto = state?.parts.some(part => part.photo !== undefined);
    const isAny = queryNow() !== '';
    const offers = canSave && isAny;
    element.hidden = searches.length === 0 && !offers;
    if (element.hidden) return;
    const focused = element.contains(document.activeElement);
    refill(element, [
      make('div.row.nowrap', [
        make('h3', {id: 'saved-title'}, 'Saved searches'),
        offers
          && button(
            'Save…',
            {
              class: 'small push',
              disabled: hasPhoto,
              title: hasPhoto
                ? 'A search with a sent photo cannot be saved: the server forgets photos'
                : 'Name this search',
            },
            ask,
          ),
      ]),
      make('ul', [searches.map(drawSearch)]),
    ]);
    if (focused) element.querySelector('button, a')?.focus({preventScroll: true});
  }

  function drawSearch({name, query}) {
    const isOpen = query === queryNow();
    return make('li.row.nowrap', [
      make('a.grow.clip', {href: `?${query}`, 'aria-current': isOpen ? 'true' : null}, shownText(name)),
      canSave
        && button(`Delete ${shownText(name)}`, {icon: 'close', iconOnly: true, class: 'quiet small'}, () =>
          act(() => remove('searches', {name}), `\u201c${shownText(name)}\u201d deleted`, {
            text: 'Undo',
            run: () => save(name, query),
          }),
        ),
    ]);
  }

  function ask() {
    const query = queryNow();
    askName({
      title: 'Save this search',
      field: 'Name',
      placeholder: 'A name',
      names: searches.map(({name}) => name),
      words: (name, isNew) => name !== '' && !isNew && 'It takes the place of the search with this name.',
      run: 'Save',
      done: name => save(name, query),
    });
  }

  const save = (name, query) => act(() => post('searches', {name, query}), `Saved as \u201c${shownText(name)}\u201d`);

  /** @param {() => Promise<any>} change @param {string} words @param {Required<Pick<Action, 'text' | 'run'>> | null} action */
  async function act(change, words, action = null) {
    try {
      ({searches} = await change());
      toast(words, {kind: 'good', action});
      draw();
    } catch (error) {
      toastError(error);
    }
  }

  async function load() {
    try {
      const [answer, facts] = await Promise.all([get('searches'), gallery()]);
      ({searches} = answer);
      canSave = facts.permissions.review;
      draw();
    } catch {
      element.hidden = true; // the frame tells of a server that is gone
    }
  }

  load();
  return {
    element,
    /** @param {State} now */
    update(now) {
      state = now;
      draw();
    },
  };
}
