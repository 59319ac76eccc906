// Row of a label issue: the image, given → suggested label, kind, nearest images and the buttons to decide.

import {bar} from '../core/charts.js';
import {button, make, percent, refill, refillKeepingFocus, shownName, shownScore, shownText} from '../core/dom.js';
import {decisionButton} from './review_bar.js';
import {zoomer} from '../core/thumbs.js';

/** What a decision says, in words; null is one taken back. @param {LabelDecision | null} decision */
export function wordsFor(decision) {
  if (!decision) return 'Decision taken back';
  return {keep: 'Label kept', change: `Changed to ${shownText(decision.label)}`, drop: 'Dropped: no clear label'}[
    decision.decision
  ];
}

/** Decisions that take no new label. */
/** @type {LabelDecision} */
export const KEEP = {decision: 'keep', label: null};
/** @type {LabelDecision} */
export const DROP = {decision: 'drop', label: null};

/** The decision that accepts the verdict. @param {LabelIssueEntry} item @returns {LabelDecision} */
export const proposalOf = ({verdict, suggested}) =>
  verdict === 'change' ? {decision: 'change', label: suggested} : verdict === 'drop' ? DROP : KEEP;

/** What kind of trouble a label is in, and what it means. */
export const KINDS = {
  wrong: {title: 'Wrong label', means: 'another label fits better'},
  several: {
    title: 'Several may fit',
    means: 'this label and another one are both likely: look which, or whether both, fit',
  },
  mixed: {title: 'Labels mixed up', means: 'both labels are given in each other’s place: swapped, or are they one?'},
  rare: {title: 'Rare label', means: 'so few images have it that it is hardly known what it looks like'},
  unlike: {title: 'Unlike the others', means: 'no label is clear: it may show none of them'},
  copies: {title: 'Copies that differ', means: 'a near-duplicate of it has another label'},
};

const MIXED_SHOWN = 5;
const MIXED_ADVICE =
  ' If they are one, make one label of them; if not, somebody swapped them, or needs to be told what tells them apart.';

/** Pairs of labels that are given in each other's place; pressed, the images that have the first and show the second. */
export function drawMixed(place, pairs, choose) {
  place.hidden = !pairs.length;
  const draw = ({labels: [one, two], images}) =>
    button(
      `${shownText(one)} ↔ ${shownText(two)} (${Math.round(images)})`,
      {class: 'quiet small', title: 'Show these'},
      () => choose({label: one, suggested: two}),
    );
  refill(place, ['Mixed up, each given for the other: ', pairs.slice(0, MIXED_SHOWN).map(draw), MIXED_ADVICE]);
}

const NO_LABEL = 'It shows none of the labels clearly: leave it out of the label file';
const say = ({decision, label}, item) =>
  ({change: `Change to ${shownText(label)}`, keep: `Keep ${shownText(item.label)}`, drop: 'Drop image'})[decision];

const named = (text, kind) => make('span', {class: `two-lines ${kind}`, title: shownText(text)}, shownName(text));

/** "polo → t-shirt". @param {LabelIssueEntry} item */
export function drawPair(item) {
  return make('p.given-suggested', [
    named(item.label, 'given'),
    item.verdict === 'change' && [
      make('span', {class: 'arrow', role: 'img', 'aria-label': 'looks like'}, '→'),
      named(item.suggested, 'suggested'),
    ],
  ]);
}

/**
 * The row of an item; on: {focus(item), zoom(item), zoomNeighbour(neighbour, item), decide(item, decision | null),
 * ask(item), select(item, checked, event)}; no buttons where decisions cannot be made.
 *
 * @param {LabelIssueEntry} item
 */
