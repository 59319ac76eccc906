// Row of a label issue: the image, given → suggested label, kind, nearest images and the buttons to decide.

import {bar} from '../core/charts.js';
import {button, make, percent, refill, refillKeepingFocus, shownName, shownScore, shownText} from '../core/dom.js';
import {describeSource, drawChances, isUncertain} from '../core/label_trust.js';
import {decisionButton} from './review_bar.js';
import {zoomer} from '../core/thumbs.js';

/** Text for a decision; null: undone. @param {LabelDecision | null} decision */
export function wordsFor(decision) {
  if (!decision) return 'Decision undone';
  const words = {
    keep: 'Label kept',
    change: `Changed to ${shownText(decision.label)}`,
    set_aside: 'Set aside',
    drop: 'Dropped',
  };
  return words[decision.decision] ?? decision.decision;
}

/** Decisions that take no new label. */
/** @type {LabelDecision} */
export const KEEP = {decision: 'keep', label: null};
/** @type {LabelDecision} */
export const SET_ASIDE = {decision: 'set_aside', label: null};
/** @type {LabelDecision} */
export const DROP = {decision: 'drop', label: null};

const LIKELY_ERROR = 0.5; // least probability of a label error from which on keeping the label is never recommended

/** Message where there is no recommendation. */
export const LOOK = 'Look: no recommendation';

/**
 * The decision that accepts the verdict; null without a recommendation. The verdict on a rare class, or on the
 * near-duplicate that stays, is `keep` even where the label is probably wrong: then a person should check it.
 *
 * @param {LabelIssueEntry} item
 * @returns {LabelDecision | null}
 */
export function proposalOf({verdict, suggested, label, p_error: probability}) {
  if (verdict === 'change' && suggested !== null) return {decision: 'change', label: suggested};
  if (verdict === 'set_aside') return SET_ASIDE;
  if (verdict === 'drop') return DROP;
  return verdict === 'keep' && (label === null || probability < LIKELY_ERROR) ? KEEP : null;
}

/** The kind of labels proposed for images without one. */
export const PROPOSAL = 'unlabelled';

/** Kinds of label issues. */
export const KINDS = {
  wrong_label: {title: 'Wrong label', means: 'another label fits better'},
  ambiguous: {title: 'Ambiguous', means: 'this label and another one are both probable; perhaps both fit'},
  confused_classes: {title: 'Confused classes', means: 'the two labels are used for each other'},
  rare_class: {title: 'Rare class', means: 'fewer than five images have this label'},
  outlier: {title: 'Outlier', means: 'the image shows none of the labels'},
  conflicting_duplicates: {title: 'Conflicting duplicates', means: 'a near-duplicate has another label'},
  split_class: {title: 'Split class', means: 'the images with this label are of two kinds that are not alike'},
  unlabelled: {title: 'Unlabelled', means: 'the label is proposed from the labelled images'},
};

const CONFUSED_SHOWN = 5;
const CONFUSED_ADVICE = ' Merge the two labels if they mean the same; else tell people the difference.';

/** Pairs of labels that are used for each other; a pair filters the list by the first label and the second as suggestion. */
export function drawConfused(place, pairs, choose) {
  place.hidden = !pairs.length;
  const draw = ({labels: [one, two], images}) =>
    button(
      `${shownText(one)} ↔ ${shownText(two)} (${Math.round(images)})`,
      {class: 'quiet small', title: 'Show these'},
      () => choose({label: one, suggested: two}),
    );
  refill(place, ['Confused classes, used for each other: ', pairs.slice(0, CONFUSED_SHOWN).map(draw), CONFUSED_ADVICE]);
}

const UNSURE = 'No label is certain: excluded from training and results until a person decides';
const NO_LABEL = 'It shows none of the labels: leave it out for good';
const isProposal = item => item.label === null;
const changeTo = (item, label) => `${isProposal(item) ? 'Set label' : 'Change to'} ${shownText(label)}`;
const say = ({decision, label}, item) =>
  ({
    change: changeTo(item, label),
    keep: isProposal(item) ? 'Leave unlabelled' : `Keep ${shownText(item.label)}`,
    set_aside: 'Set aside',
    drop: 'Drop',
  })[decision];

const named = (text, kind) => make('span', {class: `two-lines ${kind}`, title: shownText(text)}, shownName(text));

const BACK = 'Back into training and results, with the label as it is given';
const CONFIRM = 'You checked the image: the label is right';

/** A decision of the machine as that of a person, who makes it certain. @param {LabelDecision} decision @returns {LabelDecision} */
export const confirmed = ({decision, label}) => ({decision, label});

const verdictOf = item => (proposalOf(item)?.decision ?? 'look').replace('_', ' ');

/** Who decided, and why an image was set aside. @param {LabelIssueEntry} item */
function explainDecision({decision, kind, label, p_suggested: suggested, p_error: error, p_none: none}) {
  const who = describeSource(/** @type {LabelDecision} */ (decision));
  if (decision?.decision !== 'set_aside' || !kind || decision.source !== 'bulk') return who ?? '';
  const likeliest = Math.max(suggested, label === null ? 0 : 1 - error, none);
  return `${who}: no label is sure enough, the most probable one has ${percent(likeliest)}`;
}

