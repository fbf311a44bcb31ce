/* Starts the page: the link, the address, the keys, light and dark, and what to show while there is nothing to show. */
import { HEXAGON } from './parts.js';
import { Alerts } from './alerts.js';
import { Device } from './device.js';
import { Fleet, shown, ui } from './fleet.js';
import { Learning } from './learning.js';
import { Link, OtherVersion, TokenNeeded, enter } from './link.js';
import { Rounds } from './rounds.js';
import { $, $$, fmt, html, put, tellTimes } from './text.js';
import { store } from './store.js';

const PAGES = { fleet: Fleet, learning: Learning, device: Device, rounds: Rounds, alerts: Alerts };
const CHORD_MS = 1200;
const SAY_MS = 4000;
const HIDDEN_MS = 10000;
let page = null;
let ready = false;                             // a whole view is here

/* ---- what stands on every page ---- */

function live(state, text) {
  $('#live').dataset.state = state;
  $('#live-text').textContent = text;
}

function chrome() {
  const { view } = store;
  const name = $('#federation');
  if (name.textContent !== view.federation.id) name.textContent = view.federation.id;
  const urgent = view.alerts.filter((alert) => alert.severity !== 'info').length;
  const count = $('#alert-count');
  if (count.textContent !== String(urgent)) { count.textContent = urgent; count.setAttribute('aria-label', `${urgent} open`); }
  count.hidden = !urgent;
}

function names() {
  put($('#ids'), html`${store.view.devices.slice(0, 1500).map((device) => html`<option value="${device.id}"></option>`)}`);
}

/** The banner over old numbers: the page has lost the observer, or the observer has lost the broker. */
function banner() {
  const cut = $('#live').dataset.state === 'down';
  const deaf = ready && !cut && store.view.observer.link === 'down';
  const node = $('#banner');
  node.hidden = !ready || !(cut || deaf);
  document.body.classList.toggle('stale', !node.hidden);
  if (node.hidden) return;
  const at = deaf && store.view.observer.last_message_s != null ? store.view.observer.last_message_s : store.now;
  put(node, cut
    ? html`<b>No word from the observer.</b> What you see is from ${fmt.clock(at)} UTC. The fleet goes on without this page; trying again every few seconds. <button type="button" id="retry">Try now</button>`
    : html`<b>The observer has no link to the broker.</b> What you see is from ${fmt.clock(at)} UTC. It connects again by itself.`);
  if (cut) $('#retry').onclick = () => link.start();
}

let lastSaid = 0;
function announce(delta) {
  const change = delta.clusters.find((cluster) => cluster.leader);
  if (!change || Date.now() - lastSaid < SAY_MS) return;
  lastSaid = Date.now();
  const cluster = store.view.clusters.find((each) => each.id === change.id);
  $('#say').textContent = `Cluster ${cluster.id}: ${cluster.leader} leads${cluster.previous ? ` in place of ${cluster.previous}` : ''}`;
}

/* ---- while there is nothing to show ---- */

const hexagon = html`<svg viewBox="-9 -9 18 18" class="dot s-offline" aria-hidden="true"><path class="body" d="${HEXAGON}"/></svg>`;

const loading = () => html`<div class="skeleton" aria-busy="true" aria-label="Loading the fleet"><div class="tiles">${Array.from({ length: 6 }, () => html`<i class="tile"></i>`)}</div><div class="fleet"><i class="board"></i><i class="rail"></i></div></div>`;

function empty() {
  const { observer, broker, federation } = store.view;
  const where = broker.host ? html` to <b>${broker.host}</b>` : '';
  return html`<div class="stateful">${hexagon}<h1>Nobody has said anything yet</h1><p>The observer <b>${observer.id}</b> ${observer.link === 'up' ? html`is linked${where}` : html`has no link${where} yet`} and listens for the federation <code>${federation.id}</code>. A device appears here as soon as it announces itself.</p><ol><li>Is there a coordinator? <code>ofl coordinator --config /etc/ofl/ofl.toml</code></li><li>Start one device: <code>ofl agent --id truck-01 --part 1/2</code></li><li>Or try a whole fleet on this machine: <code>ofl sim --dashboard</code></li></ol></div>`;
}

