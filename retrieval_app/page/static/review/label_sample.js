// Sample of labels for a certificate: what it proves so far, the next images, its page.

import {download, get, post} from '../core/api.js';
import {openDialog} from '../core/dialog.js';
import {button, make, refill} from '../core/dom.js';
import {isUncertain} from '../core/label_trust.js';
import {toastError} from '../core/toast.js';

/**
 * The line above the sample's images; `show()` opens the sample, `update(list)` draws more once all are answered.
 *
 * @param {{canReview: boolean, choose: (state: string) => void}} given
 */
export function makeSample({canReview, choose}) {
  /** @type {CertificateState | null} */
  let found = null;
  let isDrawing = false;
  let isOutdated = false; // decisions came since
  let noted = 0; // the sample that is kept as proved
  const words = make('p', {role: 'status'});
  const actions = make('div.row');
  const element = make('div.column.sample-line', {hidden: true}, words, actions);
  const open = button('Check a sample…', {title: 'Prove that at most so many labels are wrong'}, () => show());

  async function show() {
    try {
      found = await get('labels/certificate');
      if (!found.number || found.changes.length) askGoal(found);
      else if (await drawMore({})) choose('sample');
    } catch (error) {
      toastError(error);
    }
  }
  /** @param {{at_most?: number, confidence?: number, new?: boolean}} body */
  async function drawMore(body) {
    try {
      found = await post('labels/certificate', body);
      return true;
    } catch (error) {
      toastError(error);
      return false;
    } finally {
      draw();
    }
  }
  /** @param {CertificateState} now */
  function askGoal(now) {
    const atMost = percentField('Share of wrong labels, in percent', {value: 100 * now.at_most || 2, max: 50});
    const confidence = percentField('Confidence, in percent', {value: 100 * now.confidence || 95, min: 50, max: 99.9});
    const begin = () =>
      drawMore({at_most: atMost.valueAsNumber / 100, confidence: confidence.valueAsNumber / 100, new: true}).then(
        isDone => isDone && choose('sample'),
      );
    openDialog({
      title: 'Check a sample of the labels',
      body: make('div.column', [
        now.changes.length > 0 && make('p.caution', `The last sample is out of date: ${now.changes.join('; ')}.`),
        make(
          'p',
          'You look at images drawn at random, those with a probable label error more often, and keep or change their labels. It ends as soon as this is proved:',
        ),
        make('div.accept-by', 'at most ', atMost, ' % of the labels are wrong,'),
        make('div.accept-by', 'at ', confidence, ' % confidence.'),
        make(
          'p.small.soft',
          'The proof holds whatever the probabilities are worth, and whenever you stop. If more labels are wrong than that, decide on the label issues first. A sample that is left unproved makes the next one stricter.',
        ),
      ]),
      actions: [
        {text: 'Cancel', class: 'quiet'},
        {text: 'Draw images', class: 'primary', run: begin},
      ],
    });
  }
  function draw() {
    if (!found?.number) return;
    const seen = `${found.looked_at.toLocaleString('en')} of ${found.labels.toLocaleString('en')} labels looked at, ${found.found_wrong.toLocaleString('en')} wrong.`;
    refill(words, make('b', {class: found.is_proved ? 'good' : ''}, found.verdict), ` ${seen}`);
    refill(actions, [
      button('Download the certificate', {icon: 'download', class: 'small'}, () =>
        download('labels/certificate/page').catch(toastError),
      ),
      canReview && button('New sample…', {class: 'small'}, () => found && askGoal(found)),
      button('Back to label issues', {class: 'small'}, () => choose('')),
    ]);
  }
  /** Show what the sample proves, and draw more images once all are answered. */
  async function turn(list) {
    found = await get('labels/certificate').catch(() => found);
    draw();
    const isAnswered = list.items.every(item => item.decision && !isUncertain(item.decision));
    if (!canReview || !found?.number || found.changes.length || !isAnswered) return;
    if (found.is_proved && noted === found.number) return;
    const wasEmpty = !list.items.length;
    const isDone = await drawMore({}); // which also keeps that it is proved
    if (found.is_proved) noted = found.number;
    else if (isDone) await list.refresh();
    if (wasEmpty && !list.items.length) isOutdated = false; // nothing to show: asking again would not help
  }
  return {
    element,
    open: canReview && open,
    /** @param {import('./review_list.js').ReviewList<LabelIssueEntry, LabelDecision>} list */
    async update(list) {
      const isShown = list.filter.state === 'sample';
      element.hidden = !isShown;
      if (!isShown) return;
      isOutdated = true;
      if (isDrawing) return; // the turn that goes on sees to it
      isDrawing = true;
      try {
        while (isOutdated && list.isSettled) {
          isOutdated = false;
          await turn(list);
        }
      } finally {
        isDrawing = false;
      }
    },
  };
}

/** @returns {HTMLInputElement} */
function percentField(name, {value, min = 0.1, max}) {
  return make('input', {class: 'input threshold', type: 'number', min, max, step: 'any', value, 'aria-label': name});
}
