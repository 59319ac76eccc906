// A label, the evidence against it, and the form that keeps, changes or drops it.

import {button, find, icon, make, refill, sentence, shownText} from '../core/dom.js';
import {post} from '../core/api.js';
import {describeSource, drawChances, isUncertain} from '../core/label_trust.js';
import {announce, toast, toastError} from '../core/toast.js';
import {linkTo} from '../core/url_state.js';

const quoted = label => `\u201c${shownText(label)}\u201d`;
const ASIDE = 'No label is certain: excluded from training and results until a person decides';
const DROP = 'It shows none of the labels: exclude it';
const DONE = {keep: 'kept', change: 'changed', set_aside: 'set aside', drop: 'dropped', open: 'undecided again'};

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
    const what = ['drop', 'set_aside'].includes(decision) ? 'Image' : 'Label';
    const words = decision === 'change' ? `Label changed to ${quoted(label)}` : `${what} ${DONE[decision]}`;
    toast(words, {kind: 'good', action: {text: 'Undo', run: () => undo(step, decided)}});
    decided();
  }

  if (can) fillForm(form, {image, given, facts, decide});
  refill(element, [
    make('div.row', [
      image.label === null ? make('span.soft', 'No label') : make('span.chip', make('span', shownText(image.label))),
      drawDecision(image),
      can && isLeftOut(image.decision) && button('Bring back', {class: 'small'}, () => decide('open')),
      toggle,
    ]),
    drawSource(image, {can, decide}),
    drawIssue(image, {can, decide}),
    form,
  ]);
  return element;
}

/** @param {ImageDetails} image */
function drawDecision({decision, given_label: given, dropped}) {
  if (dropped && !isLeftOut(decision)) {
    const href = linkTo({view: 'duplicates', extra: {state: 'decided'}});
    return make('a', {href, title: 'Open its group again to bring it back'}, 'dropped as a near-duplicate');
  }
  if (!decision) return null;
  if (given !== undefined) return make('span.soft', `was: ${shownText(given ?? 'no label')}`);
  if (isLeftOut(decision)) return make('span.chip.warn', make('span', DONE[decision.decision]));
  return make('span.chip.on', icon('check', 13), make('span', DONE[decision.decision]));
}

const isLeftOut = decision => ['drop', 'set_aside'].includes(decision?.decision);

/** Who decided; what was accepted in bulk can be confirmed. @param {ImageDetails} image */
function drawSource({decision}, {can, decide}) {
  if (!decision) return null;
  const isOpen = isUncertain(decision);
  return make('div.row', [
    make('span', {class: isOpen ? 'small warn' : 'small soft'}, sentence(describeSource(decision) ?? '')),
    can
      && isOpen
      && button('Confirm', {icon: 'check', class: 'small'}, () => decide(decision.decision, decision.label)),
  ]);
}

/** @param {ImageDetails} image */
function drawIssue(image, {can, decide}) {
  const {label_issue: issue} = image;
  if (!issue || (image.decision && image.decision.decision !== 'set_aside')) return null;
  const {suggested} = issue;
  return make('div.issue', [
    icon('warning', 18),
    make('div.column', [
      make('span', [
        issue.label === null ? 'Proposed label: ' : 'Label issue. ',
        suggested
          && (issue.label === null ? quoted(suggested) : `Images that look like it are mostly ${quoted(suggested)}.`),
      ]),
      drawChances(issue),
      can
        && make('div.row', [
          suggested
            && button(
              `${issue.label === null ? 'Set label' : 'Change to'} ${quoted(suggested)}`,
              {class: 'small'},
              () => decide('change', suggested),
            ),
          issue.label !== null && button('Keep it', {class: 'small'}, () => decide('keep')),
          !image.decision && button('Set aside', {class: 'small', title: ASIDE}, () => decide('set_aside')),
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
      !isLeftOut(image.decision) && button('Set aside', {class: 'small', title: ASIDE}, () => decide('set_aside')),
      button('Drop', {icon: 'close', class: 'small danger', title: DROP}, () => decide('drop')),
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
    else toast('It was already undone');
    decided();
  } catch (error) {
    toastError(error);
  }
}
