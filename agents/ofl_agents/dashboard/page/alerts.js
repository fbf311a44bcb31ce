/* Alerts: act now, look at it, know it, over. An alert goes by itself when its cause does. */
import { command, when } from './parts.js';
import { $, fmt, html, put } from './text.js';
import { store } from './store.js';

const SEVERITIES = { critical: ['Act now', '✕'], warning: ['Look at it', '▲'], info: ['Know it', 'i'] };
const LAYOUT = html`<div class="pagehead"><h1>Alerts</h1><p class="lead" id="alert-sum"></p></div><div id="alerts"></div>`;

/* A link leads within this page or nowhere. */
const inside = (alert) => (alert.link && alert.link.startsWith('#/') ? html`<a class="more" href="${alert.link}" data-key="l-${alert.id}">Show</a>` : '');

function open(alert) {
  const todo = alert.todo ? html`<p class="todo"><b>What to do</b> ${alert.todo}</p>` : '';
  const act = alert.command ? html`${command(alert.command, `c-${alert.id}`)}` : '';
  return html`<article class="card alert a-${alert.severity}"><span class="ic" role="img" aria-label="${alert.severity}">${SEVERITIES[alert.severity][1]}</span><div><h3>${alert.title}</h3><p>${alert.detail}</p>${todo}${act}${inside(alert)}</div>${when(alert.since_s)}</article>`;
}

const over = (alert) => html`<article class="card alert over"><span class="ic" role="img" aria-label="over">✓</span><div><h3>${alert.title}</h3><p>${alert.detail}</p></div><span class="muted">${alert.until_s == null ? '' : `${fmt.dur(alert.until_s - alert.since_s)} long, `}${when(alert.until_s)}</span></article>`;

export const Alerts = {
  title: 'Alerts',
  mount() { put($('#main'), LAYOUT); this.draw(); },
  tick() { },
  update(delta) { if (delta.alerts || delta.resolved) this.draw(); },

  draw() {
    const { alerts, resolved } = store.view;
    put($('#alert-sum'), alerts.length ? html`${alerts.length} open. Each goes by itself when its cause does.` : html`Nothing to look at.`);
    const groups = Object.entries(SEVERITIES).map(([severity, [name]]) => {
      const list = alerts.filter((alert) => alert.severity === severity);
      return list.length ? html`<h2 class="sevhead">${name}</h2>${list.map(open)}` : '';
    });
    put($('#alerts'), html`${groups}${resolved.length ? html`<h2 class="sevhead">Over, last 24 hours</h2>${resolved.map(over)}` : ''}`);
  },
};
