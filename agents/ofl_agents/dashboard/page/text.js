/* Text that is safe to show, and figures in words. Ids, names and reasons come from devices: every value is escaped. */

import { store } from './store.js';

export class Safe {
  constructor(text) { this.text = text; }
  toString() { return this.text; }
}

const ENTITIES = { '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;', "'": '&#39;' };
const escape = (value) => String(value).replace(/[&<>"']/g, (letter) => ENTITIES[letter]);

function flat(value) {
  if (value == null || value === false) return '';
  if (value instanceof Safe) return value.text;
  return Array.isArray(value) ? value.map(flat).join('') : escape(value);
}

/** A template whose values are escaped, for text and for attributes in double quotes. The only maker of markup. */
export function html(parts, ...values) {
  return new Safe(parts.reduce((out, part, i) => out + part + (i < values.length ? flat(values[i]) : ''), ''));
}

/* With `require-trusted-types-for` the browser itself refuses markup that did not come through here. */
const policy = window.trustedTypes
  ? window.trustedTypes.createPolicy('ofl-template', { createHTML: (text) => text })
  : { createHTML: (text) => text };

/** Set a node's content if it differs; focus and scrolling stay where they were. */
export function put(node, content) {
  if (!(content instanceof Safe)) throw new TypeError('put() takes html`…`');
  if (!node || node.shownText === content.text) return;
  const focus = node.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  const top = node.scrollTop;
  node.shownText = content.text;
  node.innerHTML = policy.createHTML(content.text);
  node.scrollTop = top;
  tellTimes(node);
  if (focus) {
    const again = node.querySelector(`[data-key="${CSS.escape(focus)}"]`);
    if (again) again.focus({ preventScroll: true });
  }
}

/** Fill in every relative time below a node. */
export function tellTimes(node) {
  for (const time of node.querySelectorAll('time[data-at]')) {
    const text = fmt.ago(Number(time.dataset.at), store.now);
    if (time.textContent !== text) time.textContent = text;
  }
}

export const $ = (selector, from = document) => from.querySelector(selector);
export const $$ = (selector, from = document) => [...from.querySelectorAll(selector)];

/* ---- figures in words; null is "not known" and reads as a dash ---- */

const fixed = (x, digits) => x.toLocaleString('en', { minimumFractionDigits: digits, maximumFractionDigits: digits });
const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];

function bytes(x) {
  if (x == null) return '–';
  let unit = 0;
  while (x >= 1000 && unit < UNITS.length - 1) { x /= 1024; unit += 1; }
  return `${unit && x < 99.95 ? fixed(x, 1) : fixed(x, 0)} ${UNITS[unit]}`;
}

function duration(seconds) {
  if (seconds == null) return '–';
  const s = Math.max(0, Math.round(seconds));
  if (s < 100) return `${s} s`;
  const minutes = Math.round(s / 60);
  if (minutes < 90) return `${minutes} min`;
  if (s >= 36 * 3600) return `${Math.round(s / 86400)} days`;
  const hours = Math.floor(minutes / 60);
  return s < 36000 ? `${hours} h ${String(minutes % 60).padStart(2, '0')} min` : `${hours} h`;
}

const percent = (x, digits = 0) => (x == null ? '–' : `${fixed(x * 100, digits)} %`);

export const fmt = {
  num: (x) => (x == null ? '–' : x.toLocaleString('en')),
  fixed: (x, digits) => (x == null ? '–' : fixed(x, digits)),
  pct: percent,
  share: (x) => percent(x, x !== 0 && Math.abs(x) < 0.01 ? 1 : 0),
  bytes,
  dur: duration,
  ago(at, now) {
    if (at == null) return 'never';
    if (at > now + 1) return `in ${duration(at - now)}`;
    return now - at < 2 ? 'now' : `${duration(now - at)} ago`;
  },
  clock: (at) => new Date(at * 1000).toISOString().slice(11, 16),
  stamp: (at) => `${new Date(at * 1000).toISOString().replace('T', ' ').slice(0, 19)} UTC`,
  rate: (x) => (x == null ? 'speed not known' : `${fixed(x, x < 0.1 ? 2 : 1)} Mbit/s`),
  some: (n, one) => `${n == null ? '–' : n.toLocaleString('en')} ${one}${n === 1 ? '' : 's'}`,
};

/* The forms of a reason's slots, as `ofl_iot/fleet_view/wording.py` has them; a test compares the two. */
const FORMS = {
  ago: (x, now) => `${duration(now - x)} ago`,
  since: (x, now) => duration(now - x),
  span: (x) => duration(x),
  share: (x) => (x !== 0 && Math.abs(x) < 0.01 ? `${(x * 100).toFixed(1)} %` : `${(x * 100).toFixed(0)} %`),
  size: (x) => bytes(x),
  count: (x) => fixed(x, 0),
  epsilon: (x) => x.toFixed(2),
};

/** A template with its slots filled: `{name}` or `{name:form}`. Values are never read as templates. */
export function fill(template, values, now) {
  return template.replace(/\{([a-z_]+)(?::([a-z]+))?\}/g, (_, name, form) => {
    const value = Object.hasOwn(values, name) ? values[name] : null;
    if (value == null) return 'unknown';
    if (typeof value === 'string') return value;
    return form && Object.hasOwn(FORMS, form) ? FORMS[form](value, now) : String(Number(value.toPrecision(6)));
  });
}
