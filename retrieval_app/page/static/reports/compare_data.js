// What `retrieval compare` wrote into the page: the candidates, every two of them side by side, and the pictures.

/** The comparison as a whole. */
export const data = JSON.parse(document.getElementById('comparison')?.textContent ?? 'null');

/** How often the filter's queries occur, by its name: who of both is right, or that none is. */
export const FILTERS = ['first', 'second', 'wrong'];

/** What two candidates have to do with each other, whichever of them stands first: `first` is of `a`, `second` of `b`. */
export function pairOf(a, b) {
  const turned = a > b;
  const pair = data.pairs.find(({first, second}) => first === Math.min(a, b) && second === Math.max(a, b));
  const turn = ({first, second, ...more}) =>
    turned ? {first: second, second: first, ...more} : {first, second, ...more};
  const turnInterval = ([mean, low, high]) => (turned ? [-mean, -high, -low] : [mean, low, high]);
  return {
    counts: turn(pair.counts),
    shown: turn(pair.shown),
    recall: turnInterval(pair.recall),
    map: turnInterval(pair.map),
    enough: pair.enough,
  };
}

/** The classes with what `b` has right more than `a` there: those that gain most first. */
export const classesOf = (a, b) =>
  data.classes
    .map(([name, queries, right]) => ({name, queries, a: right[a], b: right[b], gain: right[b] - right[a]}))
    .sort((one, other) => other.gain - one.gain || other.queries - one.queries || one.name.localeCompare(other.name));

/** A photo by its number. */
export function photoOf(number) {
  const [path, label] = data.photos[number];
  return {path, label, picture: data.pictures[number], problem: data.gone[number] ?? 'it cannot be shown'};
}
