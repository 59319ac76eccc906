// What the page of an audit shows, which no address says; in the place of core/url_state.js there.

let state = {view: 'labels', extra: {}};
const listeners = [];

/** What is shown now: `extra` has the filters by name. */
export const readState = () => state;

/** Change it; then all listeners hear of it. */
export function writeState(change) {
  state = {...state, ...change};
  for (const run of listeners) run(state);
}

/** Have `run(state)` called after each change. */
export const onState = run => listeners.push(run);
