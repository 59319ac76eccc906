// What a view shows while the server computes, when that failed, and when there is nothing: the same in every view.

import {ApiError, getReady, isAborted} from './api.js';
import {button, icon, make, percent, refill, sentence} from './dom.js';

/** A box in place of content: `notice({icon: 'photo', title, text}, button, …)`. */
export function notice({icon: drawing = 'info', title, text = null, bad = false}, ...more) {
  return make(
    'div',
    {class: `notice ${bad ? 'error' : ''}`, role: bad ? 'alert' : null},
    icon(drawing, 28),
    make('h2', {}, title),
    text && make('p', {}, text),
    more,
  );
}

/** Show in `place` how far the server is with `path`, then give its answer; null after a failure, which is shown. */
export async function awaitReady(place, path, {params = {}, what, why, drawing = 'chart', retry, signal}) {
  const track = make('div', {class: 'progress', role: 'progressbar', 'aria-label': what});
  const words = make('p', {class: 'small figures'});
  const box = make('div', {class: 'notice'}, icon(drawing, 28), make('h2', {}, what), make('p', {}, why), track, words);
  const shown = setTimeout(() => refill(place, box), 250); // what is ready at once shows no progress
  try {
    return await getReady(path, params, {
      signal,
      onProgress: ({done, total}) => {
        if (total > 0) {
          track.style.setProperty('--share', done / total);
          track.setAttribute('aria-valuenow', Math.round((100 * done) / total));
          words.textContent = percent(done / total);
        } else words.textContent = 'Waiting for its turn';
      },
    });
  } catch (error) {
    clearTimeout(shown);
    if (!isAborted(error)) showFailure(place, error, retry);
    return null;
  } finally {
    clearTimeout(shown);
  }
}

/** A failure in the place of the content, with a way to try again. */
export function showFailure(place, error, retry) {
  if (!(error instanceof ApiError)) console.error(error);
  refill(
    place,
    notice(
      {icon: 'warning', title: 'This could not be shown', text: sentence(error.message || 'Something went wrong.'), bad: true},
      button('Try again', {class: 'primary'}, retry),
    ),
  );
}

/** The filter expression that keeps one label, or several. */
export function whereLabel(...labels) {
  const quoted = labels.map(label => `'${label.replaceAll("'", "''")}'`);
  return quoted.length === 1 ? `label = ${quoted[0]}` : `label IN (${quoted.join(', ')})`;
}
