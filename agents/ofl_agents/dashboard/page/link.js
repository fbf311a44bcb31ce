/* The way to the observer: one request for the whole view, a stream of changes, a watch over silence. */
import { adopt, apply, store } from './store.js';

const SCHEMA = 'ofl.fleet-view/1';
const SILENCE_MS = 4000;
const AGAIN_MS = 2000;

export class TokenNeeded extends Error {}
export class OtherVersion extends Error {}

async function ask(path) {
  const answer = await fetch(path, { credentials: 'same-origin', cache: 'no-store' });
  if (answer.status === 401) throw new TokenNeeded();
  if (!answer.ok) throw new Error((await answer.json().catch(() => ({}))).error || answer.statusText);
  return answer.json();
}

export const askDevice = (id) => ask(`api/devices/${encodeURIComponent(id)}`);
export const askRound = (number) => ask(`api/rounds/${number}`);

/** Exchange the token for a session; null, or what is wrong with it. */
export async function enter(token) {
  const answer = await fetch('api/session', {
    method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify({ token }),
  });
  return answer.ok ? null : ((await answer.json().catch(() => ({}))).error || 'The token was refused.');
}

/** Keeps `store` up to date; calls on.whole(), on.delta(change), on.tick(), on.up(), on.down(), on.fail(error). */
export class Link {
  constructor(on) { this.on = on; this.source = null; this.watch = null; this.timer = null; this.idle = false; }

  async start() {
    this.stop();
    this.idle = false;
    try {
      const view = await ask('api/view');
      if (view.schema !== SCHEMA) throw new OtherVersion(view.schema);
      adopt(view);
    } catch (error) {
      if (error instanceof TokenNeeded || error instanceof OtherVersion) this.on.fail(error);
      else this.lost();
      return;
    }
    if (this.idle) return;
    this.on.whole();
    this.listen();
  }

  listen() {
    const source = new EventSource(`api/events?after=${store.epoch}-${store.seq}`);
    this.source = source;
    source.onopen = () => this.heard();
    source.onerror = () => { if (source.readyState === EventSource.CLOSED) this.lost(); };
    source.addEventListener('delta', (event) => {
      const delta = JSON.parse(event.data);
      if (delta.seq <= store.seq) return;
      this.heard();
      if (apply(delta)) this.on.delta(delta); else this.start();
    });
    source.addEventListener('tick', (event) => { this.heard(); store.now = JSON.parse(event.data).now_s; this.on.tick(); });
    source.addEventListener('reset', () => this.start());
    this.heard();
  }

  heard() {
    clearTimeout(this.watch);
    this.watch = setTimeout(() => this.lost(), SILENCE_MS);
    this.on.up();
  }

  lost() {
    this.stop();
    this.on.down();
    this.timer = setTimeout(() => this.start(), AGAIN_MS);
  }

  /** Give the stream back until `start`. */
  rest() { this.stop(); this.idle = true; }

  stop() {
    clearTimeout(this.watch);
    clearTimeout(this.timer);
    if (this.source) this.source.close();
    this.source = null;
  }
}