/** "polo → t-shirt". @param {LabelIssueEntry} item */
export function drawPair(item) {
  return make('p.given-suggested', [
    named(item.label ?? 'no label', 'given'),
    ['change', 'set_aside'].includes(item.verdict)
      && item.suggested !== null && [
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
  const made = make('p.small.issue-made', {hidden: true});
  const about = make('div.issue-about', [
    item.kind && drawChances(item),
    item.kind
      && !['wrong_label', PROPOSAL].includes(item.kind)
      && make('p.small.soft', `${KINDS[item.kind].title}: ${KINDS[item.kind].means}`),
    make('div.issue-head', drawPair(item), item.kind && !isProposal(item) && make('span.chip', verdictOf(item))),
    make('div', {class: 'suggestions', role: 'group', 'aria-label': 'What it may be'}, [
      item.suggestions.slice(0, 3).map((suggestion, n) => drawSuggestion(item, suggestion, n, {on, canReview})),
    ]),
    made,
    make('p', {class: 'clip small soft issue-path', title: name}, name),
  ]);
  const near = make('div.issue-near', [
    item.kind && [
      drawNear(
        isProposal(item) ? 'Nearest with the proposed label' : 'Nearest with this label',
        item.agreeing,
        item,
        on,
      ),
      drawNear('Nearest with others', item.disagreeing, item, on),
    ],
  ]);
  const decide = make('div', {class: 'decide', role: 'group', 'aria-label': 'Decision'});
  const node = make(
    'article',
    {
      class: 'issue-row',
      tabindex: 0,
      dataset: {id: item.id},
      'aria-label': isProposal(item)
        ? `${name}, without a label, ${shownText(item.suggested)} with a probability of ${percent(item.p_error)}`
        : `${name}, labelled ${shownText(item.label)}${item.kind ? `, wrong with a probability of ${percent(item.p_error)}` : ''}`,
      onfocusin: () => on.focus(item),
    },
    [picture, about, near, decide],
  );
  const redraw = () => {
    node.classList.toggle('decided', item.decision !== null);
    made.textContent = item.decision ? explainDecision(item) : '';
    made.hidden = !made.textContent;
    made.classList.toggle('warn', isUncertain(item.decision));
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

function drawSuggestion(item, {label, probability}, n, {on, canReview}) {
  const own = label === item.label;
  const words = own ? 'Keep the label' : changeTo(item, label);
  const inside = [
    canReview && make('kbd', {'aria-hidden': 'true'}, String(n + 1)),
    canReview && make('span.visually-hidden', own ? 'Keep ' : isProposal(item) ? 'Set label ' : 'Change to '),
    named(label, own ? 'name own' : 'name'),
    bar(probability),
    make('span.figures.soft', percent(probability)),
  ];
  if (!canReview) return make('div.suggestion', inside);
  const run = () => on.decide(item, own ? KEEP : {decision: 'change', label});
  return make('button', {class: 'suggestion', title: `${words} (${n + 1})`, onclick: run}, inside);
}

function drawNear(title, neighbours, item, on) {
  const items = neighbours.slice(0, 3).map(neighbour => {
    const label = shownText(neighbour.label ?? item.label ?? item.suggested);
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
  const isSuggested =
    decision !== null && decision.decision === proposal?.decision && decision.label === proposal.label;
  const isOther = decision?.decision === 'change' && !isSuggested;
  const isAside = decision?.decision === 'set_aside';
  const entry = (key, words, pressed, run, more) =>
    decisionButton(key, words, {pressed, onclick: pressed ? () => on.decide(item, null) : run, ...more});
  const offer = (key, decided, pressed, more) =>
    entry(key, say(decided, item), pressed, () => on.decide(item, decided), more);
  const other = isOther ? `→ ${shownText(decision.label)}` : 'Other label…';
  refillKeepingFocus(place, [
    isAside && entry('B', 'Bring back', false, () => on.decide(item, null), {kind: 'proposed', title: BACK}),
    decision
      && isUncertain(decision)
      && entry('C', 'Confirm', false, () => on.decide(item, confirmed(decision)), {kind: 'proposed', title: CONFIRM}),
    isAside && proposal?.decision === 'set_aside'
      ? null
      : proposal
        ? offer('A', proposal, isSuggested, {kind: isAside ? '' : 'proposed'})
        : item.kind && make('p.small.soft', LOOK),
    proposal?.decision !== 'keep' && offer('L', KEEP, decision?.decision === 'keep'),
    entry('R', other, isOther, () => on.ask(item), {
      title: `${isProposal(item) ? 'Set' : 'Change to'} a label you type`,
    }),
    make('div.decide-pair', [
      proposal?.decision !== 'set_aside' && !isAside && offer('D', SET_ASIDE, false, {title: UNSURE}),
      proposal?.decision !== 'drop' && offer('X', DROP, decision?.decision === 'drop', {title: NO_LABEL}),
    ]),
  ]);
}
