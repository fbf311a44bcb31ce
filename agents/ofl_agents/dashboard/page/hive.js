/* The map: a cluster is a comb, its leader the middle cell. A device keeps its place; only a handover moves two cells. */
import { STATES, linkLevel, reason } from './parts.js';
import { $, $$, fmt, html, put } from './text.js';
import { store } from './store.js';

export const NAMED_UP_TO = 120;
const STAR = 'M0 -22L1.5 -18.3L5.3 -18L2.4 -15.5L3.3 -11.8L0 -13.8L-3.3 -11.8L-2.4 -15.5L-5.3 -18L-1.5 -18.3Z';
const FLASH_MS = 900;
const NOWHERE = { id: '', leader: '', members: 0, online: 0 };
const MOVES = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

const budgetClass = (x) => (x == null ? 'none' : x <= 0 ? 'zero' : x < 0.1 ? 0 : x < 0.25 ? 1 : x < 0.5 ? 2 : x < 0.75 ? 3 : 4);
const staleClass = (x) => (x == null ? 'none' : x < 1 ? 4 : x < 3 ? 3 : x < 10 ? 2 : x < 60 ? 1 : 0);
const BINDINGS = ['nothing', 'communication', 'computing', 'privacy', 'data', 'heat', 'battery', 'memory', 'availability'];

/** How a cell is coloured: a name, the class of a device, the classes with their meaning. */
export const COLOURS = {
  state: { name: 'state', of: (d) => `s-${d.state}` },
  link: {
    name: 'link', of: (d) => `r-${['none', 0, 2, 4][linkLevel(d)]}`,
    legend: [['r-none', 'offline'], ['r-0', 'below 0.5 Mbit/s'], ['r-2', '0.5 to 5 Mbit/s'], ['r-4', 'above 5 Mbit/s']],
  },
  budget: {
    name: 'budget left', of: (d) => `r-${budgetClass(d.budget_left)}`,
    legend: [['r-zero', 'spent'], ['r-0', 'below 10 %'], ['r-1', '10 to 25 %'], ['r-2', '25 to 50 %'], ['r-3', '50 to 75 %'],
      ['r-4', 'above 75 %'], ['r-none', 'not known']],
  },
  stale: {
    name: 'rounds behind', of: (d) => `r-${staleClass(d.staleness_rounds)}`,
    legend: [['r-4', 'up to date'], ['r-3', '1 to 2'], ['r-2', '3 to 9'], ['r-1', '10 to 59'], ['r-0', '60 or more'], ['r-none', 'not known']],
  },
  binding: {
    name: 'what limits it', of: (d) => `c-${BINDINGS.includes(d.plan.binding) ? d.plan.binding : 'unknown'}`,
    legend: [...BINDINGS.map((name) => [`c-${name}`, name]), ['c-unknown', 'not known']],
  },
  version: {
    name: 'version', of: (d) => (d.version == null ? 'c-unknown' : d.version === store.view.federation.version ? 'c-nothing' : 'c-battery'),
    legend: [['c-nothing', 'as the federation'], ['c-battery', 'another'], ['c-unknown', 'not known']],
  },
};

/* ---- places ---- */

const places = new Map();                      // cluster -> device ids in their cells, kept while the page is open
const combs = new Map();

/** The `count` cells nearest the middle of a honeycomb, in units of a cell's radius. */
function cells(count, wide) {
  const key = `${count} ${wide}`;
  if (combs.has(key)) return combs.get(key);
  const reach = Math.ceil(Math.sqrt(Math.max(1, count) / 2.6)) + 1;
  const all = [];
  for (let q = -reach; q <= reach; q += 1) {
    for (let r = -reach; r <= reach; r += 1) {
      const x = Math.sqrt(3) * (q + r / 2);
      const y = 1.5 * r;
      const far = Math.round((wide ? x * x * 0.62 + y * y * 1.4 : x * x + y * y) * 1000);
      all.push({ x, y, far, turn: Math.abs(Math.atan2(y, x)) + (y < 0 ? 0.1 : 0) });
    }
  }
  const nearest = all.sort((a, b) => a.far - b.far || a.turn - b.turn).slice(0, count);
  if (combs.size > 200) combs.clear();
  combs.set(key, nearest);
  return nearest;
}

/** All clusters, and one for devices that are in none. */
export function clustersShown() {
  const { clusters, devices } = store.view;
  const known = new Set(clusters.map((cluster) => cluster.id));
  const outside = devices.filter((device) => !known.has(device.cluster));
  if (!outside.length) return clusters;
  return [...clusters, { ...NOWHERE, members: outside.length, online: outside.filter((d) => d.online).length }];
}

function membersOf(cluster) {
  const known = new Set(store.view.clusters.map((each) => each.id));
  return store.view.devices.filter((d) => (known.has(d.cluster) ? d.cluster : '') === cluster.id).map((d) => d.id);
}

