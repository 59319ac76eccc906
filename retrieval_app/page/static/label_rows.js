// One doubted label as a row: the picture, given → suggested, why, and what can be decided.

import {bar} from './charts.js';
import {make, percent, refill, shownText} from './dom.js';
import {thumb} from './thumbs.js';

/** What a decision says, in words; null is one taken back. */
export function wordsFor(decision) {
  if (!decision) return 'Decision taken back';
  return {keep: 'Label kept', change: `Changed to ${shownText(decision.label)}`, drop: 'Dropped: no clear label'}[
    decision.decision
  ];
}

/** The decision that accepts what is suggested; null without a suggestion. */
export function proposalOf({label, suggested}) {
  return suggested && suggested !== label ? {decision: 'change', label: suggested} : null;
}

const named = (text, kind) => make('span', {class: `clip ${kind}`, title: shownText(text)}, shownText(text));

/** "polo → t-shirt". */
export function drawPair(item) {
  return make(
    'p',
    {class: 'given-suggested'},
    named(item.label, 'given'),
    proposalOf(item) && [
      make('span', {class: 'arrow', role: 'img', 'aria-label': 'looks like'}, '→'),
      named(item.suggested, 'suggested'),
    ],
  );
}

/**
 * The row of an item; on: {focus(item), zoom(item), zoomNeighbour(neighbour, item), decide(item, decision | null),
 * ask(item), select(item, checked, event)}; no buttons where decisions cannot be made.
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
    'div',
    {class: 'doubt-picture'},
    make(
      'button',
      {type: 'button', class: 'zoomer', 'aria-label': `Enlarge ${name}`, onclick: () => on.zoom(item)},
      thumb(item.id),
    ),
    box,
  );
  const about = make(
    'div',
    {class: 'doubt-about'},
    make(
      'p',
      {class: 'doubt-head'},
      make('b', {class: item.wrong >= 0.5 ? 'bad' : ''}, percent(item.wrong)),
      ' chance that the label is wrong',
    ),
    drawPair(item),
    make(
      'div',
      {class: 'suggestions', role: 'group', 'aria-label': 'What it may be'},
      item.suggestions.slice(0, 3).map((suggestion, n) => drawSuggestion(item, suggestion, n, {on, canReview})),
    ),
    make('p', {class: 'clip small soft doubt-path', title: name}, name),
  );
  const near = make(
    'div',
    {class: 'doubt-near'},
    drawNear('Nearest with this label', item.agreeing, item, on),
    drawNear('Nearest with other labels', item.disagreeing, item, on),
  );
  const decide = make('div', {class: 'decide', role: 'group', 'aria-label': 'Decision'});
  const node = make(
    'article',
    {
      class: 'doubt-row',
      tabindex: 0,
      dataset: {id: item.id},
      'aria-label': `${name}, labelled ${shownText(item.label)}, ${percent(item.wrong)} chance of being wrong`,
      onfocusin: () => on.focus(item),
    },
    picture,
    about,
    near,
    decide,
  );
  const redraw = () => {
    node.classList.toggle('decided', item.decision !== null);
    if (canReview) drawDecide(decide, item, on);
    else refill(decide, item.decision && make('span', {class: 'chip on'}, wordsFor(item.decision)));
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
  const own = label === item.label,
    words = own ? 'Keep the label' : `Change to ${shownText(label)}`;
  const inside = [
    canReview && make('kbd', {'aria-hidden': 'true'}, String(n + 1)),
    canReview && make('span', {class: 'visually-hidden'}, own ? 'Keep ' : 'Change to '),
    named(label, own ? 'name own' : 'name'),
    bar(confidence),
    make('span', {class: 'figures soft'}, percent(confidence)),
  ];
  if (!canReview) return make('div', {class: 'suggestion'}, inside);
  return make(
    'button',
    {
      type: 'button',
      class: 'suggestion',
      title: `${words} (${n + 1})`,
      onclick: () => on.decide(item, own ? {decision: 'keep', label: null} : {decision: 'change', label}),
    },
    inside,
  );
}

function drawNear(title, neighbours, item, on) {
  const items = neighbours.slice(0, 3).map(neighbour => {
    const label = shownText(neighbour.label ?? item.label);
    return make(
      'li',
      {},
      make(
        'button',
        {
          type: 'button',
          class: 'zoomer',
          'aria-label': `Enlarge neighbour, ${label}, score ${neighbour.score.toFixed(2)}`,
          onclick: () => on.zoomNeighbour(neighbour, item),
        },
        thumb(neighbour.id, {side: 128}),
      ),
      make('span', {class: 'clip'}, label),
      make('span', {class: 'soft figures'}, neighbour.score.toFixed(2)),
    );
  });
  return make(
    'div',
    {},
    make('h3', {}, title),
    items.length ? make('ul', {}, items) : make('p', {class: 'small soft'}, 'None is near'),
  );
}

// A pressed button takes its decision back.
function drawDecide(place, item, on) {
  const {decision} = item,
    proposal = proposalOf(item);
  const isSuggested = decision?.decision === 'change' && decision.label === item.suggested;
  const isOther = decision?.decision === 'change' && !isSuggested;
  const entry = (key, words, pressed, run, title = words, kind = '') =>
    make(
      'button',
      {
        type: 'button',
        class: `decision ${kind}`,
        'aria-pressed': String(pressed),
        title: pressed ? 'Take it back' : title,
        onclick: pressed ? () => on.decide(item, null) : run,
      },
      make('span', {class: 'clip'}, words),
      make('kbd', {'aria-hidden': 'true'}, key),
    );
  const focused = [...place.children].indexOf(document.activeElement);
  refill(
    place,
    proposal
      && entry(
        'A',
        `Change to ${shownText(item.suggested)}`,
        isSuggested,
        () => on.decide(item, proposal),
        undefined,
        'proposed',
      ),
    entry('L', `Keep ${shownText(item.label)}`, decision?.decision === 'keep', () =>
      on.decide(item, {decision: 'keep', label: null}),
    ),
    entry(
      'R',
      isOther ? `→ ${shownText(decision.label)}` : 'Other label…',
      isOther,
      () => on.ask(item),
      'Change to a label you type',
    ),
    entry(
      'X',
      'Drop image',
      decision?.decision === 'drop',
      () => on.decide(item, {decision: 'drop', label: null}),
      'It shows none of the labels clearly: leave it out of the label file',
    ),
  );
  if (focused >= 0) place.children[Math.min(focused, place.children.length - 1)].focus({preventScroll: true});
}