export function drawRow(item, {on, canReview}) {
  const name = shownText(item.path);
  const box =
    canReview
    && make('input', {
      type: 'checkbox',
      'aria-label': `Select ${name}`,
      title: 'Select (S); with Shift up to here',
      onclick: event => on.select(item, event.currentTarget.checked, event),
    });
  const picture = make(
    'div.issue-picture',
    zoomer(item.id, name, () => on.zoom(item)),
    box,
  );
  const about = make('div.issue-about', [
    make('p.issue-head', [
      make('b', {class: item.wrong >= 0.5 ? 'bad' : ''}, percent(item.wrong)),
      ' chance that the label is wrong',
      make('span.chip', item.verdict),
    ]),
    item.kind && item.kind !== 'wrong' && make('p.small.soft', `${KINDS[item.kind].title}: ${KINDS[item.kind].means}`),
    drawPair(item),
    make('div', {class: 'suggestions', role: 'group', 'aria-label': 'What it may be'}, [
      item.suggestions.slice(0, 3).map((suggestion, n) => drawSuggestion(item, suggestion, n, {on, canReview})),
    ]),
    make('p', {class: 'clip small soft issue-path', title: name}, name),
  ]);
  const near = make('div.issue-near', [
    drawNear('Nearest with this label', item.agreeing, item, on),
    drawNear('Nearest with others', item.disagreeing, item, on),
  ]);
  const decide = make('div', {class: 'decide', role: 'group', 'aria-label': 'Decision'});
  const node = make(
    'article',
    {
      class: 'issue-row',
      tabindex: 0,
      dataset: {id: item.id},
      'aria-label': `${name}, labelled ${shownText(item.label)}, ${percent(item.wrong)} chance of being wrong`,
      onfocusin: () => on.focus(item),
    },
    [picture, about, near, decide],
  );
  const redraw = () => {
    node.classList.toggle('decided', item.decision !== null);
    if (canReview) drawDecide(decide, item, on);
    else refill(decide, item.decision && make('span.chip.on', wordsFor(item.decision)));
  };
  redraw();
  return {
    node,
    redraw,
    setSelected(selected) {
      if (box) box.checked = selected;
      node.classList.toggle('selected', selected);
    },
  };
}

function drawSuggestion(item, {label, confidence}, n, {on, canReview}) {
  const own = label === item.label;
  const words = own ? 'Keep the label' : `Change to ${shownText(label)}`;
  const inside = [
    canReview && make('kbd', {'aria-hidden': 'true'}, String(n + 1)),
    canReview && make('span.visually-hidden', own ? 'Keep ' : 'Change to '),
    named(label, own ? 'name own' : 'name'),
    bar(confidence),
    make('span.figures.soft', percent(confidence)),
  ];
  if (!canReview) return make('div.suggestion', inside);
  const run = () => on.decide(item, own ? KEEP : {decision: 'change', label});
  return make('button', {class: 'suggestion', title: `${words} (${n + 1})`, onclick: run}, inside);
}

function drawNear(title, neighbours, item, on) {
  const items = neighbours.slice(0, 3).map(neighbour => {
    const label = shownText(neighbour.label ?? item.label);
    const score = shownScore(neighbour.score);
    return make('li', [
      zoomer(neighbour.id, `neighbour, ${label}, score ${score}`, () => on.zoomNeighbour(neighbour, item), 128),
      make('span', {class: 'clip', title: label}, label),
      make('span.soft.figures', score),
    ]);
  });
  return make('div', make('h3', title), items.length ? make('ul', items) : make('p.small.soft', 'None is near'));
}

/** A pressed button takes its decision back. @param {HTMLElement} place @param {LabelIssueEntry} item */
function drawDecide(place, item, on) {
  const {decision} = item;
  const proposal = proposalOf(item);
  const isSuggested = decision !== null && decision.decision === proposal.decision && decision.label === proposal.label;
  const isOther = decision?.decision === 'change' && !isSuggested;
  const entry = (key, words, pressed, run, more) =>
    decisionButton(key, words, {pressed, onclick: pressed ? () => on.decide(item, null) : run, ...more});
  const offer = (key, decided, pressed, more) =>
    entry(key, say(decided, item), pressed, () => on.decide(item, decided), more);
  const other = isOther ? `→ ${shownText(decision.label)}` : 'Other label…';
  refillKeepingFocus(place, [
    offer('A', proposal, isSuggested, {kind: 'proposed'}),
    proposal.decision !== 'keep' && offer('L', KEEP, decision?.decision === 'keep'),
    entry('R', other, isOther, () => on.ask(item), {title: 'Change to a label you type'}),
    proposal.decision !== 'drop' && offer('X', DROP, decision?.decision === 'drop', {title: NO_LABEL}),
  ]);
}