function placesOf(cluster, members) {
  let list = places.get(cluster.id);
  const same = list && list.length === members.length && members.every((id) => list.includes(id));
  if (!same) list = members.slice().sort();
  const at = list.indexOf(cluster.leader);
  if (at > 0) [list[0], list[at]] = [list[at], list[0]];
  places.set(cluster.id, list);
  return list;
}

/* ---- drawing ---- */

const outline = (k) => `M0 ${-k}L${(k * 0.866).toFixed(2)} ${-k / 2}V${k / 2}L0 ${k}L${(-k * 0.866).toFixed(2)} ${k / 2}V${-k / 2}Z`;
const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

function label(device) {
  const where = device.cluster == null ? 'in no cluster' : `${device.role === 'leader' ? 'leads ' : ''}cluster ${device.cluster}`;
  return `${device.id}, ${STATES[device.state].name.toLowerCase()}, ${where}. ${reason(device.why)}`;
}

function cellText(id) {
  const parts = id.split(/-(?=[^-]*$)/);
  const [family, number] = parts.length > 1 ? parts : ['', id];
  return html`<text class="fam" y="-4.5">${cut(family, 9)}</text><text class="no${number.length > 4 ? ' long' : ''}" y="8.5">${cut(number, 7)}</text><g class="sig"><circle cx="-5.5" cy="15.5" r="1.6"/><circle cx="0" cy="15.5" r="1.6"/><circle cx="5.5" cy="15.5" r="1.6"/></g>`;
}

function cell(id, size, named) {
  const body = outline(size - (named ? 2 : 1.2));
  const inside = named
    ? html`<path class="star" d="${STAR}"/>${cellText(id)}`
    : html`<path class="star" transform="translate(0 15.5) scale(.9)" d="${STAR}"/>`;
  const where = named ? 'translate(0 -17) scale(1.05)' : `scale(${(size / 9).toFixed(2)})`;
  return html`<g class="hex" data-id="${id}" role="button" tabindex="-1"><path class="body" d="${body}"/><path class="glyph" d="" transform="${where}"/>${inside}<title>${id}</title></g>`;
}

/** Draws the combs on a board and keeps them true. */
export class Hives {
  constructor(board, ui, on) {
    this.board = board;
    this.ui = ui;
    this.on = on;                              // look(id), open(id)
    this.named = store.view.devices.length <= NAMED_UP_TO;
    this.size = this.named ? 28 : 12;
    board.className = `hives ${this.named ? 'few' : 'many'}`;
    board.onclick = (event) => this.click(event);
    board.onkeydown = (event) => this.key(event);
    board.onanimationend = (event) => event.target.closest('.hex')?.classList.remove('pulse');
    this.build();
  }

  build() {
    const focused = document.activeElement?.dataset.id;
    const shown = clustersShown().map((cluster) => [cluster, placesOf(cluster, membersOf(cluster))]);
    const boxes = shown.map(([, list]) => this.box(list.length));
    const width = Math.max(...boxes.map((box) => box.right - box.left));
    const height = Math.max(...boxes.map((box) => box.bottom - box.top));
    const view = ({ left, right, top, bottom }) => [(left + right - width) / 2, (top + bottom - height) / 2, width, height];
    this.board.shownText = null;
    put(this.board, html`${shown.map(([cluster, list], i) => html`<section class="cluster" data-cluster="${cluster.id}" aria-label="${cluster.id ? `Cluster ${cluster.id}` : 'In no cluster'}"><div class="head"></div><svg class="hive${this.named ? ' named' : ''}" viewBox="${view(boxes[i]).map((x) => x.toFixed(1)).join(' ')}">${list.map((id) => cell(id, this.size, this.named))}</svg></section>`)}`);
    this.cells = new Map($$('.hex', this.board).map((node) => [node.dataset.id, node]));
    for (const [, list] of shown) this.arrange(list);
    const first = this.cells.get(focused) || this.cells.get(this.ui.pick) || this.cells.values().next().value;
    if (first) first.setAttribute('tabindex', '0');
    this.paint();
    if (focused && this.cells.has(focused)) this.cells.get(focused).focus({ preventScroll: true });
  }

  box(count) {
    const at = cells(count, this.named);
    const pad = this.size + 3;
    const xs = at.map((p) => p.x * this.size);
    const ys = at.map((p) => p.y * this.size);
    return { left: Math.min(...xs, 0) - pad, right: Math.max(...xs, 0) + pad, top: Math.min(...ys, 0) - pad, bottom: Math.max(...ys, 0) + pad };
  }

  arrange(list) {
    cells(list.length, this.named).forEach((p, i) => {
      this.cells.get(list[i]).style.transform = `translate(${(p.x * this.size).toFixed(1)}px, ${(p.y * this.size).toFixed(1)}px)`;
    });
  }

  /** Show what changed; true if a cluster changed its leader. */
  follow(delta) {
    if (delta.moved) this.build();
    for (const change of delta.clusters) if (change.leader) this.handover(change.id);
    this.paint(delta.devices.map((device) => device.id));
    this.flash(delta.uploads);
  }

