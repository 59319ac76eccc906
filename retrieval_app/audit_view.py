"""What the page of an audit shows: its cards and panels, which images in which order, and the dialogs."""

from __future__ import annotations

DRAW = r"""
function drawPicture(image) {
  const data64 = data.pictures[image.picture];
  if (!data64) return make('span', {className: 'gone'}, `No picture: ${data.gone[image.picture]}`);
  return make('img', {src: `data:image/webp;base64,${data64}`, alt: '', draggable: false, decoding: 'async'});
}
function drawTrack(share) {
  const bar = make('i', {});
  bar.style.width = `${100 * Math.min(1, Math.max(0, share))}%`;
  return make('span', {className: 'track'}, bar);
}
const drawName = (text, className = 'name') => make('span', {className, title: shownText(text)}, shownText(text));

function drawRow(row) {
  const position = shown.indexOf(row) + 1, name = shownText(row.path.slice(root.length));
  const picture = make('button', {type: 'button', className: 'picture', 'aria-label': `Enlarge ${name}`,
    onclick: () => openZoom(row, row)}, drawPicture(row));
  const head = make('p', {className: 'head'},
    make('span', {className: row.wrong >= .5 ? 'likely' : ''}, make('b', {}, percent(row.wrong)), ' wrong'),
    make('span', {title: 'Leave-one-out confidence in the label: from all images but this one and its copies'},
      make('b', {}, percent(row.confidence)), ' own', make('span', {className: 'wide'}, ' label')), drawVerdict(row));
  const about = make('div', {className: 'about'}, head, drawLabels(row),
    make('div', {className: 'bars', role: 'group', 'aria-label': 'Suggestions'},
      ...row.suggestions.map((suggestion, n) => drawSuggestion(row, suggestion, n))),
    make('span', {className: 'path', title: shownText(row.path)}, name));
  const near = make('div', {className: 'near'}, drawNear('Nearest with this label', row.agreeing, row),
    drawNear('Nearest with other labels', row.disagreeing, row));
  row.node = make('article', {className: 'row', tabIndex: 0, 'aria-posinset': position, 'aria-setsize': shown.length,
    'aria-label': `${name}, labelled ${shownText(row.label)}, ${percent(row.wrong)} wrong`},
  picture, about, near, make('div', {className: 'decide', role: 'group', 'aria-label': 'Decision'}));
  row.node.addEventListener('focusin', () => setCurrent(row));
  row.node.classList.toggle('current', row === current);
  drawDecision(row);
  return row.node;
}
function drawLabels(row) {
  const other = row.suggested && row.suggested !== row.label && row.verdict !== 'no-class';
  return make('p', {className: 'labels'}, drawName(row.label, 'given'),
    ...other ? [make('i', {}, '→'), drawName(row.suggested, 'new')] : []);
}
function drawVerdict(row) {
  if (row.verdict === 'duplicate' && row.twin !== null) {
    const twin = images[row.twin];
    return make('button', {type: 'button', className: 'chip duplicate',
      title: `The same picture is labelled ${shownText(twin.label)} elsewhere: show it`,
      onclick: () => openZoom(twin, null)}, 'duplicate');
  }
  const title = {keep: 'The label seems right', relabel: `Relabel to ${shownText(row.suggested)}`,
    'no-class': 'Shows none of the classes clearly',
    duplicate: 'The same picture has another label elsewhere'}[row.verdict];
  return make('span', {className: `chip ${row.verdict}`, title}, NAMES[row.verdict].toLowerCase());
}
function drawSuggestion(row, [label, confidence], n) {
  const own = label === row.label;
  const words = own ? 'Keep label' : `Relabel to ${shownText(label)}`;
  return make('button', {type: 'button', title: words, 'aria-label': `${words}, ${percent(confidence)}`,
    onclick: () => choose(row, 'relabel', label)}, make('kbd', {}, String(n + 1)),
  drawName(label, own ? 'name own' : 'name'), drawTrack(confidence),
  make('span', {className: 'number'}, percent(confidence)));
}
function drawNear(title, neighbours, row) {
  const items = neighbours.map(([number, cosine]) => {
    const image = images[number], twin = number === row.twin, label = shownText(image.label);
    const words = twin ? 'same' : cosine.toFixed(2);
    return make('li', {className: twin ? 'twin' : '', title: `${label}\n${shownText(image.path.slice(root.length))}`},
      make('button', {type: 'button', className: 'picture', 'aria-label': `Enlarge neighbour: ${label}, ${words}`,
        onclick: () => openZoom(image, null)}, drawPicture(image)),
      make('span', {}, label), make('span', {className: 'cosine'}, words));
  });
  return make('div', {}, make('h3', {}, title), items.length ? make('ul', {}, ...items) : make('em', {}, 'None'));
}
function drawDecision(row) {
  const entry = decisions.get(row.key), [proposed, proposedLabel] = row.proposal;
  const isProposal = entry && entry.decision === proposed && entry.new_label === proposedLabel;
  const button = (key, words, pressed, act, className = '') => make('button', {type: 'button', className, title: words,
    'aria-pressed': String(!!pressed), onclick: pressed ? () => choose(row, null) : act},
  make('span', {}, words), make('kbd', {'aria-hidden': 'true'}, key));
  const other = entry && entry.decision === 'relabel' && !isProposal;
  const buttons = [button('A', wordsFor(proposed, proposedLabel), isProposal, () => accept(row), 'proposed')];
  if (proposed !== 'keep')
    buttons.push(button('L', 'Keep label', entry && entry.decision === 'keep', () => choose(row, 'keep')));
  buttons.push(button('R', other ? `→ ${shownText(entry.new_label)}` : 'Relabel…', other, () => askLabel(row)));
  if (proposed !== 'no-class')
    buttons.push(button('X', 'No class', entry && entry.decision === 'no-class', () => choose(row, 'no-class')));
  const place = row.node.querySelector('.decide'), focused = [...place.children].indexOf(document.activeElement);
  place.replaceChildren(...buttons);
  if (focused >= 0) buttons[Math.min(focused, buttons.length - 1)].focus({preventScroll: true});
  row.node.classList.toggle('decided', !!entry);
}
function drawProgress() {
  const counted = rows.some(row => row.suspect) ? rows.filter(row => row.suspect) : rows;
  const done = counted.filter(row => decisions.has(row.key)).length;
  get('bar').max = counted.length || 1;
  get('bar').value = done;
  get('done').textContent = `${amount(done)} of ${amount(counted.length)} decided`;
  get('download').textContent = decisions.size ? `Download ${count(decisions.size, 'decision')}` : 'Download decisions';
  get('download').disabled = !decisions.size;
  get('undo').disabled = !past.length;
}
function drawHeader() {
  get('run').textContent = `Label audit · ${data.run}`;
  const fact = (number, words) => make('li', {}, make('b', {}, number), ' ' + words);
  get('facts').append(fact(amount(data.total), data.total === 1 ? 'image' : 'images'),
    fact(percent(data.noise_rate), 'of labels estimated wrong'),
    ...Object.entries(data.verdicts).map(([verdict, number]) => fact(amount(number), NAMES[verdict].toLowerCase())),
    fact(amount(rows.length), `of ${amount(data.total)} on this page`
      + (rows.length < data.total ? ', the most suspicious' : '')));
}
function drawPanels() {
  const classes = data.classes.map(([label, number, rate]) => make('button', {type: 'button',
    title: `${shownText(label)}: ${count(number, 'image')}, about ${approximate(rate * number)} wrong`,
    onclick: () => change({label: view.label === label ? '' : label, pair: null})},
  make('span', {className: 'name'}, shownText(label)), drawTrack(rate),
  make('span', {className: 'number'}, percent(rate))));
  const pairs = data.pairs.map(([label, suggested, rate, number]) => ({label, suggested, rate, number, here: 0}));
  const byName = new Map(pairs.map(pair => [JSON.stringify([pair.label, pair.suggested]), pair]));
  for (const row of rows) {
    const {label, suggested} = row, name = JSON.stringify([label, suggested]);
    if (!suggested || suggested === label) continue;
    if (!byName.has(name)) byName.set(name, {label, suggested, rate: null, number: 0, here: 0});
    byName.get(name).here++;
  }
  const all = [...byName.values()].sort((a, b) => b.number - a.number || b.here - a.here);
  const buttons = all.map(pair => make('button', {type: 'button',
    title: `${shownText(pair.label)} → ${shownText(pair.suggested)}: ${amount(pair.here)} on this page; `
      + (pair.rate === null ? 'no estimate' : `about ${approximate(pair.number)} in all, ${percent(pair.rate)}`),
    onclick: () => change({pair: samePair(view.pair, pair) ? null : pair, label: ''})},
  make('span', {className: 'name'}, `${shownText(pair.label)} → ${shownText(pair.suggested)}`),
  make('span', {className: 'number'},
    pair.rate === null ? '–' : `${approximate(pair.number)} · ${percent(pair.rate)}`)));
  for (const [id, nodes] of [['classes', classes], ['pairs', buttons]]) {
    get(id).replaceChildren(...nodes.map(node => make('li', {}, node)));
    if (!nodes.length) get(id).append(make('li', {className: 'nothing'}, 'None'));
  }
  markPanels = () => {
    classes.forEach((node, n) => node.setAttribute('aria-pressed', String(view.label === data.classes[n][0])));
    buttons.forEach((node, n) => node.setAttribute('aria-pressed', String(samePair(view.pair, all[n]))));
  };
}
"""

