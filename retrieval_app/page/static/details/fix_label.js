// A label, what speaks against it, and the form that keeps, changes or drops it.

import {button, find, icon, make, percent, refill, shownText} from '../core/dom.js';
import {post} from '../core/api.js';
import {announce, toast, toastError} from '../core/toast.js';
import {linkTo} from '../core/url_state.js';

const quoted = label => `\u201c${shownText(label)}\u201d`;
const DROP = 'It shows no known label: leave it out of training';
const DONE = {keep: 'kept', change: 'changed', drop: 'dropped', open: 'decided no more'};

/**
 * The label of an image with its form, if people may decide here; `decided()` is called after a decision.
 *
 * @param {ImageDetails} image
 * @param {{facts: GalleryFacts, decided: () => void}} given
 */
export function drawLabelForm(image, {facts, decided}) {
  const element = make('div.label-form.column');
  const form = make('form', {class: 'column', hidden: true});
  const given = image.given_label === undefined ? image.label : image.given_label;
  const can = facts.permissions.review;
  const toggle =
    can
    && button(
      image.label === null ? 'Set label' : 'Fix label',
      {icon: 'label', class: 'small push', 'aria-expanded': 'false'},
      () => open(form.hidden),
    );

  function open(wanted) {
    form.hidden = !wanted;
    if (toggle) toggle.setAttribute('aria-expanded', String(wanted));
    if (wanted) find(form, 'input').focus();
  }

  async function decide(decision, label = null) {
    const choice = {image_id: image.id, decision, label, label_seen: image.label};
    let step;
    try {
      ({step} = await post('labels/decisions', {decisions: [choice]}));
    } catch (error) {
      toastError(error);
      if (error.code === 'conflict') decided(); // it is another image now, or has another label
      return;
    }
    const words = decision === 'change' ? `Label changed to ${quoted(label)}` : `Label ${DONE[decision]}`;
    toast(words, {kind: 'good', action: {text: 'Undo', run: () => undo(step, decided)}});
    decided();
  }

  if (can) fillForm(form, {image, given, facts, decide});
  refill(element, [
    make('div.row', [
      image.label === null ? make('span.soft', 'No label') : make('span.chip', make('span', shownText(image.label))),
      drawDecision(image),
      can && image.decision?.decision === 'drop' && button('Bring back', {class: 'small'}, () => decide('open')),
      toggle,
    ]),
    drawIssue(image, {can, decide}),
    form,
  ]);
  return element;
}

/** @param {ImageDetails} image */
function drawDecision({decision, given_label: given, dropped}) {
  if (dropped && decision?.decision !== 'drop') {
    const href = linkTo({view: 'duplicates', extra: {state: 'decided'}});
    return make('a', {href, title: 'Open its group again to bring it back'}, 'dropped as a near-duplicate');
  }
  if (!decision) return null;
  if (given !== undefined) return make('span.soft', `was: ${shownText(given ?? 'no label')}`);
  return make('span.chip.on', icon('check', 13), make('span', DONE[decision.decision]));
}

/** @param {ImageDetails} image */
function drawIssue(image, {can, decide}) {
  const {label_issue: issue} = image;
  if (!issue || image.decision) return null;
  const {suggested} = issue;
  return make('div.issue', [
    icon('warning', 18),
    make('div.column', [
      make('span', [
        issue.label === null
          ? `Proposed label: ${quoted(suggested)}, with a probability of ${percent(issue.p_error)}.`
          : `Label issue: the label is wrong with a probability of ${percent(issue.p_error)}.`,
        suggested && issue.label !== null && ` Images that look like it are mostly ${quoted(suggested)}.`,
      ]),
      can
        && make('div.row', [
          suggested
            && button(
              `${issue.label === null ? 'Set label' : 'Change to'} ${quoted(suggested)}`,
              {class: 'small'},
              () => decide('change', suggested),
            ),
          issue.label !== null && button('Keep it', {class: 'small'}, () => decide('keep')),
        ]),
    ]),
  ]);
}

function fillForm(form, {image, given, facts, decide}) {
  const input = make('input', {
    class: 'input',
    list: 'all-labels',
    id: 'new-label',
    autocomplete: 'off',
    placeholder: image.label === null ? 'A label, or a new one' : shownText(image.label),
  });
  const unchanged = () => ['', image.label].includes(input.value.trim());
  const change = button('Change', {class: 'primary', type: 'submit', disabled: true});
  input.addEventListener('input', () => {
    change.disabled = unchanged();
  });
  refill(form, [
    make('label', {for: 'new-label', class: 'small'}, 'The right label'),
    make('div.row.nowrap', input, change),
    make('datalist', {id: 'all-labels'}, [facts.labels.names.map(name => make('option', {value: name}))]),
    make('div.row', [
      given !== null
        && button(
          given === image.label ? 'Keep as it is' : `Back to ${quoted(given)}`,
          {icon: 'check', class: 'small'},
          () => decide('keep'),
        ),
      given === null && image.decision && button('No label again', {class: 'small'}, () => decide('open')),
      button('Drop from the labels', {icon: 'close', class: 'small danger', title: DROP}, () => decide('drop')),
    ]),
  ]);
  form.addEventListener('submit', event => {
    event.preventDefault();
    if (!unchanged()) decide('change', input.value.trim());
  });
}

async function undo(step, decided) {
  try {
    const {undone} = await post('labels/undo', {step});
    if (undone.length) announce('Undone');
    else toast('It was taken back before');
    decided();
  } catch (error) {
    toastError(error);
  }
}
