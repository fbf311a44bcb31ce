/* The fleet: six tiles, a map or a table, one device at a glance, the last hour. */
import { ATTENTION, HEXAGON, STATES, badge, deviceHref, deviceLink, feed, glyphOf, linkText, meter, pair, reason, tile, when } from './parts.js';
import { spark } from './charts.js';
import { $, $$, fmt, html, put } from './text.js';
import { COLOURS, Hives, clusterHead } from './hive.js';
import { Table } from './table.js';
import { closedRounds, roundBytes, roundSeconds, store } from './store.js';

export const ui = { mode: 'map', by: 'state', state: '', q: '', sort: 'state', desc: false, pick: null };
const PROGRESS = { scoring: 0.85, decrypting: 0.95 };

/* ---- tiles ---- */

function onlineTile() {
  const { devices } = store.view;
  const online = devices.filter((d) => d.online).length;
  const contribute = devices.filter((d) => d.state === 'contributing').length;
  return tile({ href: '#/fleet', name: 'Online', big: fmt.num(online), unit: ` of ${fmt.num(devices.length)}`, sub: `${fmt.num(contribute)} contribute`, extra: meter(online / devices.length) });
}

function accuracyTile() {
  const measured = closedRounds().filter((round) => round.accuracy != null);
  const last = measured.at(-1);
  if (!last) return tile({ href: '#/learning', name: 'Accuracy', big: '–', sub: 'none was measured yet' });
  const before = measured.at(-11);
  const gain = before ? (last.accuracy - before.accuracy) * 100 : null;
  const sub = gain == null ? `after round ${last.round_no}` : `${gain >= 0 ? '+' : '−'}${Math.abs(gain).toFixed(1)} points in 10 rounds`;
  return tile({ href: '#/learning', name: 'Accuracy', big: fmt.fixed(last.accuracy * 100, 1), unit: ' %', sub, extra: spark(measured.slice(-24).map((r) => r.accuracy)) });
}

function roundTile() {
  const open = store.view.rounds.at(-1);
  if (!open) return tile({ href: '#/rounds', name: 'Round', big: '–', sub: 'none was opened yet' });
  if (open.state !== 'open') {
    return tile({ href: `#/rounds/${open.round_no}`, name: 'Round', big: fmt.num(open.round_no), sub: `${open.state} ${fmt.ago(open.closed_s, store.now)}`, extra: meter(0) });
  }
  const got = open.contributions.filter((c) => c.verdict !== 'awaited' && c.verdict !== 'missing').length;
  const all = open.contributions.length;
  const left = secondsLeft(open);
  const sub = open.stage && open.stage !== 'collecting' ? open.stage : `collecting${left == null ? '' : `, ${fmt.dur(left)} left`}`;
  const share = PROGRESS[open.stage] || (all ? 0.8 * got / all : 0);
  return tile({ href: `#/rounds/${open.round_no}`, name: `Round ${open.round_no}`, big: all ? got : '…', unit: all ? ` of ${fmt.some(all, 'cluster')}` : '', sub, extra: meter(share) });
}

/** Seconds until the deadline of an open round; null if it has none. */
export function secondsLeft(round) {
  if (round.deadline_s == null || round.opened_s == null) return null;
  return Math.max(0, round.deadline_s - (store.now - round.opened_s));
}

function costTile() {
  const done = closedRounds().filter((round) => roundBytes(round) != null);
  const last = done.at(-1);
  if (!last) return tile({ href: '#/learning', name: 'Cost of a round', big: '–', sub: closedRounds().length ? 'nobody has told it yet' : 'no round was closed yet' });
  const [big, unit] = fmt.bytes(roundBytes(last)).split(' ');
  const online = store.view.devices.filter((d) => d.online).length;
  const each = ((last.bytes.devices_up || 0) + (last.bytes.down || 0)) / Math.max(1, online);
  return tile({ href: '#/learning', name: 'Cost of a round', big, unit: ` ${unit}`, sub: `${fmt.bytes(Math.round(each))} a device, ${fmt.dur(roundSeconds(last))}`, extra: spark(done.slice(-24).map(roundBytes), 's-two') });
}

