// What a label file that was just saved has, and what it leaves out, in words.

import {count} from './dom.js';

const LEFT_OUT = {
  dropped: 'dropped',
  unlabelled: 'without a label',
  'in-archives': 'in archives, which training does not read',
  unnamable: 'with names that are no UTF-8',
};

/** The message about the file, from the counts in the headers of the answer. */
export function describeFile(headers) {
  const counted = name => Number(headers.get(`x-labels-${name}`) ?? 0);
  const changed = counted('changed'),
    rows = counted('kept') + changed;
  const left = Object.entries(LEFT_OUT)
    .filter(([name]) => counted(name) > 0)
    .map(([name, words]) => `${counted(name).toLocaleString('en')} ${words}`);
  return [
    `Saved as labels.csv: ${count(rows, 'image')}${changed ? `, ${changed.toLocaleString('en')} with another label` : ''}.`,
    left.length && `Left out: ${left.join(', ')}.`,
    'Train with it: retrieval train labels.csv --weights imagenet --out run',
  ]
    .filter(Boolean)
    .join(' ');
}
