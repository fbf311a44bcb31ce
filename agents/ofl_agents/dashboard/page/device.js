/* One device: why, now, its day, its plan, what happened. The evidence and the day are a request of their own. */
import { badge, command, deviceLink, feed, linkDots, meter, pair, reason, when } from './parts.js';
import { askDevice } from './link.js';
import { $, fmt, html, put } from './text.js';
import { clusterOf, store } from './store.js';
import { timeline } from './timeline.js';

const AGAIN_MS = 4000;
const MINUTE_MS = 60000;

const layout = (device) => html`<p class="crumb"><a href="#/fleet">Fleet</a> / ${device.cluster == null ? 'in no cluster' : `cluster ${device.cluster}`}</p><div class="pagehead device"><h1>${device.id}</h1><span id="dev-badge"></span><p class="lead" id="dev-sub"></p></div>
  <div class="dev"><section class="card whybox" aria-labelledby="why-title"><h2 id="why-title">Why</h2><div id="why"></div></section><section class="card"><h2>Now</h2><dl class="pairs wide" id="facts"></dl></section>
  <section class="card span"><h2>Last 24 hours</h2><div id="timeline"></div></section>
  <section class="card"><h2>Plan for a contact</h2><p class="sub" id="plan-text"></p><div class="scroll" tabindex="0" role="region" aria-label="Plan"><table class="plan"><thead><tr><th scope="col">Resource</th><th class="r" scope="col">Needs</th><th class="r" scope="col">May use</th><th scope="col">Share</th></tr></thead><tbody id="plan"></tbody></table></div></section>
  <section class="card"><h2>What happened</h2><ol class="feed tall" id="dev-feed"></ol></section></div>`;

const known = (value, words) => (value == null ? '–' : words(value));

function subtitle(device) {
  const cluster = clusterOf(device);
  const type = device.type || 'type not known';
  if (!cluster) return html`${type}, in no cluster`;
  const age = cluster.since_s == null ? '' : ` for ${fmt.dur(store.now - cluster.since_s)}`;
  if (cluster.leader === device.id) return html`${type}, leads cluster ${cluster.id}${age}, term ${cluster.term}`;
  return html`${type}, follows ${deviceLink(cluster.leader)} in cluster ${cluster.id}, term ${cluster.term}${device.role === 'deputy' ? '; it is a deputy' : ''}`;
}

function whyBlock(device, full) {
  const { evidence = [], todo = null } = full?.why || {};
  const facts = html`<ol class="evidence">${evidence.map(([at, text, by]) => html`<li>${when(at)}<span>${text}</span><em>said by the ${by}</em></li>`)}</ol>`;
  const advice = !full ? '' : todo ? html`<p class="todo"><b>What to do</b> ${todo[0]}</p>${todo[1] ? command(todo[1], 'copy') : ''}` : html`<p class="todo quiet">Nothing to do.</p>`;
  return html`<p class="big-why">${reason(device.why)}</p>${facts}${advice}${leadership(device)}`;
}

function leadership(device) {
  const cluster = clusterOf(device);
  if (!cluster || cluster.leader !== device.id) return '';
  const { score, runner_up: next, runner_up_score: its, reason: cause } = cluster.elected;
  return html`<h3 class="lead-why">Why it leads</h3><p>${cause ? html`Chosen because: ${cause}.` : 'The coordinator has not told why.'}${score == null ? '' : html` Its score is ${fmt.fixed(score, 2)}${next ? html`, the next is ${deviceLink(next)}${its == null ? '' : ` with ${fmt.fixed(its, 2)}`}` : ''}.`} It serves ${fmt.some(cluster.members, 'device')}, ${cluster.online} of them online; cluster ${cluster.id} had ${fmt.some(cluster.handovers_1h, 'handover')} in the last hour.</p>`;
}

