/* The view as this page has it: indices over it, and how a change is taken in. */

export const store = { view: null, byId: new Map(), now: 0, epoch: '', seq: 0 };
const ROUNDS = 64;
const EVENTS = 200;

export function adopt(view) {
  store.view = view;
  store.byId = new Map(view.devices.map((device) => [device.id, device]));
  store.now = view.now_s;
  store.epoch = view.epoch;
  store.seq = view.seq;
}

function merge(list, changes, key, gone = []) {
  const known = new Map(list.map((item) => [item[key], item]));
  for (const change of changes) {
    const item = known.get(change[key]);
    if (item) Object.assign(item, change); else list.push(change);
  }
  if (!gone.length) return list;
  const away = new Set(gone);
  return list.filter((item) => !away.has(item[key]));
}

/** Take a change in; false: one is missing before it. The change is told whether devices came, went or moved. */
export function apply(delta) {
  const { view, byId } = store;
  if (delta.seq !== store.seq + 1) return false;
  store.seq = delta.seq;
  store.now = view.now_s = delta.now_s;
  delta.uploads = delta.devices.filter((d) => 'last_upload_s' in d && byId.has(d.id)).map((d) => d.id);
  delta.moved = Boolean(delta.devices_gone || delta.clusters_gone)
    || delta.devices.some((d) => !byId.has(d.id) || 'cluster' in d)
    || delta.clusters.some((c) => !view.clusters.some((known) => known.id === c.id));
  delta.ids = Boolean(delta.devices_gone) || delta.devices.some((d) => !byId.has(d.id));
  view.devices = merge(view.devices, delta.devices, 'id', delta.devices_gone);
  if (delta.ids) store.byId = new Map(view.devices.map((device) => [device.id, device]));
  view.clusters = merge(view.clusters, delta.clusters, 'id', delta.clusters_gone);
  view.rounds = merge(view.rounds, delta.rounds, 'round_no').sort((a, b) => a.round_no - b.round_no).slice(-ROUNDS);
  view.events = [...delta.events, ...view.events].slice(0, EVENTS);
  for (const part of ['federation', 'coordinator', 'broker', 'observer', 'alerts', 'resolved']) {
    if (part in delta) view[part] = delta[part];
  }
  return true;
}

export const closedRounds = () => store.view.rounds.filter((round) => round.state === 'closed');
export const clusterOf = (device) => store.view.clusters.find((cluster) => cluster.id === device.cluster);

/** The sum of what is known of a round's parts; null if nothing is. */
function sum(parts) {
  const known = Object.values(parts).filter((x) => x != null);
  return known.length ? known.reduce((a, b) => a + b, 0) : null;
}
export const roundBytes = (round) => sum(round.bytes);
export const roundSeconds = (round) => sum(round.seconds);

const STAGES = [['s-one', 'collect'], ['s-two', 'score'], ['s-four', 'decrypt'], ['s-three', 'publish']];
const COARSE = [['s-one', 'collect'], ['s-four', 'aggregate']];
/** The stages of rounds with their colours: all of them, or what comes after collecting as one where no more is told. */
export const stagesOf = (rounds) => (rounds.some((round) => round.seconds.aggregate != null) ? COARSE : STAGES);
