/* The devices as a table: only the rows in sight exist, each 36 px high. */
import { ATTENTION, badge, deviceLink, linkDots, meter, reason, when } from './parts.js';
import { $, $$, fmt, html, put } from './text.js';
import { store } from './store.js';

const ROW = 36;
const COLUMNS = [
  ['id', 'Device'], ['state', 'State'], ['why', 'Why'], ['cluster', 'Cluster'], ['link', 'Link', 'r'], ['seen', 'Last contact', 'r'],
  ['up', 'Uploaded', 'r'], ['budget', 'Budget left', 'r'], ['stale', 'Behind', 'r'],
];
const low = (x) => (x == null ? -Infinity : x);
const KEYS = {
  id: (d) => d.id, state: (d) => ATTENTION.indexOf(d.state), why: (d) => d.why.code, cluster: (d) => d.cluster || '~',
  link: (d) => (d.online ? low(d.link.mbps) : -Infinity), seen: (d) => -low(d.last_seen_s), up: (d) => low(d.bytes.up),
  budget: (d) => low(d.budget_left), stale: (d) => low(d.staleness_rounds),
};

export class Table {
  constructor(board, ui, on) {
    this.board = board;
    this.ui = ui;
    this.on = on;                              // shown(device), all()
    board.className = 'tablebox';
    board.onclick = null;
    board.onkeydown = null;
    put(board, html`<div class="scroll" tabindex="0" role="region" aria-label="All devices"><table class="devices"><thead><tr>${COLUMNS.map(([key, name, side]) => html`<th class="${side}" scope="col"><button type="button" data-sort="${key}" data-key="s-${key}">${name}</button></th>`)}</tr></thead><tbody></tbody></table></div>`);
    this.box = $('.scroll', board);
    $('thead', board).onclick = (event) => this.sort(event.target.closest('[data-sort]'));
    $('tbody', board).onclick = (event) => { if (event.target.closest('[data-clear]')) this.on.all(); };
    this.box.onscroll = () => this.draw();
    this.paint();
  }

  sort(button) {
    if (!button) return;
    this.ui.desc = this.ui.sort === button.dataset.sort ? !this.ui.desc : false;
    this.ui.sort = button.dataset.sort;
    this.paint();
  }

  follow() { this.paint(); }

  /** Filter and order anew, then draw. */
  paint() {
    const key = KEYS[this.ui.sort];
    const way = this.ui.desc ? -1 : 1;
    const keyed = store.view.devices.filter(this.on.shown).map((device) => [key(device), device]);
    keyed.sort(([x, a], [y, b]) => (x < y ? -1 : x > y ? 1 : a.id < b.id ? -1 : 1) * way);
    this.rows = keyed.map(([, device]) => device);
    $$('thead th', this.board).forEach((th, i) => th.setAttribute('aria-sort', COLUMNS[i][0] === this.ui.sort ? (this.ui.desc ? 'descending' : 'ascending') : 'none'));
    this.draw();
  }

  draw() {
    const from = Math.max(0, Math.floor(this.box.scrollTop / ROW) - 6);
    const to = Math.min(this.rows.length, from + Math.ceil(this.box.clientHeight / ROW) + 14);
    const gap = (rows) => html`<tr class="gap" aria-hidden="true"><td colspan="${COLUMNS.length}"><svg width="1" height="${rows * ROW}"></svg></td></tr>`;
    const none = html`<tr><td colspan="${COLUMNS.length}" class="none">No device matches. <button type="button" class="plain" data-clear>Show all</button></td></tr>`;
    put($('tbody', this.board), this.rows.length ? html`${gap(from)}${this.rows.slice(from, to).map(row)}${gap(this.rows.length - to)}` : none);
  }
}

function row(device) {
  const why = reason(device.why);
  return html`<tr><th scope="row">${deviceLink(device.id)}${device.role === 'leader' ? html` <span class="tag">leader</span>` : ''}</th><td>${badge(device.state)}</td><td title="${why}">${why}</td><td>${device.cluster || '–'}</td><td class="r">${device.online ? html`${device.link.mbps == null ? '–' : fmt.rate(device.link.mbps)} ${linkDots(device)}` : '–'}</td><td class="r">${when(device.last_seen_s)}</td><td class="r">${fmt.bytes(device.bytes.up)}</td><td class="r">${fmt.pct(device.budget_left)} ${device.budget_left == null ? '' : meter(device.budget_left, 'm-priv')}</td><td class="r">${fmt.num(device.staleness_rounds)}</td></tr>`;
}