VIEW = r"""
const PAGE = 50;
const ANY = {verdict: 'all', state: 'all', label: '', pair: null, text: ''};
const view = {...ANY, verdict: rows.some(row => row.suspect) ? 'suspects' : 'all', sort: 'wrong', descending: true};
let shown = [], current = null, zoomed = null, markPanels = null;
const samePair = (a, b) => !!a && !!b && a.label === b.label && a.suggested === b.suggested;
const ofVerdict = (row, verdict) =>
  verdict === 'all' || (verdict === 'suspects' ? row.suspect : row.verdict === verdict);
const passes = row => ofVerdict(row, view.verdict) && (!view.label || row.label === view.label)
  && (view.state === 'all' || decisions.has(row.key) === (view.state === 'decided'))
  && (!view.pair || samePair(view.pair, row)) && (!view.text || row.words.includes(view.text));

function change(changes) {
  Object.assign(view, changes);
  const {compare} = new Intl.Collator('en', {numeric: true}), sign = view.descending ? -1 : 1;
  const value = row => row[view.sort];
  shown = rows.filter(passes).sort((a, b) => (typeof value(a) === 'number' ? value(a) - value(b)
    : compare(value(a), value(b))) * sign || b.wrong - a.wrong || a.order - b.order);
  for (const row of rows) row.node = null;
  get('rows').replaceChildren();
  current = null;
  drawMore();
  if (shown.length) setCurrent(shown[0]);
  drawView();
  const top = get('rows').getBoundingClientRect().top - get('tools').offsetHeight - 16;
  if (top < 0) window.scrollBy(0, top);
}
function drawMore() {
  const drawn = get('rows').childElementCount;
  get('rows').append(...shown.slice(drawn, drawn + PAGE).map(drawRow));
  const left = shown.length - get('rows').childElementCount;
  get('more').hidden = !left;
  get('more').textContent = `Show more (${amount(left)} left)`;
}
function drawView() {
  get('count').textContent = count(shown.length, 'image');
  get('none').hidden = shown.length > 0;
  get('accept-all').disabled = !shown.length;
  get('direction').textContent = view.descending ? '↓' : '↑';
  get('direction').setAttribute('aria-label', view.descending ? 'Descending' : 'Ascending');
  for (const id of ['state', 'label', 'sort']) get(id).value = view[id];
  for (const button of get('verdicts').children)
    button.setAttribute('aria-pressed', String(button.value === view.verdict));
  const token = (words, changes) => make('button', {type: 'button', className: 'token', title: 'Remove this filter',
    onclick: () => change(changes)}, `${words} ×`);
  get('tokens').replaceChildren(
    ...view.pair ? [token(`${shownText(view.pair.label)} → ${shownText(view.pair.suggested)}`, {pair: null})] : [],
    ...view.label ? [token(shownText(view.label), {label: ''})] : []);
  markPanels();
}
function setCurrent(row) {
  if (current && current.node) current.node.classList.remove('current');
  current = row;
  if (row.node) row.node.classList.add('current');
}
function goTo(row) {
  while (!row.node) drawMore();
  setCurrent(row);
  row.node.scrollIntoView({block: 'nearest'});
  if (!document.querySelector('dialog[open]')) row.node.focus({preventScroll: true});
}
function step(by) {
  if (!shown.length) return;
  const next = shown[shown.indexOf(current) + by];
  if (next) goTo(next); else if (current) goTo(current);
  if (zoomed) { zoomed = current; drawZoom(); }
}

// With keys one goes on to the next image; with the mouse the image stays, and the same button takes it back.
function choose(row, decision, newLabel = '', onward = false) {
  const entry = decision && entryFor(row, decision, newLabel);
  setCurrent(row);
  decide([[row.key, entry]]);
  say(entry ? wordsFor(entry.decision, entry.new_label) : 'Decision taken back');
  if (onward) step(1); else drawZoom();
}
const accept = (row, onward = false) => choose(row, ...row.proposal, onward);
function acceptAll() {
  const open = shown.filter(row => !decisions.has(row.key));
  const kinds = DECISIONS.map(kind => [kind, open.filter(row => row.proposal[0] === kind).length]).filter(([, n]) => n);
  if (!open.length) { say('All images shown are decided'); return; }
  get('confirm-title').textContent = `Accept the verdict on ${count(open.length, 'image')}?`;
  get('confirm-about').textContent = kinds.map(([kind, n]) => `${NAMES[kind].toLowerCase()}: ${amount(n)}`).join(', ')
    + `. Of the ${amount(shown.length)} shown, what is decided stays as it is. One undo takes all of it back.`;
  get('confirm').onsubmit = () => {
    decide(open.map(row => [row.key, entryFor(row, ...row.proposal)]));
    say(`${count(open.length, 'verdict')} accepted`);
  };
  get('confirm').showModal();
  get('confirm-yes').focus();
}
function askLabel(row, onward = false) {
  setCurrent(row);
  get('relabel-about').textContent = `Labelled ${shownText(row.label)}`
    + (row.suggested && row.suggested !== row.label ? `, looks like ${shownText(row.suggested)}` : '');
  get('new-label').value = '';
  get('relabel').onsubmit = event => {
    const text = get('new-label').value.trim();
    event.preventDefault();
    if (!text) return;
    // An input field drops line breaks.
    const known = data.labels.find(label => label.replace(/[\r\n]/g, '').trim() === text);
    get('relabel').close();
    choose(row, 'relabel', known ?? text, onward);
  };
  get('relabel').showModal();
  get('new-label').focus();
}
function openZoom(image, row) {
  zoomed = row;
  get('stage').replaceChildren(drawPicture(image));
  get('zoom-row').hidden = !!row || !rowsByKey.has(keyOf(image));
  get('zoom-row').onclick = () => {
    const target = rowsByKey.get(keyOf(image))[0];
    get('zoom').close();
    if (!shown.includes(target)) { get('text').value = ''; change(ANY); }
    goTo(target);
  };
  const entry = row && decisions.get(row.key);
  const labels = row ? drawLabels(row) : make('p', {className: 'labels'}, drawName(image.label, 'given'));
  get('caption').replaceChildren(labels,
    ...row ? [make('p', {className: 'head'}, make('span', {}, make('b', {}, percent(row.wrong)), ' wrong'),
      make('span', {}, entry ? `Decided: ${wordsFor(entry.decision, entry.new_label)}` : 'Undecided')),
    drawVerdict(row)] : [], make('span', {className: 'path'}, shownText(image.path)));
  if (!get('zoom').open) get('zoom').showModal();
}
function drawZoom() { if (zoomed && get('zoom').open) openZoom(zoomed, zoomed); }

let hush = 0;
function say(words) {
  get('said').textContent = words;
  get('said').classList.add('on');
  clearTimeout(hush);
  hush = setTimeout(() => get('said').classList.remove('on'), 3500);
}
"""