  /** Light up who uploaded; in a large fleet without a course, which would be drawn anew sixty times a second. */
  flash(ids) {
    const nodes = ids.map((id) => this.cells.get(id)).filter(Boolean);
    for (const node of nodes) node.classList.add('pulse');
    if (!this.named) setTimeout(() => { for (const node of nodes) node.classList.remove('pulse'); }, FLASH_MS);
  }

  handover(id) {
    const cluster = store.view.clusters.find((each) => each.id === id);
    const list = placesOf(cluster, membersOf(cluster));
    for (const moving of [cluster.previous, cluster.leader]) {
      const node = this.cells.get(moving);
      if (node && document.activeElement !== node) { node.parentNode.append(node); node.getBoundingClientRect(); }
    }
    this.arrange(list);
    this.paint(list);
  }

  paint(ids = this.cells.keys()) {
    const leaders = new Set(store.view.clusters.map((cluster) => cluster.leader));
    for (const id of ids) {
      const node = this.cells.get(id);
      if (node) this.paintOne(node, store.byId.get(id), leaders.has(id));
    }
    for (const cluster of clustersShown()) put($(`[data-cluster="${CSS.escape(cluster.id)}"] .head`, this.board), this.on.head(cluster));
  }

  paintOne(node, device, leads) {
    const marks = [leads && 'leader', device.role === 'deputy' && 'deputy', !this.on.shown(device) && 'dim', this.ui.pick === device.id && 'picked'];
    const classes = ['hex', COLOURS[this.ui.by].of(device), `link-${linkLevel(device)}`, ...marks.filter(Boolean)].join(' ');
    if (node.dataset.classes !== classes) {
      const pulse = node.classList.contains('pulse');
      node.dataset.classes = classes;
      node.setAttribute('class', classes + (pulse ? ' pulse' : ''));
      $('.glyph', node).setAttribute('d', this.ui.by === 'state' ? STATES[device.state].glyph : '');
    }
    const text = label(device);
    if (node.getAttribute('aria-label') !== text) node.setAttribute('aria-label', text);
  }

  click(event) {
    const node = event.target.closest('.hex');
    if (!node) return;
    if (this.ui.pick === node.dataset.id && event.detail > 1) this.on.open(node.dataset.id);
    else this.on.look(node.dataset.id);
  }

  key(event) {
    const node = event.target.closest('.hex');
    if (!node) return;
    if (event.key === 'Enter' || event.key === ' ') {
      event.preventDefault();
      if (this.ui.pick === node.dataset.id) this.on.open(node.dataset.id); else this.on.look(node.dataset.id);
    } else if (MOVES[event.key]) {
      event.preventDefault();
      const next = this.nearest(node, ...MOVES[event.key]);
      if (!next) return;
      node.setAttribute('tabindex', '-1');
      next.setAttribute('tabindex', '0');
      next.focus();
    }
  }

  nearest(from, dx, dy) {
    const a = from.getBoundingClientRect();
    let best = null;
    let least = Infinity;
    for (const node of this.cells.values()) {
      if (node === from || node.classList.contains('dim')) continue;
      const b = node.getBoundingClientRect();
      const x = b.x + b.width / 2 - a.x - a.width / 2;
      const y = b.y + b.height / 2 - a.y - a.height / 2;
      const along = x * dx + y * dy;
      const cost = along + 2 * (Math.abs(x * dy) + Math.abs(y * dx));
      if (along > a.width * 0.3 && cost < least) { least = cost; best = node; }
    }
    return best;
  }
}

/** A cluster's title: who leads, since when, with what weight. */
export function clusterHead(cluster, deviceLink) {
  if (!cluster.id) return html`<h3>In no cluster yet</h3><p class="facts"><span>${cluster.online} of ${cluster.members} online</span></p><p class="note"></p>`;
  const age = cluster.since_s == null ? null : store.now - cluster.since_s;
  const fresh = cluster.previous && age != null && age < 60;
  const led = cluster.leader ? html`${deviceLink(cluster.leader)} <span class="muted">leads</span>` : html`<span class="muted">nobody leads</span>`;
  const doing = { merging: 'Leads', 'making-key': 'Makes its key, leads', 'without-leader': 'Without a leader' }[cluster.state];
  const note = fresh
    ? html`Took over from ${cluster.previous} ${fmt.ago(cluster.since_s, store.now)}${cluster.state === 'making-key' ? ', makes its key' : ''}`
    : html`${doing}${age == null ? '' : ` for ${fmt.dur(age)}`}`;
  return html`<h3><span class="slot">${cluster.id}</span>${led}</h3>
    <p class="facts"><span>${cluster.online} of ${cluster.members} online</span><span>term ${cluster.term}</span><span title="Weight in the last closed round">weight ${fmt.pct(cluster.weight)}</span></p>
    <p class="note ${fresh ? 'fresh' : cluster.handovers_1h > 2 ? 'warn' : ''}">${note}</p>`;
}
