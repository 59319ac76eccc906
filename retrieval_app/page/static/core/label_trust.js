// How probably a label is right: the probabilities of an issue with small bars, and who made a decision.

import {bar} from './charts.js';
import {make, percent, shownText} from './dom.js';

const UNNAMED = 'this machine'; // a user at the machine that serves the page

/** "93 % label wrong, 71 % suggestion right, 15 % none of the classes". @param {LabelIssueEntry} issue */
export function drawChances({label, suggested, p_error: error, p_suggested: right, p_none: none}) {
  const draw = (words, share, kind = '') =>
    make('li', {class: kind}, [make('b', percent(share)), ` ${words}`, bar(share)]);
  if (label === null) return make('ul.chances', draw('suggestion right', error));
  return make('ul.chances', [
    draw('label wrong', error, error >= 0.5 ? 'bad' : ''),
    suggested !== null && draw('suggestion right', right),
    draw('none of the classes', none, 'none'),
  ]);
}

/** Whether a decision was made without a person who looked, so that its label may be wrong. @param {LabelDecision | null} decision */
export const isUncertain = decision => (decision?.p_right ?? 1) < 1;

const DONE = {set_aside: 'set aside', drop: 'dropped'};

/** "accepted in bulk, right with 81 %", "decided by Anna"; null of a decision that was just made here. @param {LabelDecision} decision */
export function describeSource({decision, source, by, p_right: right}) {
  if (!source) return null;
  const chance = right !== undefined && right < 1 ? `, right with ${percent(right)}` : '';
  const done = DONE[decision];
  if (source === 'bulk') return `${done ?? 'accepted'} in bulk${chance}`;
  if (source === 'rule') return `${done ?? 'decided'} by a condition`;
  if (source === 'import') return `imported${chance}`;
  if (source === 'agent') return `${done ?? 'decided'} by an agent${chance}`;
  return `${done ?? 'decided'} by ${by && by !== UNNAMED ? shownText(by) : 'a person'}`;
}
