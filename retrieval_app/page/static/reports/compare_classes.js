// Beside the queries: which classes gain most by the second candidate, and which lose.

import {count, make, refillKeepingFocus, shownText} from '../core/dom.js';
import {classesOf} from './compare_data.js';

const LISTED = 8;

/** The classes that gain or lose most from `a` to `b`; `choose(name)` filters by one, or by none where it was chosen. */
export function drawClasses(place, {a, b, label}, choose) {
  const classes = classesOf(a, b);
  const gaining = classes.filter(({gain}) => gain > 0);
  const losing = classes.filter(({gain}) => gain < 0).reverse();
  const level = classes.length - gaining.length - losing.length;
  const list = (title, some) =>
    make('section', [
      make('h3', `${title} `, make('span.soft.small', count(some.length, 'class', 'classes'))),
      make(
        'ul',
        some.slice(0, LISTED).map(one => drawClass(one, {label, choose})),
      ),
      some.length > LISTED && make('p.soft.small', `and ${some.length - LISTED} more`),
    ]);
  refillKeepingFocus(place, [
    make('h2', 'By class'),
    make('p.soft.small', 'Queries whose first hit is right by B and not by A, less those the other way round.'),
    list('B gains', gaining),
    list('B loses', losing),
    level > 0 && make('p.soft.small', `${count(level, 'class', 'classes')} as good by both`),
  ]);
}

function drawClass({name, queries, a, b, gain}, {label, choose}) {
  const words = `${shownText(name)}: ${a} right by A, ${b} by B, of ${count(queries, 'query', 'queries')}`;
  const pressed = {'aria-pressed': String(name === label), title: words};
  return make(
    'li',
    make('button', {...pressed, onclick: () => choose(name === label ? null : name)}, [
      make('span.clip.grow', shownText(name)),
      make('span.soft.small.figures', `${a} \u2192 ${b} of ${queries}`),
      make(`b.figures.${gain > 0 ? 'more' : 'less'}`, gain > 0 ? `+${gain}` : `\u2212${-gain}`),
    ]),
  );
}
