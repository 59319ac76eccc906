// The dialogs of the label list: another label, an image large while the keys go on, several decisions at once.

import {askName, newLabelWords} from '../core/ask_name.js';
import {openDialog} from '../core/dialog.js';
import {count, make, sentence, shownScore, shownText} from '../core/dom.js';
import {describeSource, drawChances} from '../core/label_trust.js';
import {drawPair, wordsFor} from './label_rows.js';
import {openZoom} from './review_bar.js';
import {drawLead} from './label_file.js';
import {thumb} from '../core/thumbs.js';

/** Ask for a label; calls `done(label)` when the dialog is closed and the row has the focus again. */
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

/** Ask before the verdicts on so many selected images are accepted; `open` others have no recommendation. */
export function confirmMany(decisions, run, {open}) {
  const some = kind => decisions.filter(({decision}) => decision === kind).length;
  const kinds = Object.entries({
    'change the label': 'change',
    'keep the label': 'keep',
    'set the image aside': 'set_aside',
    'drop the image': 'drop',
  })
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
      else if ('jkalxdcbu123'.includes(name)) act(name);
      else return;
      event.preventDefault();
    },
  });
  function captionOf(now) {
    return [
      drawPair(now),
      make('p.small.soft', [
        [
          now.decision ? wordsFor(now.decision) : 'Not decided',
          now.decision && describeSource(now.decision),
          shownText(now.path),
        ]
          .filter(Boolean)
          .join(' · '),
      ]),
      now.kind && drawChances(now),
      make('div.row.zoom-keys', [
        [
          ['A', 'Accept', 'a'],
          ['L', 'Keep', 'l'],
          ['D', 'Set aside', 'd'],
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
