// The text box, which searches by words and takes conditions, and a chip for every condition that holds.

import {button, count, debounce, icon, make, refill, sentence, shownText} from '../core/dom.js';
import {get, isAborted, withGallery} from '../core/api.js';
import {readState, writeState} from '../core/url_state.js';

const NARROW = matchMedia('(max-width: 760px)').matches;
const TYPING_MILLISECONDS = 300;
const CONDITION = /[\s)"\w](=|!=|<|>)|\b(in\s*\(|is\s+(not\s+)?null|(not\s+)?like\s+['"]|between\s+\S+\s+and\s+)/i;

/** True of text that is meant as a condition, such as `price < 20`, and not as words to search by. */
export const isCondition = text => CONDITION.test(text);

/** The words that the box shows: those of the query that are no more or less like it. @param {State} state */
const wordsOf = state => state.parts.find(isOfBox)?.words ?? '';

/** @param {Part} part */
const isOfBox = part => part.words !== undefined && part.role === 'like';

/** Search by words, together with the other parts of the query; without them where they are empty. */
function searchWords(words, {replace = true} = {}) {
  const {parts} = readState();
  const others = parts.filter(part => !isOfBox(part) && part.words !== words);
  /** @type {Part[]} */
  const own = words ? [{words, role: 'like', crop: null}] : [];
  // Back leads to what was there before the first letter.
  writeState({parts: [...own, ...others], ids: []}, {replace: replace && parts.some(isOfBox)});
}

/**
 * The box with its chips. `nameOf(expression)` gives a chip's text, `leave()` is called where the keyboard goes on to the
 * results. Has `element`, `update(state)`, `say(text, bad)`, `focus()`.
 */
export function makeFilterBox({nameOf, leave}) {
  const input = make('input', {
    class: 'input',
    type: 'search',
    id: 'filter-text',
    autocomplete: 'off',
    spellcheck: 'false',
    placeholder: 'Search by words',
    list: 'known-words',
    maxlength: '1000',
    'aria-describedby': 'filter-hint',
    enterkeyhint: 'search',
  });
  const hint = make('p', {class: 'small soft', id: 'filter-hint', 'aria-live': 'polite'});
  const chips = make('ul', {class: 'chips', 'aria-label': 'Conditions'});
  const element = make('form', {class: 'filter-box', role: 'search'}, [
    make('label', {class: 'visually-hidden', for: 'filter-text'}, 'Words or a condition'),
    make('div.filter-input', [
      icon('search', 17),
      input,
      make('kbd', {'aria-hidden': 'true', title: 'Press / to write here'}, '/'),
    ]),
    hint,
    chips,
  ]);
  let shown = '';

  const type = debounce(searchWords, TYPING_MILLISECONDS);

  function say(text, bad = false) {
    refill(hint, text);
    hint.classList.toggle('bad', bad);
    if (bad) input.setAttribute('aria-invalid', 'true');
    else input.removeAttribute('aria-invalid');
  }

  async function addCondition(text) {
    say('Checking the condition…');
    try {
      await get('facets', {where: text});
    } catch (error) {
      if (!isAborted(error)) say(sentence(error.message), true);
      return;
    }
    input.value = '';
    shown = '';
    say('');
    writeState({filters: [...new Set([...readState().filters, text])]});
  }

  let latest = null;
  withGallery(({labels}) => {
    if (!NARROW && labels.count > 1) {
      input.placeholder += `, or write a condition: label != '${shownText(labels.names[0])}'`;
    }
  });
  input.addEventListener('input', () => {
    const text = input.value.trim();
    if (isCondition(text)) {
      type.cancel();
      shown = '';
      if (wordsOf(latest)) searchWords(''); // its beginning was taken for words to search by
      say('Enter adds this condition');
      return;
    }
    say('');
    shown = text;
    type(text);
  });
  element.addEventListener('submit', event => {
    event.preventDefault();
    type.cancel();
    const text = input.value.trim();
    if (isCondition(text)) addCondition(text);
    else {
      shown = text;
      searchWords(text, {replace: false});
    }
  });
  input.addEventListener('keydown', event => {
    if (event.key === 'ArrowDown' && leave()) event.preventDefault();
    if (event.key !== 'Escape') return;
    event.preventDefault();
    event.stopPropagation();
    if (input.value === '') input.blur();
    else {
      input.value = '';
      input.dispatchEvent(new Event('input'));
    }
  });

  function drawChip(words, remove, title = words) {
    const given = {icon: 'close', iconOnly: true, class: 'quiet chip-remove', title: 'Remove'};
    return make('li.chip.on', make('span', {title}, words), button(`Remove the condition ${words}`, given, remove));
  }

  function drawChips(state) {
    const chosen = state.parts.length === 0 ? state.ids.length : 0;
    refill(chips, [
      state.text && drawChip(`with the words \u201c${shownText(state.text)}\u201d`, () => writeState({text: ''})),
      chosen > 0 && drawChip(count(chosen, 'chosen image'), () => writeState({ids: []})),
      state.filters.map((filter, number) =>
        drawChip(
          shownText(nameOf(filter)),
          () => {
            writeState({filters: readState().filters.filter(entry => entry !== filter)});
            (chips.querySelectorAll('button')[Math.min(number, chips.children.length - 1)] ?? input).focus();
          },
          shownText(filter),
        ),
      ),
      state.filters.length > 1
        && make('li', [
          button('Clear all', {class: 'quiet small'}, () => {
            writeState({filters: []});
            input.focus();
          }),
        ]),
    ]);
    chips.hidden = !chips.firstChild;
  }

  return {
    element,
    update(state) {
      const words = wordsOf(state);
      const changed = words !== (latest ? wordsOf(latest) : '');
      latest = state;
      if (changed && words !== shown) {
        // else the user is typing what the URL does not have yet
        type.cancel();
        shown = words;
        input.value = words;
      }
      drawChips(state);
    },
    say,
    focus() {
      input.focus();
      input.select();
    },
  };
}
