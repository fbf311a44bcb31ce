/* Rounds: a list; one round with its stages, contributions, decryption and bytes. */
import { deviceLink, meter, when } from './parts.js';
import { askRound } from './link.js';
import { secondsLeft } from './fleet.js';
import { $, fmt, html, put } from './text.js';
import { roundBytes, roundSeconds, stagesOf, store } from './store.js';

const MARKS = { closed: '●', abandoned: '✕', open: '○' };
const VERDICTS = { 'weighed down': 'weighed-down' };

function layout() {
  const { round_interval_s: pause, next_recluster_round: next } = store.view.federation;
  const pace = pause == null ? '' : `One every ${fmt.dur(pause)} at the earliest, closed with those who came.`;
  const recluster = next == null ? '' : ` The fleet is clustered anew at round ${next}.`;
  return html`<div class="pagehead"><h1>Rounds</h1><p class="lead">${pace}${recluster}</p></div>
    <div class="rounds"><section class="card list"><div class="scroll" tabindex="0" role="region" aria-label="Rounds"><table><thead><tr><th scope="col">Round</th><th class="r" scope="col">Accuracy</th><th class="r" scope="col">Devices</th><th class="r" scope="col">Time</th><th class="r" scope="col">Bytes</th></tr></thead><tbody id="round-rows"></tbody></table></div></section><section class="card detail" id="round"></section></div>`;
}

function listRow(r, chosen) {
  const open = r.state === 'open';
  const outcome = open ? r.stage || 'open' : r.state === 'closed' ? fmt.pct(r.accuracy, 1) : 'abandoned';
  const time = open ? (r.opened_s == null ? '–' : fmt.dur(store.now - r.opened_s)) : fmt.dur(roundSeconds(r));
  const clear = r.encrypted ? '' : html` <span class="tag bad">clear</span>`;
  return html`<tr class="${chosen ? 'on' : ''} st-${r.state}"><th scope="row"><a href="#/rounds/${r.round_no}" data-key="r-${r.round_no}" aria-current="${chosen}"><span class="mk" title="${r.state}">${MARKS[r.state]}</span>${r.round_no}</a>${clear}</th><td class="r">${outcome}</td><td class="r">${r.state === 'closed' ? r.devices : '–'}</td><td class="r">${time}</td><td class="r">${open ? '–' : fmt.bytes(roundBytes(r))}</td></tr>`;
}

function sentence(r) {
  const all = r.contributions.length;
  if (r.state === 'open') {
    const got = r.contributions.filter((c) => c.verdict !== 'awaited' && c.verdict !== 'missing').length;
    const left = secondsLeft(r);
    return html`${all ? html`${got} of ${fmt.some(all, 'cluster')} are in` : 'It collects'}${left == null ? '' : `; the deadline is ${fmt.dur(left)} away`}.`;
  }
  if (r.state === 'abandoned') return html`Abandoned: ${r.reason || 'no reason was told'}. Nothing is lost; what was merged goes into the next round.`;
  const inside = r.contributions.filter((c) => c.weight > 0).length;
  const accuracy = r.accuracy == null ? '' : ` with accuracy ${fmt.pct(r.accuracy, 1)}`;
  return html`${inside} of ${fmt.some(all, 'cluster')} with ${fmt.some(r.devices, 'device')} made a model${accuracy}, in ${fmt.dur(roundSeconds(r))}, for ${fmt.bytes(roundBytes(r))}.`;
}

function stages(r) {
  const total = Math.max(0.001, roundSeconds(r) || 0);
  let from = 0;
  const told = stagesOf([r]);
  const bars = told.map(([cls, name]) => {
    const width = 100 * (r.seconds[name] || 0) / total;
    const bar = html`<rect class="${cls}" x="${from.toFixed(2)}" width="${Math.max(0, width - 0.4).toFixed(2)}" height="10"/>`;
    from += width;
    return bar;
  });
  return html`<svg class="stages" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">${bars}</svg><ul class="key">${told.map(([cls, name]) => html`<li><i class="sw ${cls}"></i>${name} ${r.seconds[name] == null ? '–' : `${fmt.fixed(r.seconds[name], 1)} s`}</li>`)}</ul>`;
}

function contribution(c, open, most, names) {
  const who = names && names.length ? html`<small>${names.slice(0, 12).map((id, i) => html`${i ? ', ' : ''}${deviceLink(id)}`)}${names.length > 12 ? ` and ${names.length - 12} more` : ''}</small>` : '';
  return html`<tr class="v-${VERDICTS[c.verdict] || c.verdict}"><th scope="row">${c.cluster || '–'}</th><td>${deviceLink(c.leader)}</td><td class="r">${c.devices}</td><td class="r">${c.chunks}</td><td class="r">${fmt.bytes(c.bytes || null)}</td><td class="r">${c.arrived_after_s == null ? '–' : fmt.dur(c.arrived_after_s)}</td><td class="w">${meter(c.weight / most, c.verdict === 'weighed down' ? 'm-bind' : '')} ${open ? '–' : fmt.pct(c.weight, 1)}</td><td><span class="verdict">${c.verdict}</span>${c.reason ? html`<small>${c.reason}</small>` : ''}${who}</td></tr>`;
}

