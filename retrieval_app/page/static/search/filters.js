// The text box, which takes plain words and conditions, and a chip for every condition that holds.

import {button, count, debounce, icon, make, refill, sentence, shownText} from '../core/dom.js';
import {get, isAborted, withGallery} from '../core/api.js';
import {readState, writeState} from '../core/url_state.js';

const NARROW = matchMedia('(max-width: 760px)').matches;
const TYPING_MILLISECONDS = 300;
const CONDITION = /[\s)"\w](=|!=|<|>)|\b(in\s*\(|is\s+(not\s+)?null|(not\s+)?like\s+['"]|between\s+\S+\s+and\s+)/i;

/** True of text that is meant as a condition, such as `price < 20`, and not as words to look for. */
export const isCondition = text => CONDITION.test(text);

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
    placeholder: NARROW ? 'Filter by words' : 'Filter by words in path, label or metadata',
    'aria-describedby': 'filter-hint',
    enterkeyhint: 'search',
  });
  const hint = make('p', {class: 'small soft', id: 'filter-hint', 'aria-live': 'polite'});
  const chips = make('ul', {class: 'chips', 'aria-label': 'Conditions'});
  const element = make('form', {class: 'filter-box', role: 'search'}, [
    make('label', {class: 'visually-hidden', for: 'filter-text'}, 'Filter'),
    make('div.filter-input', [
      icon('search', 17),
      input,
      make('kbd', {'aria-hidden': 'true', title: 'Press / to write here'}, '/'),
    ]),
    hint,
    chips,
  ]);
  let shown = '';

  const type = debounce(text => writeState({text}, {replace: true}), TYPING_MILLISECONDS);

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
    writeState({filters: [...new Set([...readState().filters, text])], text: ''});
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
      if (latest.text) writeState({text: ''}, {replace: true}); // its first words were taken for words to look for
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
      writeState({text});
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
    chips.hidden = state.filters.length === 0 && chosen === 0;
  }

  return {
    element,
    update(state) {
      const changed = state.text !== (latest?.text ?? '');
      latest = state;
      if (changed && state.text !== shown) {
        // else the user is typing what the URL does not have yet
        type.cancel();
        shown = state.text;
        input.value = state.text;
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
