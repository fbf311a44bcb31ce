/* Learning: a verdict in words, four charts with one cursor, the budget over the fleet, the same as a table. */
import { chart, indexAt, setCursor } from './charts.js';
import { $, $$, fmt, html, put } from './text.js';
import { closedRounds, roundBytes, roundSeconds, stagesOf, store } from './store.js';

const RANGES = [12, 24, 48];
const SENDERS = [['s-one', 'devices up', 'devices_up'], ['s-two', 'leaders up (ciphertexts)', 'leaders_up'], ['s-three', 'down', 'down']];

const LAYOUT = html`<div class="pagehead"><h1>Learning</h1><p class="lead" id="verdict"></p><div class="seg" role="group" aria-label="Rounds shown">${RANGES.map((n) => html`<button type="button" data-range="${n}" data-key="n-${n}">${n}</button>`)}</div></div>
  <p class="readout" id="readout"></p><div class="charts" id="charts"></div>
  <div class="two"><section class="card"><h2>Privacy budget over the fleet</h2><p class="sub" id="hist-text"></p><div id="hist"></div></section>
  <section class="card"><h2>As a table</h2><div class="scroll short" tabindex="0" role="region" aria-label="Rounds as a table"><table><thead><tr><th scope="col">Round</th><th class="r" scope="col">Accuracy</th><th class="r" scope="col">Bytes</th><th class="r" scope="col">Time</th><th class="r" scope="col">Devices</th></tr></thead><tbody id="learn-rows"></tbody></table></div></section></div>`;

const key = (list) => html`<ul class="key">${list.map(([cls, text]) => html`<li><i class="sw ${cls}"></i>${text}</li>`)}</ul>`;

function verdict() {
  const measured = closedRounds().filter((round) => round.accuracy != null);
  const last = measured.at(-1);
  const ten = measured.at(-11);
  if (!last) return html`No accuracy was measured yet: the coordinator needs test records of its own.`;
  const now = html`${fmt.pct(last.accuracy, 1)} on the coordinator's own test records`;
  if (!ten) return html`It began a few rounds ago: ${now} after round ${last.round_no}.`;
  const gain = last.accuracy - ten.accuracy;
  const course = gain > 0.002 ? 'It still learns' : gain < -0.01 ? 'It gets worse' : 'It has levelled off';
  return html`${course}: ${now}, ${Math.abs(gain * 100).toFixed(1)} points ${gain >= 0 ? 'more' : 'less'} than ten rounds ago.`;
}

/** The lowest and highest tick of the accuracies' axis: quarters of whole percents. */
function accuracyRange(values) {
  const known = values.filter((x) => x != null);
  if (!known.length) return [0, 1];
  const step = Math.max(1, Math.ceil((Math.max(...known) - Math.min(...known)) * 100 / 3.4)) / 100;
  const low = Math.floor(Math.min(...known) / step) * step;
  return [low, low + 4 * step];
}

function marksOf(rounds) {
  const abandoned = rounds.filter((r) => r.state === 'abandoned').map((r) => ({ x: r.round_no, cls: 'm-abandoned', text: `Round ${r.round_no} was abandoned: ${r.reason || 'no reason was told'}` }));
  const clear = rounds.filter((r) => !r.encrypted).map((r) => ({ x: r.round_no, cls: 'm-clear', text: `Round ${r.round_no} was not encrypted` }));
  return [...abandoned, ...clear];
}

