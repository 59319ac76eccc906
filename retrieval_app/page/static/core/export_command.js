// The command that exports images as a data set for training, to copy: it may take long, and writes where people want it.

import {gallery} from './api.js';
import {openDialog} from './dialog.js';
import {make} from './dom.js';
import {copyText} from './toast.js';

/** Show the command for the images that a condition keeps; null for all. @param {string | null} where */
export async function openExport(where = null) {
  const {name, folder} = await gallery();
  const labelled = make('input', {type: 'checkbox', checked: true, onchange: () => draw()});
  const command = make('pre.command');
  const extra = make('p', ['Needs the Parquet extra, once: ', make('code', "pip install 'retrieval-app[parquet]'")]);
  function draw() {
    const conditions = [where, labelled.checked && 'label IS NOT NULL'].filter(Boolean);
    const kept = conditions.length > 1 ? `(${conditions[0]}) AND ${conditions[1]}` : conditions[0];
    const place = ['retrieval dataset export', quote(folder ?? name), '--out', quote(`${name}-data`)];
    command.textContent = [...place, ...(kept ? ['--where', quote(kept)] : [])].join(' ');
  }
  draw();
  openDialog({
    title: 'Export as a data set',
    body: make('div.column', [
      make('p', 'Labels as decided, without dropped images; tags, splits and metadata become columns.'),
      make('label.row', labelled, 'Only labelled images'),
      make('p', 'Run this on the machine of the gallery:'),
      command,
      extra,
    ]),
    actions: [{text: 'Copy', class: 'primary', run: () => copyText(command.textContent ?? '', 'Command copied')}],
  });
}

/** An argument for a shell. @param {string} text */
export function quote(text) {
  if (/^[\w./-]+$/.test(text)) return text;
  return /["$`\\!]/.test(text) ? `'${text.replaceAll("'", "'\\''")}'` : `"${text}"`;
}
