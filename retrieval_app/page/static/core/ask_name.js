// A dialog that asks for a name, with completion: of a label, a tag or a saved search.

import {openDialog} from './dialog.js';
import {button, make, refill, shownText} from './dom.js';

const MOST_CHARACTERS = 200;

/**
 * Ask for a name; calls `done(name, action)` after the dialog is closed and the focus is restored. `words(name, isNew)` is
 * the preview of the effect; `others` are further buttons, whose name becomes `action` (else null).
 *
 * @param {{
 *   title: string, field: string, placeholder: string, names: string[], run: string, head?: Child,
 *   words?: (name: string, isNew: boolean) => Child, others?: {text: string, action: string, nameless?: boolean}[],
 *   done: (name: string, action: string | null) => void,
 * }} given
 */
export function askName({title, field, placeholder, names, run, head, words = () => '', others = [], done}) {
  let chosen = null;
  const isNew = text => text !== '' && !names.some(name => name.trim() === text);
  const input = make('input', {
    class: 'input',
    list: 'known-names',
    autocomplete: 'off',
    'aria-label': field,
    placeholder,
    required: true,
    'aria-describedby': 'name-words',
    oninput: () => refill(told, words(input.value.trim(), isNew(input.value.trim()))),
  });
  const told = make('span', {class: 'grow small soft', id: 'name-words', role: 'status'});
  function choose(action, nameless = false) {
    const text = input.value.trim();
    if (!text && !nameless) {
      input.focus();
      return;
    }
    const length = [...text].length; // a cut text would be another name
    if (length > MOST_CHARACTERS) {
      refill(told, `A name has at most ${MOST_CHARACTERS} characters, this one has ${length}.`);
      input.focus();
      return;
    }
    chosen = [names.find(name => name.trim() === text) ?? text, action];
    dialog.close();
  }
  const form = make(
    'form',
    {
      class: 'column',
      onsubmit: event => {
        event.preventDefault();
        choose(null);
      },
    },
    head,
    input,
    make('datalist', {id: 'known-names'}, [names.map(name => make('option', {value: name}))]),
    make('div.row', [
      told,
      others.map(({text, action, nameless}) => button(text, {}, () => choose(action, nameless))),
      button(run, {class: 'primary', type: 'submit'}),
    ]),
  );
  const dialog = openDialog({title, body: form, onClose: () => chosen && done(chosen[0], chosen[1])});
  input.focus();
}

/** Words about a label that no image has. */
export const newLabelWords = (text, isNew) =>
  isNew && `No image has the label \u201c${shownText(text)}\u201d yet: it would be a new one.`;