export const Learning = {
  title: 'Learning',
  range: 48,

  mount() {
    put($('#main'), LAYOUT);
    $('.seg').onclick = (event) => { const button = event.target.closest('[data-range]'); if (button) { this.range = Number(button.dataset.range); this.draw(); } };
    const box = $('#charts');
    box.onpointermove = (event) => { const svg = event.target.closest('svg.chart'); if (svg) this.at(indexAt(svg, event.clientX)); };
    box.onpointerleave = () => this.at(null);
    box.onkeydown = (event) => this.key(event);
    this.index = null;
    this.draw();
  },

  key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step && this.rounds.length) {
      event.preventDefault();
      const last = this.rounds.length - 1;
      this.at(Math.max(0, Math.min(last, this.index == null ? last : this.index + step)));
    } else if (event.key === 'Escape' && this.index != null) { event.stopPropagation(); this.at(null); }
  },

  at(index) {
    this.index = index;
    setCursor($$('#charts svg.chart'), index);
    const round = index == null ? closedRounds().at(-1) : this.rounds[index];
    if (!round) { put($('#readout'), html`No round was closed yet.`); return; }
    const how = round.state === 'abandoned' ? `abandoned: ${round.reason || 'no reason was told'}` : round.encrypted ? 'encrypted' : 'not encrypted';
    put($('#readout'), html`<b>Round ${round.round_no}</b><span class="kv"><i class="sw s-main"></i>accuracy <b>${fmt.pct(round.accuracy, 1)}</b></span><span class="kv">bytes <b>${fmt.bytes(roundBytes(round))}</b></span><span class="kv">time <b>${fmt.dur(roundSeconds(round))}</b></span><span class="kv">devices <b>${round.devices} of ${round.online}</b></span><span class="kv">${how}</span>`);
  },

  tick() { },
  resize() { this.draw(); },
  update(delta) { if (delta.rounds.some((round) => round.state) || delta.devices.some((d) => 'budget_left' in d)) this.draw(); },

  draw() {
    $$('.seg button').forEach((button) => button.setAttribute('aria-pressed', Number(button.dataset.range) === this.range));
    this.rounds = store.view.rounds.filter((round) => round.state !== 'open').slice(-this.range);
    put($('#verdict'), verdict());
    this.charts();
    this.budgets();
    put($('#learn-rows'), html`${this.rounds.slice().reverse().map((r) => html`<tr><th scope="row"><a href="#/rounds/${r.round_no}" data-key="r-${r.round_no}">${r.round_no}</a></th><td class="r">${r.state === 'abandoned' ? 'abandoned' : fmt.pct(r.accuracy, 1)}</td><td class="r">${fmt.bytes(roundBytes(r))}</td><td class="r">${fmt.dur(roundSeconds(r))}</td><td class="r">${r.devices}</td></tr>`)}`);
    this.at(this.index != null && this.index < this.rounds.length ? this.index : null);
  },

  charts() {
    const { rounds } = this;
    const xs = rounds.map((r) => r.round_no);
    const last = closedRounds().at(-1);
    const room = $('#charts').clientWidth;
    const width = Math.max(260, room > 860 ? (room - 14) / 2 - 34 : room - 34);
    const accuracy = rounds.map((r) => r.accuracy);
    const column = (part, name) => rounds.map((r) => r[part][name] || 0);
    const figure = (id, title, legend, o, latest) => html`<figure class="card fig" tabindex="0" role="img" data-key="${id}" aria-label="${title}${xs.length ? `, rounds ${xs[0]} to ${xs.at(-1)}` : ''}; last value ${latest}. Left and right keys read single rounds."><figcaption><h2>${title}</h2><b class="now">${latest}</b></figcaption>${chart({ xs, ...o }, width)}${legend}</figure>`;
    const stages = stagesOf(rounds);
    const online = Math.max(10, Math.ceil(store.view.devices.length / 10) * 10);
    put($('#charts'), html`
      ${figure('c1', 'Accuracy', key([['s-main', 'on held-out records of the coordinator'], ['k-abandoned', 'round abandoned'], ['k-clear', 'not encrypted']]), { kind: 'line', y: accuracyRange(accuracy), format: (v) => fmt.pct(v), marks: marksOf(rounds), series: [{ cls: 's-main', values: accuracy, area: true }] }, fmt.pct(last?.accuracy, 1))}
      ${figure('c2', 'Bytes per round', key(SENDERS), { kind: 'bars', format: fmt.bytes, unit: Math.max(...rounds.map(roundBytes), 0) < 1048576 ? 1024 : 1048576, series: SENDERS.map(([cls, , name]) => ({ cls, values: column('bytes', name) })) }, last ? fmt.bytes(roundBytes(last)) : '–')}
      ${figure('c3', 'Time per round', key(stages), { kind: 'bars', format: (v) => `${fmt.num(Math.round(v * 10) / 10)} s`, series: stages.map(([cls, name]) => ({ cls, values: column('seconds', name) })) }, last ? fmt.dur(roundSeconds(last)) : '–')}
      ${figure('c4', 'Participation', key([['s-one', 'devices in the round'], ['s-five', 'devices online']]), { kind: 'line', y: [0, online], format: (v) => fmt.num(Math.round(v)), series: [{ cls: 's-five', values: rounds.map((r) => r.online) }, { cls: 's-one', values: rounds.map((r) => (r.state === 'abandoned' ? null : r.devices)), area: true }] }, last ? `${last.devices} of ${last.online}` : '–')}`);
  },

  budgets() {
    const left = store.view.devices.map((d) => d.budget_left).filter((x) => x != null);
    const bins = Array.from({ length: 11 }, () => 0);
    for (const x of left) bins[x <= 0 ? 0 : Math.min(10, Math.floor(x * 10) + 1)] += 1;
    const { epsilon, delta, mode } = store.view.federation.privacy;
    const promise = epsilon == null ? '' : ` (epsilon ${epsilon}${delta == null ? '' : `, delta ${delta}`})`;
    const text = left.length ? `How many devices have up to so much of their budget left${promise}.` : mode === 'off' ? 'Privacy is off: there is no budget.' : 'No device has told its budget yet.';
    put($('#hist-text'), html`${text}`);
    const xs = ['spent', ...Array.from({ length: 10 }, (_, i) => `${i * 10 + 10} %`)];
    put($('#hist'), left.length ? chart({ xs, room: 40, whole: true, kind: 'bars', format: (v) => fmt.num(Math.round(v)), height: 170, series: [{ cls: 's-priv', values: bins }] }, $('#hist').clientWidth || 400) : html``);
  },
};
