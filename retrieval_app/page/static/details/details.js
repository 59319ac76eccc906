// Details of one image beside the results, or over them on phones: facts, score, label evidence, neighbours.

import {button, make, refill, sentence} from '../core/dom.js';
import {gallery, get, isAborted, previewUrl} from '../core/api.js';
import {precisionDot, precisionText} from '../core/precision.js';
import {drawDuplicates, drawFacts, drawTags, later, nameOf, neighbourSection, whySection} from './details_sections.js';
import {drawLabelForm} from './fix_label.js';
import {notice} from '../core/loading.js';
import {picture} from '../core/thumbs.js';
import {announce} from '../core/toast.js';

/**
 * The panel. `hit(id)` gives what the results know of an image, `act(name, id)` is called with 'search', 'more',
 * 'less' or 'open', `decided(image)` after a decision about its label, `step(-1 or 1)` goes to the result beside it, `close()` is called when it is
 * left. Has `element`, `show(id or null)`, `place()` for when results came, `isOpen()`.
 */
export function makeDetails({hit, act, decided, step, close}) {
  const body = make('div.details-body');
  const title = make('h2', {class: 'clip', tabindex: '-1'}, 'Details');
  const element = make('aside', {class: 'details', 'aria-label': 'Details', hidden: true}, [
    make('header.details-head', [
      title,
      button('Previous', {icon: 'left', iconOnly: true, class: 'quiet', title: 'Previous (←)'}, () => step(-1)),
      button('Next', {icon: 'right', iconOnly: true, class: 'quiet', title: 'Next (→)'}, () => step(1)),
      button('Close', {icon: 'close', iconOnly: true, class: 'quiet', title: 'Close (Esc)'}, close),
    ]),
    body,
  ]);
  const standing = make('div.standing-place');
  let shown = null;
  let running = null;

  async function load(id, {isDecided = false} = {}) {
    running?.abort();
    running = new AbortController();
    const {signal} = running;
    standing.replaceChildren();
    title.textContent = hit(id)?.path ? nameOf(hit(id).path) : 'Details';
    refill(body, drawPreview(id), drawActions(id, act), make('div.skeleton.block'));
    body.scrollTop = 0;
    try {
      const [image, facts] = await Promise.all([
        get(`images/${/** @type {number} */ (id)}`, undefined, {signal}),
        gallery(),
      ]);
      title.textContent = nameOf(image.path);
      refill(body, [
        drawPreview(id),
        drawActions(id, act),
        standing,
        make('section.column.label-section', [
          make('h3', 'Label'),
          drawLabelForm(image, {facts, decided: () => shown === id && load(id, {isDecided: true})}),
        ]),
        drawTags(image, {facts, changed: () => shown === id && load(id)}),
        later('Why: the labels of its nearest', whySection(image, {signal})),
        later('Its neighbours', neighbourSection(image, {signal, act})),
        image.duplicates.length > 0 && drawDuplicates(image, act),
        drawFacts(image),
      ]);
      place();
      if (isDecided) decided(image);
      announce(`Details of ${nameOf(image.path)}`);
    } catch (error) {
      if (isAborted(error)) return;
      const gone = error.status === 404;
      const way = button(gone ? 'Close' : 'Retry', {class: 'primary'}, () => (gone ? close() : load(id)));
      refill(body, notice({icon: '', title: 'No details', text: sentence(error.message), bad: true}, way));
    }
  }

  /** Say how near it is; the results may come later than the details. */
  function place() {
    const item = shown === null ? null : hit(shown);
    if (item) refill(standing, drawStanding(item));
  }

  return {
    element,
    place,
    isOpen: () => shown !== null,
    show(id) {
      if (id === shown) return;
      element.hidden = id === null;
      document.body.classList.toggle('showing-details', id !== null);
      shown = id;
      if (id !== null) load(id);
      else {
        running?.abort();
        refill(body);
      }
    },
    focus: () => title.focus({preventScroll: true}),
  };
}

function drawPreview(id) {
  const given = {href: previewUrl(id), target: '_blank', rel: 'noopener', 'aria-label': 'Open the image'};
  return make('a.details-picture', {...given, title: 'Open the image'}, picture(id));
}

function drawActions(id, act) {
  return make('div.row.details-actions', [
    button('Search with this', {icon: 'search', class: 'primary'}, () => act('search', id)),
    button('More like this', {icon: 'plus'}, () => act('more', id)),
    button('Less like this', {icon: 'minus'}, () => act('less', id)),
  ]);
}

/** @param {Item} item */
function drawStanding(item) {
  if (item?.score === undefined) return null;
  return make('p.standing', [
    item.precision_at_score && precisionDot(item.precision_at_score),
    make('span', [
      make('strong.figures', `${item.rank ? `Rank ${item.rank}, score` : 'Score'} ${item.score.toFixed(3)}. `),
      item.precision_at_score && precisionText(item.precision_at_score),
    ]),
  ]);
}
