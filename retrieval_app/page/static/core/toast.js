// Short messages at the foot of the page, and announcements to screen readers.

import {button, make, refill, sentence} from './dom.js';

const SECONDS = 6;
const MOST = 2;
let polite = null;
let stack = null;

/** Say something to screen readers only: a count of results, a change of order. */
export function announce(text) {
  polite ??= attach(make('div', {class: 'visually-hidden', role: 'status', 'aria-live': 'polite'}));
  refill(polite);
  setTimeout(() => refill(polite, text), 60); // a region that changes is read, one that is filled at birth is not
}

/**
 * Show a message: `toast('Saved', {kind: 'good', action: {text: 'Undo', run: undo}})`. Kinds: 'info', 'good', 'bad'.
 * Messages with an action or of kind 'bad' stay twice as long; returns the function that removes the message.
 *
 * @param {string} text
 * @param {{kind?: 'info' | 'good' | 'bad', action?: Required<Pick<Action, 'text' | 'run'>> | null}} how
 */
export function toast(text, {kind = 'info', action = null} = {}) {
  stack ??= attach(make('div', {class: 'app toasts', role: 'region', 'aria-label': 'Messages'}));
  const close = () => element.remove();
  const element = make('div', {class: `toast ${kind}`, role: kind === 'bad' ? 'alert' : 'status'}, [
    make('span', text),
    action
      && button(action.text, {class: 'quiet'}, () => {
        close();
        action.run();
      }),
    button('Dismiss', {icon: 'close', iconOnly: true, class: 'quiet'}, close),
  ]);
  stack.append(element);
  while (stack.children.length > MOST) stack.children[0].remove();
  let left = SECONDS * (action || kind === 'bad' ? 2 : 1);
  const timer = setInterval(() => {
    if (element.matches(':hover, :focus-within')) return;
    left -= 1;
    if (left <= 0 || !element.isConnected) {
      clearInterval(timer);
      close();
    }
  }, 1000);
  return close;
}

/** Put a text on the clipboard, and say so. @param {string} text @param {string} said */
export async function copyText(text, said) {
  try {
    await navigator.clipboard.writeText(text);
    toast(said, {kind: 'good'});
  } catch {
    toast('The browser does not let the page copy here. Mark the text and copy it by hand.', {kind: 'bad'});
  }
}

/** An ApiError, or any other error, as a message. */
export const toastError = error => toast(sentence(error.message || 'Something went wrong.'), {kind: 'bad'});

function attach(element) {
  document.body.append(element);
  return element;
}
