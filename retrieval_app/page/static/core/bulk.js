// A label or a tag for many images at once: the dialogs, the request, the message with Undo.

import {gallery, get, post} from './api.js';
import {askName, newLabelWords} from './ask_name.js';
import {count, sentence, shownText} from './dom.js';
import {toast, toastError} from './toast.js';
import {readState} from './url_state.js';

const quoted = name => `\u201c${shownText(name)}\u201d`;

/** What comes, or null with a message. @template Answer @param {Promise<Answer>} coming @returns {Promise<Answer | null>} */
const ask = coming =>
  coming.catch(error => {
    toastError(error);
    return null;
  });

/** Ask for the label of `amount` images, which `body` names; `done()` is called once they have it. */
export async function askBulkLabel({body, amount, done}) {
  const facts = await ask(gallery());
  if (!facts) return;
  askName({
    title: `Set the label of ${count(amount, 'image')}`,
    field: 'Label',
    placeholder: 'A label, or a new one',
    names: facts.labels.names,
    words: newLabelWords,
    run: 'Set the label',
    others: [{text: 'As given', action: 'open', nameless: true}],
    done(name, action) {
      const label = action === 'open' ? null : name;
      const words = ({changed}) =>
        label === null
          ? `${count(changed, 'label')} as given again`
          : `${count(changed, 'image')} labelled ${quoted(label)}`;
      change({path: 'labels/set', body: {...body, label}, undo: 'labels/undo', words, done});
    },
  });
}

/** Leave images out of results and label files; `done()` is called once they are. */
export function dropImages({body, done}) {
  const words = ({changed}) => `${count(changed, 'image')} dropped: no search finds them, their files stay`;
  return change({path: 'labels/drop', body, undo: 'labels/undo', words, done});
}

/** Ask for a tag of `amount` images, added or removed. */
export async function askTag({body, amount, done = () => {}}) {
  const known = await ask(get('tags'));
  if (!known) return;
  askName({
    title: `Tag ${count(amount, 'image')}`,
    field: 'Tag',
    placeholder: 'A tag, or a new one',
    names: known.tags.map(({tag}) => tag),
    run: 'Tag',
    others: known.tags.length > 0 ? [{text: 'Remove this tag', action: 'remove'}] : [],
    done(tag, action) {
      changeTag({...body, tag, action: action === 'remove' ? 'remove' : 'add'}, done);
    },
  });
}

/** Give images a tag or take it away. @param {BodyOf<'tags'>} body @param {() => void} done */
export function changeTag(body, done = () => {}) {
  const words = ({changed}) =>
    body.action === 'remove'
      ? `Tag ${quoted(body.tag)} removed`
      : `${count(changed, 'image')} tagged ${quoted(body.tag)}`;
  return change({path: 'tags', body, undo: 'tags/undo', words, done});
}

/** @param {{path: 'labels/set' | 'labels/drop' | 'tags', body: any, undo: 'labels/undo' | 'tags/undo', words: any, done: () => void}} given */
async function change({path, body, undo, words, done}) {
  try {
    const answer = await post(path, body);
    toast(words(answer), {kind: 'good', action: {text: 'Undo', run: () => takeBack(undo, answer.step, done)}});
    done();
    lookAgain(path);
  } catch (error) {
    if (error.field !== 'count') toastError(error);
    else toast(sentence(error.message), {kind: 'bad', action: {text: 'Look again', run: () => lookAgain()}});
  }
}

/** @param {'labels/undo' | 'tags/undo'} path @param {number} step @param {() => void} done */
async function takeBack(path, step, done) {
  try {
    const {undone} = await post(path, {step});
    toast(undone.length ? `Undone for ${count(undone.length, 'image')}` : 'It was already undone');
    done();
    lookAgain(path);
  } catch (error) {
    toastError(error);
  }
}

/** Let the search view load its results again, where a change of labels or tags may have changed them. */
function lookAgain(path = '') {
  const isShown = readState().filters.some(filter => /\btag\b/.test(filter));
  if (isShown || !path.startsWith('tags')) dispatchEvent(new Event('look-again'));
}
