/* A device's last day in four lanes: contact, leader, uploads with what stopped them, budget. */
import { fmt, html } from './text.js';

const sum = (values) => values.reduce((a, b) => a + (b || 0), 0);
const GAP = 12;

/** Runs of equal things in a list: [value, from, to). */
function runs(values) {
  const found = [];
  values.forEach((value, i) => {
    const last = found.at(-1);
    if (last && last[0] === value) last[2] = i + 1; else found.push([value, i, i + 1]);
  });
  return found;
}

class Lanes {
  constructor(day, width) {
    this.day = day;
    this.W = Math.max(300, Math.round(width));
    this.small = this.W < 560;
    this.left = this.small ? 4 : 92;
    this.bins = day.contact.length;
    this.lane = this.small ? 58 : 44;
    this.H = 4 * this.lane + 30;
    this.high = this.lane - (this.small ? 26 : 14);
  }

  X(bin) { return this.left + (this.W - this.left - GAP) * bin / this.bins; }
  top(k) { return k * this.lane + (this.small ? 22 : 10); }
  at(bin) { return fmt.clock(this.day.from_s + bin * this.day.bin_s); }

  name(k, text, sub) {
    const y = k * this.lane + 8;
    if (this.small) return html`<text class="lane" x="${this.left}" y="${y + 8}">${text}<tspan class="lane2" dx="8">${sub}</tspan></text>`;
    return html`<text class="lane" x="${this.left - 12}" y="${y + 16}" text-anchor="end">${text}</text><text class="lane2" x="${this.left - 12}" y="${y + 29}" text-anchor="end">${sub}</text>`;
  }

  box(cls, from, to, k, title, share = 1) {
    const height = this.high * share;
    return html`<rect class="${cls}" x="${this.X(from).toFixed(1)}" width="${Math.max(1, this.X(to) - this.X(from) - 1).toFixed(1)}" y="${(this.top(k) + this.high - height).toFixed(1)}" height="${height.toFixed(1)}" rx="2"><title>${title}</title></rect>`;
  }

  hours() {
    const span = this.bins * this.day.bin_s;
    return html`${[0, 1, 2, 3, 4].map((k) => {
      const x = this.X(this.bins * k / 4).toFixed(1);
      const text = k === 4 ? 'now' : fmt.clock(this.day.from_s + k * span / 4) + (this.small ? '' : ' UTC');
      return html`<line class="grid" x1="${x}" x2="${x}" y1="6" y2="${this.H - 24}"/><text class="tick" x="${x}" y="${this.H - 8}" text-anchor="${['start', 'middle', 'middle', 'middle', 'end'][k]}">${text}</text>`;
    })}`;
  }

  contact() {
    const { contact } = this.day;
    const seen = contact.filter((x) => x != null);
    const share = seen.length ? fmt.pct(sum(seen) / seen.length) : 'not known';
    const bed = html`<rect class="bed" x="${this.left}" y="${this.top(0) + this.high * 0.25}" width="${this.W - this.left - GAP}" height="${this.high * 0.5}" rx="2"/>`;
    const spans = runs(contact.map((x) => (x == null ? null : x > 0))).map(([on, from, to]) => (on == null ? this.box('unknown', from, to, 0, `the observer was away, ${this.at(from)} to ${this.at(to)}`) : on ? this.box('contact', from, to, 0, `online ${this.at(from)} to ${this.at(to)}`) : ''));
    return html`${this.name(0, 'Contact', share)}${bed}${spans}`;
  }

  leaders() {
    const spans = this.day.leaders.map((span, k) => {
      const width = this.X(span.to) - this.X(span.from);
      const text = width > 8 * span.leader.length + 12 ? html`<text class="span" x="${(this.X(span.from) + 6).toFixed(1)}" y="${this.top(1) + this.high / 2 + 4}">${span.leader}</text>` : '';
      return html`${this.box(`leadspan ${k % 2 ? 'odd' : ''}`, span.from, span.to, 1, `${span.leader}, term ${span.term}`)}${text}`;
    });
    return html`${this.name(1, 'Leader', fmt.some(Math.max(0, spans.length - 1), 'change'))}${spans}`;
  }

  uploads() {
    const { upload_bytes: bytes, stops } = this.day;
    const most = Math.max(...bytes, 1);
    const sent = bytes.map((b, i) => (b ? this.box('upl', i, i + 1, 2, `${fmt.bytes(b)} at ${this.at(i)}`, b / most) : ''));
    return html`${this.name(2, 'Uploads', fmt.bytes(sum(bytes)))}${sent}${stops.map((stop) => this.stop(stop))}`;
  }

  stop(stop) {
    const from = this.X(stop.from);
    const inside = this.X(stop.to) - from > 5.6 * stop.text.length;
    const y = this.top(2) + this.high / 2 + 4;
    const text = this.small ? html`<text class="stopname" x="${this.W - GAP}" y="${2 * this.lane + 16}" text-anchor="end">${stop.text}</text>`
      : inside ? html`<text class="stopname" x="${(from + 6).toFixed(1)}" y="${y}">${stop.text}</text>`
        : html`<text class="stopname" x="${(from - 6).toFixed(1)}" y="${y}" text-anchor="end">${stop.text}</text>`;
    return html`${this.box(`stop ${stop.kind === 'refused' ? 'x' : ''}`, stop.from, stop.to, 2, stop.text)}${text}`;
  }

  budget(left) {
    const { budget } = this.day;
    const Y = (share) => (this.top(3) + this.high * (1 - share)).toFixed(1);
    const parts = runs(budget.map((x) => x != null)).filter(([known]) => known).map(([, from, to]) => {
      const steps = budget.slice(from, to).map((b, i) => `${Y(b)}H${this.X(from + i + 1).toFixed(1)}`);
      const start = this.X(from).toFixed(1);
      return html`<path class="bud-area" d="M${start} ${Y(0)}V${steps.join('V')}V${Y(0)}Z"/><path class="bud" d="M${start} ${steps.join('V')}"/>`;
    });
    return html`${this.name(3, 'Budget left', fmt.pct(left))}${parts}`;
  }
}

/** The day as a picture; `device` has the present budget. */
export function timeline(day, width, device) {
  const lanes = new Lanes(day, width);
  const seen = day.contact.filter((x) => x != null);
  const told = `Last day: in contact ${seen.length ? fmt.pct(sum(seen) / seen.length) : 'unknown'} of the time, ${fmt.some(Math.max(0, day.leaders.length - 1), 'change')} of leader, budget left ${fmt.pct(device.budget_left)}`;
  return html`<svg class="tl" width="${lanes.W}" height="${lanes.H}" viewBox="0 0 ${lanes.W} ${lanes.H}" role="img" aria-label="${told}">${lanes.hours()}${lanes.contact()}${lanes.leaders()}${lanes.uploads()}${lanes.budget(device.budget_left)}</svg>`;
}
