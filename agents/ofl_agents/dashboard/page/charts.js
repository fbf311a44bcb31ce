/* Small SVG charts. All on a page share one cursor, so that one glance reads one round everywhere. */
import { html } from './text.js';

const LEFT = 58;
const RIGHT = 12;
const TOP = 10;
const BOTTOM = 24;
const QUARTERS = [4, 8, 12, 16, 20, 24, 32, 40, 60, 80, 100, 120];

/** The least round number above `max` whose quarters are round, too. */
function roundUp(max, unit) {
  const scaled = max / unit || 1;
  const power = 10 ** Math.floor(Math.log10(scaled) - 1);
  return unit * (QUARTERS.map((k) => k * power).find((v) => v >= scaled * 0.999) || scaled);
}

const total = (series, i) => series.reduce((sum, each) => sum + (each.values[i] || 0), 0);
const known = (values) => values.map((v, i) => [v, i]).filter(([v]) => v != null);

/** Scales of a chart: the place of a value and of an index. */
function scales({ xs, series, kind, y, unit = 1, height = 190 }, width) {
  const W = Math.max(240, Math.round(width));
  const n = xs.length;
  const tops = xs.map((_, i) => (kind === 'bars' ? total(series, i) : Math.max(...series.map((each) => each.values[i] || 0))));
  const [low, high] = y || [0, roundUp(Math.max(...tops, 0), unit)];
  const inner = W - LEFT - RIGHT;
  const X = (i) => LEFT + inner * (kind === 'bars' ? (i + 0.5) / n : n > 1 ? i / (n - 1) : 0.5);
  const Y = (v) => TOP + (height - TOP - BOTTOM) * (1 - (v - low) / (high - low || 1));
  return { W, H: height, n, low, high, inner, X, Y };
}

function grid({ format, whole, xs, kind, room = 62 }, { W, H, n, low, high, X, Y }) {
  const lines = [0, 1, 2, 3, 4].map((k) => low + (high - low) * k / 4).filter((v) => !whole || v % 1 === 0);
  const every = Math.ceil(n / Math.max(2, Math.floor((W - LEFT) / room)));
  const labels = xs.map((x, i) => [x, i]).filter(([, i]) => (n - 1 - i) % every === 0);
  return html`${lines.map((v) => html`<line class="grid" x1="${LEFT}" x2="${W - RIGHT}" y1="${Y(v).toFixed(1)}" y2="${Y(v).toFixed(1)}"/><text class="tick" x="${LEFT - 8}" y="${(Y(v) + 4).toFixed(1)}" text-anchor="end">${format(v)}</text>`)}${labels.map(([x, i]) => html`<text class="tick" x="${X(i).toFixed(1)}" y="${H - 6}" text-anchor="${i === n - 1 && kind !== 'bars' ? 'end' : 'middle'}">${x}</text>`)}`;
}

function marked({ marks = [], xs }, { H, inner, n, X }) {
  const width = inner / n;
  return html`${marks.map((mark) => [mark, xs.indexOf(mark.x)]).filter(([, i]) => i >= 0).map(([mark, i]) => html`<rect class="mark ${mark.cls}" x="${(X(i) - width / 2).toFixed(1)}" width="${width.toFixed(1)}" y="${TOP}" height="${H - TOP - BOTTOM}"><title>${mark.text}</title></rect>`)}`;
}

function bars({ series }, { inner, n, X, Y }) {
  const width = Math.max(1.5, inner / n * 0.72);
  const column = (i) => {
    let base = 0;
    return series.map((each) => {
      const value = each.values[i] || 0;
      const from = base;
      base += value;
      return value ? html`<rect class="${each.cls}" x="${(X(i) - width / 2).toFixed(1)}" width="${width.toFixed(1)}" y="${Y(base).toFixed(1)}" height="${Math.max(0.5, Y(from) - Y(base)).toFixed(1)}"/>` : '';
    });
  };
  return html`${Array.from({ length: n }, (_, i) => column(i))}`;
}

function line(each, { low, X, Y }) {
  const points = known(each.values);
  if (!points.length) return '';
  const at = ([v, i]) => `${X(i).toFixed(1)} ${Y(v).toFixed(1)}`;
  const bridge = points.map((p, k) => (k ? 'L' : 'M') + at(p)).join('');
  const solid = points.map((p, k) => (k && points[k - 1][1] === p[1] - 1 ? 'L' : 'M') + at(p)).join('');
  const last = points.at(-1);
  const area = each.area && points.length > 1
    ? html`<path class="area ${each.cls}" d="M${X(points[0][1]).toFixed(1)} ${Y(low).toFixed(1)}L${points.map(at).join('L')}L${X(last[1]).toFixed(1)} ${Y(low).toFixed(1)}Z"/>` : '';
  return html`${area}<path class="line gap ${each.cls}" d="${bridge}"/><path class="line ${each.cls}" d="${solid}"/><circle class="end ${each.cls}" cx="${X(last[1]).toFixed(1)}" cy="${Y(last[0]).toFixed(1)}" r="3.5"/>`;
}

/** o: {xs, series: [{cls, values, area}], kind: 'line'|'bars', y: [low, high], format, height, marks: [{x, cls, text}]} */
export function chart(o, width) {
  const scale = scales(o, width);
  const { W, H, n } = scale;
  if (!n) return html`<p class="quiet">Nothing yet.</p>`;
  const drawn = o.kind === 'bars' ? bars(o, scale) : o.series.map((each) => line(each, scale));
  return html`<svg class="chart" width="${W}" height="${H}" viewBox="0 0 ${W} ${H}" data-n="${n}" data-kind="${o.kind}" aria-hidden="true">${grid(o, scale)}${marked(o, scale)}${drawn}<line class="cursor" y1="${TOP}" y2="${H - BOTTOM}" x1="-9" x2="-9"/></svg>`;
}

/* ---- the common cursor ---- */

export function setCursor(charts, index) {
  for (const svg of charts) {
    const n = Number(svg.dataset.n);
    const inner = Number(svg.getAttribute('width')) - LEFT - RIGHT;
    const share = svg.dataset.kind === 'bars' ? (index + 0.5) / n : index / Math.max(1, n - 1);
    const x = index == null ? -9 : LEFT + inner * share;
    for (const name of ['x1', 'x2']) svg.querySelector('.cursor').setAttribute(name, x);
  }
}

export function indexAt(svg, clientX) {
  const box = svg.getBoundingClientRect();
  const n = Number(svg.dataset.n);
  const share = (clientX - box.left - LEFT) / (box.width - LEFT - RIGHT);
  return Math.max(0, Math.min(n - 1, Math.round(svg.dataset.kind === 'bars' ? share * n - 0.5 : share * (n - 1))));
}

/** The course of a figure, without axes. */
export function spark(values, cls = 's-main') {
  const points = known(values);
  if (points.length < 2) return '';
  const lowest = Math.min(...points.map(([v]) => v));
  const range = Math.max(...points.map(([v]) => v)) - lowest || 1;
  const path = points.map(([v, i], k) => `${k ? 'L' : 'M'}${(96 * i / (values.length - 1)).toFixed(1)} ${(23 - 20 * (v - lowest) / range).toFixed(1)}`).join('');
  return html`<svg class="spark" viewBox="0 0 96 26" aria-hidden="true" preserveAspectRatio="none"><path class="line ${cls}" d="${path}"/></svg>`;
}
