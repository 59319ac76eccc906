// The page's line drawings, 24 units wide, drawn in the colour of the text around them.

const SVG = 'http://www.w3.org/2000/svg';

const SHAPES = {
  photo: [
    'M5.5 4h13A2.5 2.5 0 0 1 21 6.5v11a2.5 2.5 0 0 1-2.5 2.5h-13A2.5 2.5 0 0 1 3 17.5v-11A2.5 2.5 0 0 1 5.5 4Z',
    'M9 11.8a1.8 1.8 0 1 0 0-3.6 1.8 1.8 0 0 0 0 3.6Z',
    'm4 18 5-5 4 4 3-3 4 4',
  ],
  search: ['M11 17.5a6.5 6.5 0 1 0 0-13 6.5 6.5 0 0 0 0 13Z', 'm16 16 4.5 4.5'],
  warning: ['M12 4 2.8 20h18.4L12 4Z', 'M12 10v4.5', 'M12 17.3v.2'],
  close: ['m6 6 12 12', 'M18 6 6 18'],
  plus: ['M12 5v14', 'M5 12h14'],
  minus: ['M5 12h14'],
  check: ['m5 12.5 4.5 4.5L19 7.5'],
  info: ['M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18Z', 'M12 11v5.5', 'M12 7.6v.2'],
  copy: [
    'M9 8.5h9.5A1.5 1.5 0 0 1 20 10v9.5a1.5 1.5 0 0 1-1.5 1.5H9a1.5 1.5 0 0 1-1.5-1.5V10A1.5 1.5 0 0 1 9 8.5Z',
    'M4.5 15.5A1.5 1.5 0 0 1 3 14V4.5A1.5 1.5 0 0 1 4.5 3H14a1.5 1.5 0 0 1 1.5 1.5',
  ],
  crop: ['M6.5 2.5v13a2 2 0 0 0 2 2h13', 'M2.5 6.5h13a2 2 0 0 1 2 2v13'],
  download: ['M12 4v11', 'm7.5 11 4.5 4.5 4.5-4.5', 'M4.5 20h15'],
  external: ['M13.5 4.5h6v6', 'M19.5 4.5 11 13', 'M17 14v4a2 2 0 0 1-2 2H6a2 2 0 0 1-2-2V9a2 2 0 0 1 2-2h4'],
  undo: ['M4 9.5h10.5a5 5 0 0 1 0 10H9', 'm8 5.5-4 4 4 4'],
  left: ['m14.5 5-7 7 7 7'],
  fit: ['M9 4H4v5', 'M15 4h5v5', 'M9 20H4v-5', 'M15 20h5v-5'],
  right: ['m9.5 5 7 7-7 7'],
  down: ['m6 9.5 6 6 6-6'],
  filter: ['M4 6h16', 'M7 12h10', 'M10 18h4'],
  shuffle: [
    'M4 7h3.2c4.4 0 5.2 10 9.6 10H20',
    'M4 17h3.2c1.5 0 2.6-1.2 3.5-2.8',
    'M13.3 9.8C14.2 8.2 15.2 7 16.8 7H20',
    'm17.5 4.5 2.5 2.5-2.5 2.5',
    'm17.5 14.5 2.5 2.5-2.5 2.5',
  ],
  sun: [
    'M12 16.2a4.2 4.2 0 1 0 0-8.4 4.2 4.2 0 0 0 0 8.4Z',
    'M12 2.5v2',
    'M12 19.5v2',
    'm5.3 5.3 1.4 1.4',
    'm17.3 17.3 1.4 1.4',
    'M2.5 12h2',
    'M19.5 12h2',
    'm5.3 18.7 1.4-1.4',
    'm17.3 6.7 1.4-1.4',
  ],
  moon: ['M20 14.3A8.3 8.3 0 0 1 9.7 4a8.3 8.3 0 1 0 10.3 10.3Z'],
  keyboard: [
    'M4.5 6h15A1.5 1.5 0 0 1 21 7.5v9a1.5 1.5 0 0 1-1.5 1.5h-15A1.5 1.5 0 0 1 3 16.5v-9A1.5 1.5 0 0 1 4.5 6Z',
    'M7 10h.1',
    'M10.4 10h.1',
    'M13.7 10h.1',
    'M17 10h.1',
    'M8 14h8',
  ],
  map: [
    'M6.5 8.5h.1',
    'M9.5 5.5h.1',
    'M10.5 9.5h.1',
    'M16.5 7h.1',
    'M18.5 11h.1',
    'M8 15.5h.1',
    'M5.5 18.5h.1',
    'M14.5 16.5h.1',
    'M17.5 18.5h.1',
    'M11.5 18.5h.1',
  ],
  chart: ['M4 4v16h16', 'M8.5 16v-4', 'M13 16V8', 'M17.5 16v-6'],
  label: [
    'M3.5 5v6.3a2 2 0 0 0 .6 1.4l7.2 7.2a2 2 0 0 0 2.8 0l5.8-5.8a2 2 0 0 0 0-2.8L12.7 4.1a2 2 0 0 0-1.4-.6H5A1.5 1.5 0 0 0 3.5 5Z',
    'M8 8h.1',
  ],
};

/** One of the page's own line drawings, hidden from screen readers: its button carries the name. */
export function icon(name, size = 18) {
  const svg = document.createElementNS(SVG, 'svg');
  const attributes = {
    viewBox: '0 0 24 24',
    width: size,
    height: size,
    fill: 'none',
    stroke: 'currentColor',
    'stroke-width': 1.8,
    'stroke-linecap': 'round',
    'stroke-linejoin': 'round',
    'aria-hidden': 'true',
    class: 'icon',
  };
  for (const [key, value] of Object.entries(attributes)) svg.setAttribute(key, String(value));
  for (const shape of SHAPES[name]) {
    const path = document.createElementNS(SVG, 'path');
    path.setAttribute('d', shape);
    svg.append(path);
  }
  return svg;
}
