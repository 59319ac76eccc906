// The keys of the search view; those of a card are the grid's own, and only told of here.

import {registerKeys} from '../core/keys.js';
import {depth} from '../core/url_state.js';

/** Register them for the view. */
export function registerSearchKeys(view) {
  const enterGrid = event => {
    if (view.details.isOpen() && ['ArrowLeft', 'ArrowRight'].includes(event.key)) {
      view.step(event.key === 'ArrowLeft' ? -1 : 1);
      return true;
    }
    if (document.activeElement !== document.body && !document.activeElement?.matches('.view')) return false;
    if (event.key === 'ArrowUp' || event.key === 'ArrowLeft') return false;
    return view.grid.focusFirst();
  };
  registerKeys('search', 'Search', [
    {keys: ['/'], does: 'Write in the text box', run: () => view.box.focus()},
    {keys: ['Escape'], does: 'Close, clear the selection, or go back', run: () => leave(view), whileTyping: true},
    {keys: ['Ctrl+v'], does: 'Search with a copied photo'},
  ]);
  registerKeys('search', 'Results', [
    {keys: ['ArrowLeft', 'ArrowUp', 'ArrowDown', 'ArrowRight'], does: 'Go over the results', run: enterGrid},
    {keys: ['Enter'], does: 'Search with this image'},
    {keys: [' ', 'i'], does: 'Details'},
    {keys: ['m'], does: 'More like this'},
    {keys: ['l'], does: 'Less like this'},
    {keys: ['x'], does: 'Select; with Shift and a click, all between'},
  ]);
}

function leave(view) {
  if (view.narrow.classList.contains('open')) view.showFilters(false);
  else if (view.details.isOpen()) view.close();
  else if (view.selection.size() > 0) view.selection.clear();
  else if (depth() > 0) history.back();
  else return false;
  return true;
}