const unreachable = () => html`<div class="stateful bad"><h1>No word from the observer</h1><p>The page is here, the program behind it does not answer. The fleet goes on without it. Trying again every few seconds.</p><p>If it was stopped, start it again: <code>ofl dashboard</code></p></div>`;

const otherVersion = (schema) => html`<div class="stateful bad"><h1>The fleet cannot be shown</h1><p>The observer speaks <code>${schema}</code>, this page does not know it. Nothing is wrong with the fleet.</p><p>Reload the page; if that does not help, update <code>ofl</code> where the dashboard runs.</p></div>`;

const tokenForm = (fault) => html`<div class="stateful"><h1>Which token?</h1><p>This dashboard is open to other machines, so it asks for the token that <code>ofl dashboard</code> printed when it started.</p><form id="door"><label for="token">Token</label> <input id="token" type="password" autocomplete="current-password" required> <button class="button">Open</button></form><p class="fault" role="alert">${fault}</p></div>`;

function askToken(fault = '') {
  put($('#main'), tokenForm(fault));
  $('#token').focus();
  $('#door').onsubmit = async (event) => {
    event.preventDefault();
    const wrong = await enter($('#token').value.trim()).catch(() => 'The dashboard does not answer.');
    if (wrong) askToken(wrong); else link.start();
  };
}

/* ---- the address ---- */

function route() {
  if (!ready) return;
  const [path, search = ''] = location.hash.slice(2).split('?');
  const [name, argument] = path.split('/');
  const next = Object.hasOwn(PAGES, name) ? PAGES[name] : Fleet;
  if (!store.view.devices.length && next !== Alerts) { page = null; put($('#main'), empty()); return; }
  page = next;
  if (page !== Fleet) { ui.pick = null; document.body.classList.remove('peeking'); }
  document.title = `${page.title} · OFL-IoT`;
  for (const link of $$('#nav a')) {
    if (PAGES[link.dataset.view] === (page === Device ? Fleet : page)) link.setAttribute('aria-current', 'page'); else link.removeAttribute('aria-current');
  }
  let wanted = null;
  try { wanted = argument ? decodeURIComponent(argument) : null; } catch { wanted = argument; }
  page.mount(wanted, new URLSearchParams(search));
  window.scrollTo(0, 0);
}

/* ---- the link ---- */

const link = new Link({
  whole() {
    const first = !ready;
    ready = true;
    names();
    chrome();
    if (first || !page) route(); else { const { scrollX, scrollY } = window; page.mount(page.id ?? page.number, new URLSearchParams(location.hash.split('?')[1] || '')); window.scrollTo(scrollX, scrollY); }
  },
  delta(delta) {
    chrome();
    if (delta.ids) names();
    banner();
    if (!page) { if (store.view.devices.length) route(); return; }
    if (!store.view.devices.length) { route(); return; }
    page.update(delta);
    announce(delta);
    tellTimes(document);
  },
  tick() { if (page) page.tick(); tellTimes(document); },
  up() { live('up', 'Live'); banner(); },
  down() { live('down', 'Disconnected'); banner(); if (!ready) put($('#main'), unreachable()); },
  fail(error) {
    live('down', error instanceof TokenNeeded ? 'Locked' : 'Error');
    banner();
    if (error instanceof TokenNeeded) askToken();
    else if (error instanceof OtherVersion) put($('#main'), otherVersion(error.message));
  },
});

/* ---- light and dark, keys, finding, copying ---- */

