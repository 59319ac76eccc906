// What `retrieval audit` wrote into the page: the audit, its images and their pictures.

/** The audit as a whole, and the images to decide on in `items`. */
export const data = JSON.parse(document.getElementById('audit')?.textContent ?? 'null');

/** All images by their number: those to decide on, and those shown beside them. */
export const images = data.images.map(([path, sha256, label, picture], id) => ({id, path, sha256, label, picture}));

/** What a decision holds for: the bytes of an image, and its label. */
export const keyOf = ({sha256, label}) => `${sha256}/${label}`;

const root = commonFolder(images.map(({path}) => path));

/** The images to decide on as the label list has them, in the order of their doubt; `wanted` is what a search reads. */
export const items = data.items.map((item, order) => {
  const {id, new_label: newLabel, suggestions, twin} = item;
  const {path, sha256, label} = images[id];
  const suggested = newLabel ?? suggestions.map(one => one.label).find(one => one !== label);
  return {
    ...item,
    order,
    sha256,
    label,
    path: path.slice(root.length),
    suggested: suggested ?? null,
    key: `${sha256}/${label}`,
    twin: twin === null ? null : {id: twin, label: images[twin].label, score: 1},
    wanted: [path.slice(root.length), label, suggested ?? ''].join('\n').toLowerCase(),
  };
});

/** Whether an audit doubts the label. */
export const isSuspect = item => item.verdict !== 'keep';

function commonFolder(paths) {
  if (!paths.length) return '';
  let folder = paths[0].slice(0, paths[0].lastIndexOf('/') + 1);
  for (const path of paths) {
    while (!path.startsWith(folder)) folder = folder.slice(0, folder.slice(0, -1).lastIndexOf('/') + 1);
  }
  return folder;
}
