// Modal dialogs: the browser's own <dialog>, which keeps the focus inside; it goes back where it was at the end.

import {button, make} from './dom.js';

let names = 0;

/** True while a modal dialog is open. */
export const isDialogOpen = () => document.querySelector('dialog.app-dialog[open]') !== null;

/**
 * Open a dialog with a title, a body (nodes) and, if any, buttons: [{text, class, run}], each of which closes it.
 * Gives `{element, close}`; `onClose` runs however it was closed.
 *
 * @param {{title: string, body: Child, actions?: Action[], onClose?: (() => void) | null, wide?: boolean}} given
 */
export function openDialog({title, body, actions = [], onClose = null, wide = false}) {
  const before = /** @type {HTMLElement | null} */ (document.activeElement);
  const name = `dialog-${(names += 1)}`;
  const element = make('dialog', {class: `app app-dialog${wide ? ' wide' : ''}`, 'aria-labelledby': name}, [
    make('header.dialog-head', [
      make('h2', {id: name}, title),
      button('Close', {icon: 'close', iconOnly: true, class: 'quiet'}, () => element.close()),
    ]),
    make('div.dialog-body', body),
    actions.length > 0
      && make('footer.dialog-foot', [
        actions.map(action =>
          button(action.text, {class: action.class ?? ''}, () => {
            element.close();
            action.run?.();
          }),
        ),
      ]),
  ]);
  element.addEventListener('click', event => {
    if (event.target === element) element.close(); // outside of it: the backdrop
  });
  element.addEventListener('close', () => {
    element.remove();
    if (before?.isConnected) before.focus({preventScroll: true});
    onClose?.();
  });
  document.body.append(element);
  element.showModal();
  return {element, close: () => element.close()};
}