function budgetTile() {
  const left = store.view.devices.map((d) => d.budget_left).filter((x) => x != null).sort((a, b) => a - b);
  const href = '#/fleet?by=budget';
  if (!left.length) return tile({ href, name: 'Privacy budget', big: '–', sub: store.view.federation.privacy.mode === 'off' ? 'privacy is off' : 'no device has told it' });
  const median = left[Math.floor(left.length / 2)];
  const spent = left.filter((x) => x <= 0).length;
  const low = left.filter((x) => x > 0 && x < 0.1).length;
  return tile({ href, name: 'Privacy budget', big: fmt.fixed(median * 100, 0), unit: ' % left, median', sub: `${spent} spent, ${low} below 10 %`, extra: meter(median, 'm-priv') });
}

function encryptionTile() {
  const p = store.view.federation.protection;
  const since = p.since_s == null ? '' : `for ${fmt.dur(store.now - p.since_s)}`;
  const term = p.key_term == null ? '' : `key term ${p.key_term}`;
  const sub = [since, term].filter(Boolean).join(', ');
  const common = { href: '#/rounds', name: 'Encryption', sub };
  if (p.state === 'on') return tile({ ...common, big: 'On', unit: p.threshold == null ? '' : ` any ${p.threshold} of ${p.leaders}`, cls: 'ok' });
  if (p.state === 'off') return tile({ ...common, big: 'Off', cls: 'bad' });
  if (p.state === 'making-key') return tile({ ...common, big: 'Off', unit: ' its key is being made', cls: 'bad' });
  return tile({ ...common, big: '–', sub: 'no round has told it' });
}

const tiles = () => html`${[onlineTile(), accuracyTile(), roundTile(), costTile(), budgetTile(), encryptionTile()]}`;

/* ---- legend, filter, glance ---- */

function legend() {
  const { devices } = store.view;
  const colour = COLOURS[ui.by];
  if (colour.legend) {
    return html`<ul class="legend ramp">${colour.legend.map(([cls, text]) => [cls, text, devices.filter((d) => colour.of(d) === cls).length]).filter(([, , n]) => n).map(([cls, text, n]) => html`<li><svg class="dot ${cls}" viewBox="-9 -9 18 18" aria-hidden="true"><path class="body" d="${HEXAGON}"/></svg>${text} <b>${fmt.num(n)}</b></li>`)}</ul>`;
  }
  const counts = Object.fromEntries(ATTENTION.map((state) => [state, 0]));
  for (const device of devices) counts[device.state] += 1;
  return html`<div class="legend" role="group" aria-label="Show only">${Object.entries(STATES).map(([state, { name, means }]) => html`<button type="button" data-state="${state}" data-key="f-${state}" aria-pressed="${ui.state === state}" title="${name}: ${means}">${glyphOf(state)}${name} <b>${fmt.num(counts[state])}</b></button>`)}</div>`;
}

/** Whether a device passes the filter and the search. */
export function shown(device) {
  if (ui.state && device.state !== ui.state) return false;
  return !ui.q || device.id.toLowerCase().includes(ui.q) || (device.type || '').toLowerCase().includes(ui.q) || `cluster ${device.cluster}`.toLowerCase() === ui.q;
}

function glance(device) {
  if (!device) return html`<p class="hint">Choose a device to see why it does what it does. Arrow keys move over the map, <kbd>Enter</kbd> opens.</p>`;
  const role = [device.role, device.cluster == null ? 'no cluster' : `cluster ${device.cluster}`].filter(Boolean).join(', ');
  return html`<div class="peek"><div class="row"><h2>${device.id}</h2>${badge(device.state)}<button type="button" class="icon close" data-close aria-label="Close" data-key="close">×</button></div>
    <p class="why">${reason(device.why)}</p>
    <dl class="pairs">${pair('Last contact', when(device.last_seen_s))}${pair('Link', linkText(device))}${pair('Budget left', fmt.pct(device.budget_left))}${pair('Uploaded', fmt.bytes(device.bytes.up))}${pair('Role', role)}</dl>
    <a class="button" href="${deviceHref(device.id)}" data-key="open">Open ${device.id}</a></div>`;
}

