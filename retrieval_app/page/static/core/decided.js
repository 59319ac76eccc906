// Decisions about labels change what the other views show: they load again when they are shown next.

import {onState} from './url_state.js';

/** Call `load()` when a view is shown the first time after labels were decided. */
export function reloadAfterDecisions(view, load) {
  let outdated = false;
  addEventListener('labels-decided', () => {
    outdated = true;
  });
  onState(state => {
    if (!outdated || state.view !== view) return;
    outdated = false;
    load();
  });
}