function facts(d) {
  const t = d.telemetry;
  const link = d.online ? html`${linkDots(d)} ${fmt.rate(d.link.mbps)}${d.link.round_trip_s == null ? '' : `, ${fmt.fixed(d.link.round_trip_s, 3)} s`}` : 'none';
  const privacy = d.epsilon_spent == null ? known(d.budget_left, (x) => `${fmt.share(x)} left`) : `ε ${fmt.fixed(d.epsilon_spent, 2)}${d.epsilon == null ? '' : ` of ${d.epsilon}`} spent`;
  const foreign = d.model != null && store.view.federation.model.digest != null && d.model !== store.view.federation.model.digest;
  const rows = [
    [d.online ? 'Online for' : 'Offline for', known(d.since_s, (x) => fmt.dur(store.now - x))], ['Last contact', when(d.last_seen_s)],
    ['Last upload', when(d.last_upload_s)], ['Link', link], ['In reach', known(d.link.availability, (x) => `${fmt.pct(x)} of the time`)],
    ['Uploaded', fmt.bytes(d.bytes.up)], ['Fetched', fmt.bytes(d.bytes.down)],
    ['Chunks settled', `${fmt.num(d.chunks.settled)} of ${fmt.num(d.chunks.sent)}`], ['Refused', fmt.num(d.chunks.refused)],
    ['Outbox', known(d.outbox.chunks, (x) => `${fmt.some(x, 'chunk')}, ${fmt.bytes(d.outbox.bytes)}`)],
    ['Behind', known(d.staleness_rounds, (x) => fmt.some(x, 'round'))], ['Records', fmt.num(d.samples)], ['Privacy', privacy],
    ['Temperature', known(t.temperature_c, (x) => `${fmt.fixed(x, 0)} °C`)], ['Battery', known(t.battery, (x) => fmt.pct(x))],
    ['Training step', known(t.step_s, (x) => `${fmt.fixed(x * 1000, 1)} ms`)], ['Version', d.version || '–'],
    ['Model', d.model == null ? '–' : html`<code>${d.model}</code>${foreign ? ' (not the federation\'s)' : ''}`],
    ['Certificate', known(d.certificate_ends_s, (x) => `ends ${fmt.ago(x, store.now)}`)],
  ];
  return html`${rows.map(([term, value]) => pair(term, value))}`;
}

function planText(plan) {
  if (plan.gamma_up == null && plan.gamma_down == null && plan.binding == null) return html`It has told no plan yet.`;
  const limit = plan.binding == null ? '' : plan.binding === 'nothing' ? ' Nothing limits it.' : html` What limits it: <b>${plan.binding}</b>.`;
  return html`Sends ${fmt.share(plan.gamma_up)} of its update, fetches ${fmt.share(plan.gamma_down)} of the model.${limit}`;
}

function amount(value, unit, unknown) {
  if (value == null) return unknown;
  return unit === 'B' ? fmt.bytes(value) : `${fmt.num(Math.round(value * 10) / 10)} ${unit}`;
}
const planRow = (p) => html`<tr class="${p.binding ? 'binds' : ''}"><th scope="row">${p.resource}${p.binding ? html` <span class="tag">binds</span>` : ''}<small>${p.note}</small></th><td class="r">${amount(p.need, p.unit, '–')}</td><td class="r">${amount(p.limit, p.unit, 'no limit')}</td><td>${p.limit == null || p.need == null ? '' : meter(p.limit ? p.need / p.limit : 1, p.binding ? 'm-bind' : '')}</td></tr>`;

export const Device = {
  title: 'Device',

  mount(id) {
    this.id = id;
    this.full = this.day = null;
    this.asked = 0;
    const device = store.byId.get(id);
    if (!device) { put($('#main'), html`<div class="stateful"><h1>No device is called ${id}</h1><p>It may have been forgotten, or never said a word. <a href="#/fleet">Back to the fleet</a></p></div>`); return; }
    document.title = `${id} · OFL-IoT`;
    put($('#main'), layout(device));
    this.draw();
    this.ask();
  },

  /** Ask for evidence and day, if the last answer is not fresh. */
  async ask() {
    const id = this.id;
    this.asked = Date.now();
    try {
      const { device, details } = await askDevice(id);
      if (this.id !== id || !$('#timeline')) return;
      this.full = device;
      this.day = details;
      this.draw();
    } catch { this.asked = Date.now() - AGAIN_MS; }
  },

  tick() {
    if (!store.byId.has(this.id) || !$('#facts')) return;
    this.now();
    if (Date.now() - this.asked > MINUTE_MS) this.ask();
  },

  update(delta) {
    if (!store.byId.has(this.id) || !$('#facts')) { this.mount(this.id); return; }
    this.draw();
    const told = delta.devices.some((d) => d.id === this.id) || delta.events.some((e) => e.subject === this.id);
    if (told && Date.now() - this.asked > AGAIN_MS) this.ask();
  },

  resize() { if ($('#timeline')) this.draw(); },

  now() {
    const device = store.byId.get(this.id);
    put($('#dev-sub'), subtitle(device));
    put($('#facts'), facts(device));
    put($('#why'), whyBlock(device, this.full));
  },

  draw() {
    const device = store.byId.get(this.id);
    this.now();
    put($('#dev-badge'), badge(device.state));
    put($('#plan-text'), planText(device.plan));
    const { day } = this;
    const width = $('#timeline').clientWidth;
    put($('#timeline'), day?.contact.length ? timeline(day, width, device) : html`<p class="quiet day">${this.full ? 'There is no record of its last day.' : 'Asking for its last day.'}</p>`);
    put($('#plan'), html`${(day?.plan || []).map(planRow)}`);
    const own = store.view.events.filter((e) => e.subject === this.id);
    const seen = new Set(own.map((e) => `${e.at_s} ${e.text}`));
    const past = (day?.events || []).filter((e) => !seen.has(`${e.at_s} ${e.text}`));
    put($('#dev-feed'), feed([...own, ...past].sort((a, b) => b.at_s - a.at_s).slice(0, 24)));
  },
};
