// The label file below the list, its messages, and the link from an image to a search with it.

import {withGallery} from '../core/api.js';
import {button, count, make} from '../core/dom.js';
import {openExport, quote} from '../core/export_command.js';
import {linkTo} from '../core/url_state.js';

/** Images that are fetched at a time. */
export const PAGE = 30;

/** Where decisions are kept, in a sentence. */
export const KEPT =
  'What you decide shows at once in search, filters, Quality and exports; images that are dropped or set aside leave the '
  + 'results. Images and folders stay as they are.';

/** Message above the list about training on the decisions. */
export function drawHint() {
  const command = make('code');
  withGallery(({name, folder}) => command.append(trainOn(quote(folder ?? name))));
  return [
    'Train on the labels as decided, with the options of your last training if there was one: ',
    command,
    '. The label file lists them for other programs. Or ',
    button('export the data set', {class: 'quiet small'}, () => openExport()),
  ];
}

const trainOn = place => `retrieval train ${place} --out run-cleaned`;

/** The download: its route, the text of the button, and the message when it is saved. */
export const FILE = {path: 'labels/file', text: 'Download label file', after: describeFile};

/** Link from an image to a search with it. */
export function drawLead(id, close, props = {}) {
  const href = linkTo({view: 'search', parts: [{image: id, role: 'like', crop: null}], details: id});
  return make('a', {...props, href, onclick: close}, 'Search with this image');
}

const LEFT_OUT = {
  'set-aside': 'set aside',
  dropped: 'dropped',
  unlabelled: 'without a label',
  'in-archives': 'in archives, which training does not read',
  unnamable: 'with names that are no UTF-8',
};

// The message about the file, from the counts in the headers of the answer.
function describeFile(headers, paths) {
  const counted = name => Number(headers.get(`x-labels-${name}`) ?? 0);
  const changed = counted('changed');
  const rows = counted('kept') + changed;
  const left = Object.entries(LEFT_OUT)
    .filter(([name]) => counted(name) > 0)
    .map(([name, words]) => `${counted(name).toLocaleString('en')} ${words}`);
  return [
    `Saved as labels.csv: ${count(rows, 'image')}${changed ? `, ${changed.toLocaleString('en')} with another label` : ''}.`,
    left.length && `Left out: ${left.join(', ')}.`,
    paths === 'relative' && 'Move it into the folder of the images.',
    `Train with it, with the options of your last training if there was one: ${trainOn('labels.csv')}`,
  ]
    .filter(Boolean)
    .join(' ');
}
