// The dialogs of the label list: another label, an image large while the keys go on, several decisions at once.

import {askName, newLabelWords} from '../core/ask_name.js';
import {openDialog} from '../core/dialog.js';
import {count, make, percent, sentence, shownScore, shownText} from '../core/dom.js';
import {drawPair, wordsFor} from './label_rows.js';
import {openZoom} from './review_bar.js';
import {drawLead} from './label_file.js';
import {thumb} from '../core/thumbs.js';

const BUILTIN =
  'The built-in model confuses classes that look alike, such as models of cars, and then damages right labels: look at '
  + 'some of the images first, or build the gallery with another model.';

/** Ask for a label; `done(label)` hears of it once the dialog is closed and the focus back on the row. */
export function askLabel(item, names, done) {
  askName({
    title: 'What does it show?',
    head: make('div.row.nowrap.ask-head', thumb(item.id, {side: 128, eager: true}), drawPair(item)),
    field: 'New label',
    placeholder: 'A label, or a new one',
    names,
    words: newLabelWords,
    run: 'Change the label',
    done,
  });
}

/** A threshold in whole percent, rounded down, so that it is true of all that is accepted. @param {number} share */
export const wholePercent = share => Math.floor(100 * share + 1e-6);

/** Ask before all verdicts, or all proposals, from a threshold on are accepted; a note is first. @param {Accepted} preview */
export function confirmAccept(preview, run, {proposals, isBuiltin, note}) {
  const percentage = wholePercent(preview.threshold);
  openDialog({
    title: proposals
      ? `Accept the proposed labels with a probability of at least ${percentage} %?`
      : `Accept the verdicts on labels that are wrong with a probability of at least ${percentage} %?`,
    body: make('div.column', [
      note && make('p', {role: 'alert'}, make('b', note)),
      make('p', `${sentence(describeAccepted(preview, {proposals}))}. One undo takes all of it back.`),
      isBuiltin && make('p', BUILTIN),
    ]),
    actions: [
      {text: 'Cancel', class: 'quiet'},
      {text: 'Accept', class: 'primary', run},
    ],
  });
}

/** "changes 120 labels, drops 8 images; about 97 of the 128 labels are wrong". @param {Accepted} preview */
export function describeAccepted({changed, dropped, expected_wrong: expected}, {proposals, isDone = false}) {
  const [labels, changes, drops] = isDone ? ['labelled', 'changed', 'dropped'] : ['labels', 'changes', 'drops'];
  const what = proposals
    ? `${labels} ${count(changed, 'image')}`
    : `${changes} ${count(changed, 'label')}, ${drops} ${count(dropped, 'image')}`;
  const all = count(changed + dropped, 'label');
  const about = `; about ${Math.round(expected).toLocaleString('en')} of the ${all} are ${proposals ? 'right' : 'wrong'}`;
  return isDone || !(changed + dropped) ? what : what + about;
}

/** Ask before the verdicts on so many selected images are accepted; `open` others have no recommendation. */
export function confirmMany(decisions, run, {open}) {
  const some = kind => decisions.filter(({decision}) => decision === kind).length;
  const kinds = Object.entries({'change the label': 'change', 'keep the label': 'keep', 'drop the image': 'drop'})
    .filter(([, kind]) => some(kind))
    .map(([words, kind]) => `${words}: ${some(kind).toLocaleString('en')}`);
  openDialog({
    title: `Accept ${count(decisions.length, 'verdict')}?`,
    body: make('p', [
      `${sentence(kinds.join(', '))}. `,
      open > 0 && `${count(open, 'image')} without a recommendation stay as they are. `,
      'One undo takes all of it back.',
    ]),
    actions: [
      {text: 'Cancel', class: 'quiet'},
      {text: 'Accept', class: 'primary', run},
    ],
  });
}

/** The image of an item, large; keys act as in the list, and `show(item)` goes on to another. */
export function enlarge(item, {act, onClose}) {
  const zoom = openZoom({
    id: item.id,
    title: 'Picture',
    caption: captionOf(item),
    onClose,
    onKey: event => {
      const name = {ArrowDown: 'j', ArrowUp: 'k'}[event.key] ?? event.key.toLowerCase();
      if (name === 'z') zoom.close();
      else if ('jkalxu123'.includes(name)) act(name);
      else return;
      event.preventDefault();
    },
  });
  function captionOf(now) {
    return [
      drawPair(now),
      make('p.small.soft', [
        now.decision
          ? wordsFor(now.decision)
          : `Not decided; ${now.label === null ? shownText(now.suggested) : 'wrong'} with a probability of ${percent(now.p_error)}`,
        ' · ',
        shownText(now.path),
      ]),
      make('div.row.zoom-keys', [
        [
          ['A', 'Accept', 'a'],
          ['L', 'Keep', 'l'],
          ['X', 'Drop', 'x'],
          ['U', 'Undo', 'u'],
          ['↓', 'Next', 'j'],
        ].map(([key, text, name]) =>
          make('button', {class: 'button small', onclick: () => act(name)}, [
            text,
            make('kbd', {'aria-hidden': 'true'}, key),
          ]),
        ),
        drawLead(now.id, () => zoom.close(), {class: 'push'}),
      ]),
    ];
  }
  return {show: now => zoom.show(now.id, captionOf(now))};
}

/** A neighbour's image, large. */
export function enlargeNeighbour(neighbour, item) {
  const zoom = openZoom({
    id: neighbour.id,
    title: `Labelled ${shownText(neighbour.label ?? item.label ?? item.suggested)}, score ${shownScore(neighbour.score)}`,
    caption: drawLead(neighbour.id, () => zoom.close()),
  });
}
