// Several results chosen at once: what can be done with them, in a bar at the foot.

import {button, count, make, refill} from '../core/dom.js';
import {download, withGallery} from '../core/api.js';
import {announce, toast, toastError} from '../core/toast.js';

const named = name => ({class: 'small', dataset: {name}});
const NARROW = matchMedia('(max-width: 760px)').matches;

/** The bar. `shown()` gives all ids on the page, `changed(ids)` hears of changes, `search(ids)` makes them a query. */
export function makeSelection({shown, changed, search}) {
  const element = make('div', {class: 'selection', role: 'toolbar', 'aria-label': 'Selection', hidden: true});
  const ids = new Set();
  let limits = {max_export_csv: 1000, max_export_zip: 1000, max_queries: 8};
  withGallery(facts => {
    limits = facts.limits;
  });

  function update() {
    element.hidden = ids.size === 0;
    document.body.classList.toggle('selecting', ids.size > 0);
    draw();
    changed(ids);
  }

  function draw() {
    const focused = element.querySelector(':focus')?.dataset.name;
    refill(element, [
      make('strong.figures', `${ids.size.toLocaleString('en')} selected`),
      button('Select all', named('all'), () => set([...ids, ...shown()])),
      ids.size <= limits.max_queries
        && button(NARROW ? 'Search' : 'Search with these', {icon: 'search', ...named('search')}, () =>
          search([...ids]),
        ),
      saver('csv', limits.max_export_csv, 'Ids, paths, labels and metadata as a table'),
      saver('zip', limits.max_export_zip, 'The images, and the table, which says of each that cannot be read why'),
      button('Clear', {icon: 'close', class: 'quiet small', dataset: {name: 'clear'}}, clear),
    ]);
    if (focused) element.querySelector(`[data-name="${focused}"]`)?.focus();
  }

  function saver(format, most, contents) {
    const refusal = ids.size > most ? `At most ${most.toLocaleString('en')} at once` : null;
    const given = {icon: 'download', disabled: refusal !== null, title: refusal ?? contents, ...named(format)};
    return button(format.toUpperCase(), given, () => save(format));
  }

  async function save(format) {
    const close = format === 'zip' ? toast(`Packing ${count(ids.size, 'image')}…`) : () => {};
    try {
      await download('export', {ids: [...ids], format});
      const saved = format === 'zip' ? 'Images and table' : 'Table';
      toast(`${saved} of ${count(ids.size, 'image')} saved`, {kind: 'good'});
    } catch (error) {
      toastError(error);
    } finally {
      close();
    }
  }

  function set(next) {
    ids.clear();
    for (const id of next) ids.add(id);
    update();
    announce(`${ids.size} selected`);
  }

  function clear() {
    set([]);
  }

  return {
    element,
    clear,
    size: () => ids.size,
    toggle(id) {
      set(ids.has(id) ? [...ids].filter(entry => entry !== id) : [...ids, id]);
    },
    /** All between two, as they stand on the page. */
    extend(from, to) {
      const order = shown();
      const [start, end] = [order.indexOf(from), order.indexOf(to)].sort((one, other) => one - other);
      set([...ids, ...(start < 0 ? [to] : order.slice(start, end + 1))]);
    },
  };
}