/* ---- the page ---- */

const LAYOUT = html`<h1 class="sr">Fleet</h1><section class="tiles" aria-label="At a glance" id="tiles"></section>
  <div class="fleet"><section class="board" aria-label="Devices"><div class="controls"><div id="legend"></div>
    <div class="right"><label><span class="sr">Colour by</span><select id="by">${Object.entries(COLOURS).map(([key, { name }]) => html`<option value="${key}">Colour: ${name}</option>`)}</select></label>
    <div class="seg" role="group" aria-label="Show as"><button type="button" data-mode="map" data-key="m-map">Map</button><button type="button" data-mode="table" data-key="m-table">Table</button></div></div></div>
    <div id="board"></div><p class="mapkey" aria-hidden="true"><span>★ leads</span><span>☆ may take over</span><span>●●● link: below 0.5, below 5, above 5 Mbit/s</span><span>amber flash: a chunk was stored</span></p></section>
  <aside class="rail"><section class="card" id="peek"></section><section class="card grow"><h2>Last hour</h2><ol class="feed" id="feed"></ol></section></aside></div>`;

/** Keep the address as what is seen, so that it can be sent to a colleague. */
function keep() {
  const chosen = new URLSearchParams();
  if (ui.by !== 'state') chosen.set('by', ui.by);
  if (ui.state) chosen.set('state', ui.state);
  if (ui.mode !== 'map') chosen.set('mode', ui.mode);
  history.replaceState(null, '', `#/fleet${chosen.size ? `?${chosen}` : ''}`);
}

export const Fleet = {
  title: 'Fleet',

  mount(_, query) {
    ui.by = Object.hasOwn(COLOURS, query.get('by')) ? query.get('by') : 'state';
    ui.state = Object.hasOwn(STATES, query.get('state')) ? query.get('state') : '';
    ui.mode = query.get('mode') === 'table' ? 'table' : 'map';
    if (query.get('pick')) ui.pick = query.get('pick');
    put($('#main'), LAYOUT);
    $('#by').value = ui.by;
    $('#by').onchange = (event) => { ui.by = event.target.value; keep(); this.board(); };
    $('#legend').onclick = (event) => this.filter(event.target.closest('[data-state]'));
    $('.seg').onclick = (event) => { const button = event.target.closest('[data-mode]'); if (button) { ui.mode = button.dataset.mode; keep(); this.board(); } };
    $('#peek').onclick = (event) => { if (event.target.closest('[data-close]')) this.pick(null); };
    this.board();
    this.tick();
    this.pick(ui.pick);
  },

  board() {
    $$('.seg button').forEach((button) => button.setAttribute('aria-pressed', button.dataset.mode === ui.mode));
    $('#by').disabled = ui.mode === 'table';
    const open = (id) => { location.hash = deviceHref(id); };
    const Kind = ui.mode === 'table' ? Table : Hives;
    this.picture = new Kind($('#board'), ui, {
      shown, open, look: (id) => this.pick(id), head: (cluster) => clusterHead(cluster, deviceLink), all: () => this.showAll(),
    });
    put($('#legend'), legend());
  },

  filter(button) {
    if (!button) return;
    ui.state = ui.state === button.dataset.state ? '' : button.dataset.state;
    keep();
    this.repaint();
  },

  showAll() { ui.state = ui.q = ''; $('#find').value = ''; keep(); this.repaint(); },

  pick(id) {
    const before = ui.pick;
    ui.pick = store.byId.has(id) ? id : null;
    document.body.classList.toggle('peeking', Boolean(ui.pick));
    if (ui.mode === 'map') this.picture.paint([before, ui.pick].filter((each) => store.byId.has(each)));
    put($('#peek'), glance(store.byId.get(ui.pick)));
  },

  repaint() { put($('#legend'), legend()); this.picture.paint(); },

  /** What changes with time alone. */
  tick() { put($('#tiles'), tiles()); put($('#feed'), feed(store.view.events.slice(0, 24))); },

  update(delta) {
    this.tick();
    put($('#legend'), legend());
    if (ui.pick) put($('#peek'), glance(store.byId.get(ui.pick)));
    this.picture.follow(delta);
  },
};