function contributions(r, names) {
  if (!r.contributions.length) return html`<p class="quiet">None yet.</p>`;
  const most = Math.max(...r.contributions.map((c) => c.weight), 0.01);
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Contributions"><table class="contrib"><thead><tr><th scope="col">Cluster</th><th scope="col">Leader</th><th class="r" scope="col">Devices</th><th class="r" scope="col">Chunks</th><th class="r" scope="col">Bytes</th><th class="r" scope="col">After</th><th scope="col">Weight</th><th scope="col">Verdict</th></tr></thead><tbody>${r.contributions.map((c) => contribution(c, r.state === 'open', most, names.get(`${c.leader} ${c.term}`)))}</tbody></table></div>`;
}

function decryption(r) {
  const { leaders } = store.view.federation.protection;
  const term = r.key_term == null ? '' : `, key of term ${r.key_term}`;
  if (!r.encrypted) return html`None: the round was not encrypted.`;
  if (r.state === 'abandoned') return html`It did not come to it${r.threshold == null ? '' : `; ${fmt.some(r.threshold, 'leader')} would have been needed`}.`;
  if (!r.decryption_set.length) return html`${r.threshold == null ? 'The leaders' : `Any ${r.threshold}${leaders == null ? '' : ` of ${leaders}`} leaders`} ${r.state === 'open' ? 'will decrypt' : 'decrypted'} the sum${term}.`;
  const missing = r.not_answered.length ? html` No answer from ${r.not_answered.map((id, i) => html`${i ? ', ' : ''}${deviceLink(id)}`)}.` : '';
  return html`${r.decryption_set.length}${leaders == null ? '' : ` of ${leaders}`} leaders gave a share${r.threshold == null ? '' : ` (${r.threshold} needed)`}${term}: ${r.decryption_set.map((id, i) => html`${i ? ', ' : ''}${deviceLink(id)}`)}.${missing} Nobody saw a single cluster's model.`;
}

function detail(r, names) {
  const label = r.state === 'open' ? r.stage || 'open' : r.state;
  return html`<div class="row"><h2>Round ${r.round_no}</h2><span class="tag st-${r.state}">${label}</span><span class="tag ${r.encrypted ? 'ok' : 'bad'}">${r.encrypted ? 'encrypted' : 'not encrypted'}</span>${r.attempt > 1 ? html`<span class="tag">attempt ${r.attempt}</span>` : ''}<span class="push">${when(r.opened_s)}</span></div>
    <p class="sentence">${sentence(r)}</p>${stages(r)}
    <h3>Contributions</h3>${contributions(r, names)}
    <h3>Decryption</h3><p class="dec">${decryption(r)}</p>
    <h3>Bytes</h3><dl class="pairs three"><dt>Devices up</dt><dd>${fmt.bytes(r.bytes.devices_up)}</dd><dt>Leaders up</dt><dd>${fmt.bytes(r.bytes.leaders_up)}</dd><dt>Down</dt><dd>${fmt.bytes(r.bytes.down)}</dd></dl>`;
}

export const Rounds = {
  title: 'Rounds',

  mount(number) {
    this.number = number ? Number(number) : null;
    this.names = new Map();
    this.named = null;
    put($('#main'), layout());
    $('#round-rows').onclick = (event) => {
      const link = event.target.closest('tr')?.querySelector('th a');
      if (link && !event.target.closest('a')) location.hash = link.getAttribute('href');
    };
    this.draw();
  },

  /** Ask who contributed, once a round. */
  async ask(round) {
    const asked = `${round.round_no} ${round.state}`;
    if (this.named === asked) return;
    if (this.named?.split(' ')[0] !== String(round.round_no)) this.names = new Map();
    this.named = asked;
    try {
      const full = await askRound(round.round_no);
      if (this.named !== asked || !$('#round')) return;
      this.names = new Map(full.contributions.map((c) => [`${c.leader} ${c.term}`, c.contributors]));
      this.draw();
    } catch { /* the names are missing, the rest stands */ }
  },

  tick() { if (store.view.rounds.at(-1)?.state === 'open') this.draw(); },
  update() { this.draw(); },

  draw() {
    const { rounds } = store.view;
    const round = rounds.find((r) => r.round_no === this.number) || rounds.at(-1);
    if (!round) { put($('#round'), html`<p class="quiet">No round was opened yet.</p>`); return; }
    this.ask(round);
    put($('#round-rows'), html`${rounds.slice().reverse().map((r) => listRow(r, r === round))}`);
    const gone = this.number != null && round.round_no !== this.number ? html`<p class="quiet">Round ${this.number} is not known, or not any more. This is the latest.</p>` : '';
    put($('#round'), html`${gone}${detail(round, this.names)}`);
  },
};
