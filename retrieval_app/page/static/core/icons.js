// The page's line drawings, 24 units wide, drawn in the colour of the text around them.

const SHAPES = {
  photo:
    'M5.5 4h13A2.5 2.5 0 0 1 21 6.5v11a2.5 2.5 0 0 1-2.5 2.5h-13A2.5 2.5 0 0 1 3 17.5v-11A2.5 2.5 0 0 1 5.5 4Z'
    + 'M9 11.8a1.8 1.8 0 1 0 0-3.6 1.8 1.8 0 0 0 0 3.6ZM4 18l5-5 4 4 3-3 4 4',
  search: 'M11 17.5a6.5 6.5 0 1 0 0-13 6.5 6.5 0 0 0 0 13ZM16 16l4.5 4.5',
  warning: 'M12 4 2.8 20h18.4L12 4ZM12 10v4.5M12 17.3v.2',
  close: 'm6 6 12 12M18 6 6 18',
  plus: 'M12 5v14M5 12h14',
  minus: 'M5 12h14',
  check: 'm5 12.5 4.5 4.5L19 7.5',
  info: 'M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18ZM12 11v5.5M12 7.6v.2',
  copy:
    'M9 8.5h9.5A1.5 1.5 0 0 1 20 10v9.5a1.5 1.5 0 0 1-1.5 1.5H9a1.5 1.5 0 0 1-1.5-1.5V10A1.5 1.5 0 0 1 9 8.5Z'
    + 'M4.5 15.5A1.5 1.5 0 0 1 3 14V4.5A1.5 1.5 0 0 1 4.5 3H14a1.5 1.5 0 0 1 1.5 1.5',
  crop: 'M6.5 2.5v13a2 2 0 0 0 2 2h13M2.5 6.5h13a2 2 0 0 1 2 2v13',
  download: 'M12 4v11M7.5 11l4.5 4.5 4.5-4.5M4.5 20h15',
  undo: 'M4 9.5h10.5a5 5 0 0 1 0 10H9M8 5.5l-4 4 4 4',
  left: 'm14.5 5-7 7 7 7',
  fit: 'M9 4H4v5M15 4h5v5M9 20H4v-5M15 20h5v-5',
  right: 'm9.5 5 7 7-7 7',
  filter: 'M4 6h16M7 12h10M10 18h4',
  shuffle:
    'M4 7h3.2c4.4 0 5.2 10 9.6 10H20M4 17h3.2c1.5 0 2.6-1.2 3.5-2.8M13.3 9.8C14.2 8.2 15.2 7 16.8 7H20'
    + 'M17.5 4.5l2.5 2.5-2.5 2.5M17.5 14.5l2.5 2.5-2.5 2.5',
  sun:
    'M12 16.2a4.2 4.2 0 1 0 0-8.4 4.2 4.2 0 0 0 0 8.4ZM12 2.5v2M12 19.5v2M5.3 5.3l1.4 1.4'
    + 'M17.3 17.3l1.4 1.4M2.5 12h2M19.5 12h2M5.3 18.7l1.4-1.4M17.3 6.7l1.4-1.4',
  moon: 'M20 14.3A8.3 8.3 0 0 1 9.7 4a8.3 8.3 0 1 0 10.3 10.3Z',
  keyboard:
    'M4.5 6h15A1.5 1.5 0 0 1 21 7.5v9a1.5 1.5 0 0 1-1.5 1.5h-15A1.5 1.5 0 0 1 3 16.5v-9A1.5 1.5 0 0 1 4.5 6Z'
    + 'M7 10h.1M10.4 10h.1M13.7 10h.1M17 10h.1M8 14h8',
  map:
    'M6.5 8.5h.1M9.5 5.5h.1M10.5 9.5h.1M16.5 7h.1M18.5 11h.1M8 15.5h.1M5.5 18.5h.1M14.5 16.5h.1'
    + 'M17.5 18.5h.1M11.5 18.5h.1',
  chart: 'M4 4v16h16M8.5 16v-4M13 16V8M17.5 16v-6',
  label:
    'M3.5 5v6.3a2 2 0 0 0 .6 1.4l7.2 7.2a2 2 0 0 0 2.8 0l5.8-5.8a2 2 0 0 0 0-2.8L12.7 4.1a2 2 0 0 0-1.4-.6H5A1.5 1.5 0 0 0 3.5 5Z'
    + 'M8 8h.1',
};

/** An element of SVG. */
export function makeSvg(tag, attributes, ...children) {
  const node = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, String(value));
  node.append(...children);
  return node;
}

/** One of the page's own line drawings, hidden from screen readers: its button carries the name. */
export function icon(name, size = 18) {
  const attributes = {viewBox: '0 0 24 24', width: size, height: size, 'aria-hidden': 'true', class: 'icon'};
  return makeSvg('svg', attributes, makeSvg('path', {d: SHAPES[name]}));
}
