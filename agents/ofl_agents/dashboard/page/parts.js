/* Small parts that all pages share. */
import { fill, fmt, html } from './text.js';
import { store } from './store.js';

/* Each state has a word, a glyph and a colour: none is told by colour alone. */
export const STATES = {
  contributing: { name: 'Contributing', means: 'its chunks are in the last rounds', glyph: '' },
  waiting: { name: 'Waiting', means: 'well, between two contacts', glyph: '' },
  limited: { name: 'Limited', means: 'heat, battery, link or its own code holds it back', glyph: 'M-3.5 -1.5L0 2L3.5 -1.5' },
  refused: { name: 'Refused', means: 'its messages are not accepted', glyph: 'M-3 -3L3 3M3 -3L-3 3' },
  spent: { name: 'Spent', means: 'privacy budget spent: serves, but no longer trains', glyph: 'M3 0A3 3 0 1 1 -3 0A3 3 0 1 1 3 0' },
  paused: { name: 'Paused', means: 'by an operator', glyph: 'M-2 -3V3M2 -3V3' },
  offline: { name: 'Offline', means: 'no link', glyph: '' },
};
export const ATTENTION = ['refused', 'limited', 'spent', 'paused', 'offline', 'waiting', 'contributing'];
export const HEXAGON = 'M0 -8L6.93 -4V4L0 8L-6.93 4V-4Z';
const KINDS = new Map(Object.entries({
  online: '↑', offline: '↓', handover: '⇄', round: '●', refused: '✕', limited: '▾', abandoned: '✕', encryption: '◆', key: '◆',
  recluster: '◇', settings: '≡', evidence: '·',
}));

export const reason = (why) => fill(why.text, why.values || {}, store.now);

/** A relative time; `tellTimes` fills it in and keeps it true. */
export function when(at) {
  if (at == null) return html`<span>never</span>`;
  return html`<time data-at="${at}" datetime="${new Date(at * 1000).toISOString()}" title="${fmt.stamp(at)}"></time>`;
}

export const glyphOf = (state) => html`<svg class="dot s-${state}" viewBox="-9 -9 18 18" aria-hidden="true"><path class="body" d="${HEXAGON}"/><path class="glyph" d="${STATES[state].glyph}"/></svg>`;
export const badge = (state) => html`<span class="badge s-${state}">${glyphOf(state)}${STATES[state].name}</span>`;
export const deviceHref = (id) => `#/device/${encodeURIComponent(id)}`;
export const deviceLink = (id) => html`<a href="${deviceHref(id)}" data-key="d-${id}">${id}</a>`;

/** 0 no link, 1 below 0.5, 2 below 5, 3 above 5 Mbit/s; a link of unknown speed counts as 2. */
export function linkLevel(device) {
  if (!device.online) return 0;
  const { mbps } = device.link;
  if (mbps == null) return 2;
  return mbps < 0.5 ? 1 : mbps < 5 ? 2 : 3;
}
export const linkDots = (device) => html`<span class="dots" data-n="${linkLevel(device)}" aria-hidden="true"><i></i><i></i><i></i></span>`;
export const linkText = (device) => (device.online ? html`${linkDots(device)} ${fmt.rate(device.link.mbps)}` : 'none');

/* A text that begins with its subject need not name it twice. */
const without = (text, subject) => (text.startsWith(`${subject} `) ? text.slice(subject.length + 1) : text);

export function feed(events) {
  if (!events.length) return html`<li class="quiet">Nothing yet.</li>`;
  return html`${events.map((event) => html`<li class="k-${event.kind}"><span class="ic" aria-hidden="true">${KINDS.get(event.kind) || '·'}</span><span class="tx"><b>${store.byId.has(event.subject) ? deviceLink(event.subject) : event.subject}</b> ${without(event.text, event.subject)}</span>${when(event.at_s)}</li>`)}`;
}

export function tile({ href, name, big, unit = '', sub = '', extra = '', cls = '' }) {
  return html`<a class="tile ${cls}" href="${href}" data-key="t-${name}"><span class="name">${name}</span><span class="big">${big}<small>${unit}</small></span><span class="sub">${sub}</span>${extra}</a>`;
}

/** A share from 0 to 1 as a bar; the number always stands beside it. */
export function meter(share, cls = '') {
  const width = share == null || Number.isNaN(share) ? 0 : Math.max(0, Math.min(1, share)) * 100;
  return html`<svg class="meter ${cls}" viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true"><rect class="bed" width="100" height="6" rx="3"/><rect class="fill" width="${width.toFixed(1)}" height="6" rx="3"/></svg>`;
}

export const command = (text, key) => html`<p class="cmd"><code>${text}</code><button type="button" class="copy" data-copy="${text}" data-key="${key}">Copy</button></p>`;
export const pair = (term, value) => html`<dt>${term}</dt><dd>${value}</dd>`;