function theme(name) {
  document.documentElement.dataset.theme = name;
  try { localStorage.setItem('theme', name); } catch { /* private window */ }
}
function startTheme() {
  let kept = null;
  try { kept = localStorage.getItem('theme'); } catch { /* private window */ }
  document.documentElement.dataset.theme = kept || (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light');
}

const KEYS = [['g f', 'Fleet'], ['g l', 'Learning'], ['g r', 'Rounds'], ['g a', 'Alerts'], ['/', 'Find a device'], ['arrows', 'Move over the map, or read a chart'], ['Enter', 'Look; again: open'], ['Esc', 'Back'], ['t', 'Light or dark']];
function showKeys() {
  put($('#help'), html`<h2 id="help-title">Keys</h2><dl class="pairs">${KEYS.map(([keys, does]) => html`<dt>${keys.split(' ').map((key) => html`<kbd>${key}</kbd> `)}</dt><dd>${does}</dd>`)}</dl><button type="button" class="button" id="close-help">Close</button>`);
  $('#close-help').onclick = () => $('#help').close();
  $('#help').showModal();
}

let chord = 0;
function onKey(event) {
  if (event.target.matches('input, select, textarea') || event.ctrlKey || event.metaKey || event.altKey || $('#help').open) return;
  const place = { f: 'fleet', l: 'learning', r: 'rounds', a: 'alerts' }[event.key];
  if (place && Date.now() - chord < CHORD_MS) { location.hash = `#/${place}`; chord = 0; return; }
  if (event.key === 'g') chord = Date.now();
  else if (event.key === '/') { event.preventDefault(); $('#find').focus(); }
  else if (event.key === 't') $('#theme').click();
  else if (event.key === '?') showKeys();
  else if (event.key === 'Escape') { if (page === Fleet && ui.pick) Fleet.pick(null); else if (page === Device) location.hash = '#/fleet'; }
}

function onFind(event) {
  ui.q = event.target.value.trim().toLowerCase();
  const exact = store.byId.get(event.target.value.trim());
  if (exact && event.inputType !== 'insertText' && event.inputType !== 'deleteContentBackward') { location.hash = `#/device/${encodeURIComponent(exact.id)}`; return; }
  if (page === Fleet) Fleet.repaint();
}

function onFindKey(event) {
  if (event.key === 'Enter' && ready) {
    const hit = store.byId.get(event.target.value.trim()) || store.view.devices.find(shown);
    if (hit) { location.hash = `#/device/${encodeURIComponent(hit.id)}`; event.target.blur(); }
  } else if (event.key === 'Escape') {
    event.target.value = ui.q = '';
    if (page === Fleet) Fleet.repaint();
    event.target.blur();
  }
}

async function onCopy(event) {
  const button = event.target.closest('[data-copy]');
  if (!button || !navigator.clipboard) return;
  await navigator.clipboard.writeText(button.dataset.copy).catch(() => null);
  button.textContent = 'Copied';
  setTimeout(() => { button.textContent = 'Copy'; }, 1500);
}

/* A browser opens six connections to a host: a page that nobody looks at gives its stream back. */
let hiding;
function onVisibility() {
  clearTimeout(hiding);
  if (document.visibilityState === 'visible') { if (link.idle) link.start(); return; }
  hiding = setTimeout(() => link.rest(), HIDDEN_MS);
}

async function start() {
  startTheme();
  put($('#main'), loading());
  $('#theme').onclick = () => theme(document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark');
  $('#find').addEventListener('input', onFind);
  $('#find').addEventListener('keydown', onFindKey);
  $('#skip').onclick = (event) => { event.preventDefault(); $('#main').focus(); };
  document.addEventListener('keydown', onKey);
  document.addEventListener('click', onCopy);
  document.addEventListener('visibilitychange', onVisibility);
  window.addEventListener('pagehide', () => link.rest());
  window.addEventListener('pageshow', (event) => { if (event.persisted) link.start(); });
  window.addEventListener('hashchange', route);
  let timer;
  window.addEventListener('resize', () => { clearTimeout(timer); timer = setTimeout(() => { if (page?.resize) page.resize(); }, 120); });
  if (location.hash.startsWith('#token=')) {
    const token = decodeURIComponent(location.hash.slice('#token='.length));
    history.replaceState(null, '', '#/fleet');   // out of the address before anything else
    await enter(token).catch(() => null);
  }
  link.start();
}
start();
