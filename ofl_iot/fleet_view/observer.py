"""The observer's machine: folds what the fleet says into one view, without I/O.

It reads and never speaks. `now` is Unix time. What the broker retained says what is, not since when: it brings no event
and no time of its own, unless it differs from what is remembered.
"""

from __future__ import annotations

from collections import deque

import msgspec

from ofl_iot.errors import DecodeError
from ofl_iot.fleet_view import clusters, round_notes, timeline
from ofl_iot.fleet_view.alerts import AlertBook
from ofl_iot.fleet_view.assemble import Context, device_view, fleet_view
from ofl_iot.fleet_view.details import details_of
from ofl_iot.fleet_view.records import Changes, DeviceRecord, Past, RefusalRecord
from ofl_iot.fleet_view.traffic import RoundTraffic
from ofl_iot.fleet_view.view import (
    Alert,
    BrokerView,
    DeviceDetails,
    DeviceView,
    EventView,
    FleetView,
    ObserverView,
    RoundView,
)
from ofl_iot.ids import COORDINATOR
from ofl_iot.protocol.fleet_notes import ClusterNote, Refusal, RoundNote, Vitals
from ofl_iot.protocol.fleet_orders import Order
from ofl_iot.protocol.messages import Card, Message, RoundOpen, Status
from ofl_iot.protocol.model_card import decode_card
from ofl_iot.protocol.topics import Kind, Topic

KINDS = (
    Kind.CARD,
    Kind.CLUSTER_NOTE,
    Kind.ROUND_NOTE,
    Kind.ROUND_OPEN,
    Kind.STATUS,
    Kind.VITALS,
    Kind.REFUSAL,
    Kind.ORDER,
)
"""What an observer reads."""
MAX_DEVICES = 20_000
"""Invented names fill no more than this."""
MAX_ROUNDS = 2_000
MAX_EVENTS = 1_000
"""Events in the view; a history keeps more."""
HOUR_S = 3600.0
FILL_S = 10.0
"""Seconds between two entries of time into the devices' histories."""


class Observer:
    """Everything that is known of one fleet."""

    def __init__(self, federation: str, now: float, past: Past | None = None, *, name: str = "observer") -> None:
        past = past or Past()
        self.federation, self.name = federation, name
        self.memory = past.memory
        self._traffic = RoundTraffic()
        self._rounds = {each.round_no: each for each in past.rounds[-MAX_ROUNDS:]}
        self._events = deque(past.events[:MAX_EVENTS], maxlen=MAX_EVENTS)
        self.bins = past.bins
        self._alerts = AlertBook(past.open_alerts, past.resolved)
        self._began_s = past.began_s if past.began_s is not None else now
        self._linked, self._link_since = False, now
        self._link_told: bool | None = None
        self._last_message_s: float | None = None
        self._filled_s = now
        self._filled: dict[str, float] = {}
        """Up to when each device's history is filled in."""
        self.messages = self.dropped = 0
        self._rates = timeline.Rates(now)
        self._broker = BrokerView()
        self.seq = 1
        self._shared = 0
        """Grows with whatever concerns every device."""
        self._held_context = (0, Context(self.memory, self._rounds))
        self._views: dict[str, tuple[tuple[int, int], DeviceView]] = {}
        self._view: FleetView | None = None
        self._new = Changes()
        self._judge(now)

    # --- what happens

    def linked(self, broker: BrokerView, now: float) -> None:
        """The broker accepted the observer."""
        self._linked, self._link_since, self._broker = True, now, broker
        self._touch(shared=True)

    def unlinked(self, reason: str, now: float) -> None:
        """The link broke: from here on nothing is known."""
        self._fill_bins(now)
        if self._linked:
            self._tell(now, "observer", self.name, f"The observer lost its link: {reason[:120]}")
        self._linked, self._link_since = False, now
        self._touch(shared=True)

    def unreadable(self, now: float) -> None:
        """A message that says nothing valid."""
        self.dropped += 1
        self._last_message_s = now

    def arrived(self, topic: Topic, message: Message, size: int, now: float, *, retained: bool = False) -> None:
        """Fold one message into what is known."""
        self.messages += 1
        self._last_message_s = now
        self._rates.count(size, now)
        fresh = not retained
        if isinstance(message, Status):
            self._status(topic.sender, message, now, fresh=fresh)
        elif isinstance(message, Vitals):
            self._vitals(topic.sender, message, now, fresh=fresh)
        elif isinstance(message, Refusal):
            self._refusal(topic.sender, topic.receiver or "", message, now)
        elif isinstance(message, ClusterNote):
            self._coordinator_spoke(now, fresh=fresh)
            self._cluster(topic.index, message, now)
        elif isinstance(message, RoundNote):
            self._coordinator_spoke(now, fresh=fresh)
            self._round_ended(message, now, fresh=fresh)
        elif isinstance(message, RoundOpen):
            self._coordinator_spoke(now, fresh=fresh)
            self._round_opened(message, now, fresh=fresh)
        elif isinstance(message, Card):
            self._card(message)
        elif isinstance(message, Order):
            self._order(message, now, fresh=fresh)
        else:
            self.dropped += 1

    def tick(self, now: float) -> None:
        """Time passed: fill the bins, end what is over; call it about once a second."""
        if now - self._filled_s >= FILL_S:
            self._fill_bins(now)
        if self._rates.roll(now):
            self._touch()
        if any(clusters.forget_handovers(each, now - HOUR_S) for each in self.memory.clusters.values()):
            self._touch(shared=True)
        for record in self.memory.devices.values():
            if timeline.forget_refusals(record, now):
                self._changed(record)
        self._judge(now)

    def _fill_bins(self, now: float) -> None:
        """Enter the time since the last call into every device's history."""
        for name, record in self.memory.devices.items():
            self._fill(name, record, now)
        self._filled_s = now

    def _fill(self, name: str, record: DeviceRecord, now: float) -> None:
        since = max(self._filled.get(name, self._link_since), self._link_since)
        if self._linked and now > since:
            for each in timeline.fill(self.bins.setdefault(name, []), record, self._device(name), since, now):
                self._new.bins[name, each.start_s] = each
        self._filled[name] = now

    def take_changes(self) -> Changes:
        """Return what is new for a history, and begin anew."""
        taken, self._new = self._new, Changes()
        return taken

    # --- what is known

    def view(self, now: float) -> FleetView:
        """Return the view; while nothing changes only `now_s` does."""
        if self._view is None or self._view.seq != self.seq:
            self._view = self._build(now)
        return msgspec.structs.replace(self._view, now_s=now)

    def details(self, name: str, now: float) -> DeviceDetails | None:
        """Return a device's last day, or None if there is no such device."""
        record = self.memory.devices.get(name)
        if record is None:
            return None
        about = [each for each in self._events if name in (each.subject, *each.subject.split(" "))]
        return details_of(record, self.bins.get(name, []), about, now)

    @property
    def open_alerts(self) -> tuple[Alert, ...]:
        """Alerts whose cause lasts."""
        return self._alerts.current

    def _build(self, now: float) -> FleetView:
        context = self._context()
        devices = tuple(self._device(name) for name in sorted(self.memory.devices))
        observer = ObserverView(
            id=self.name,
            link="up" if self._linked else "down",
            since_s=self._link_since,
            last_message_s=self._last_message_s,
            history_s=now - self._began_s,
            messages_per_s=self._rates.messages_s,
            bytes_per_s=self._rates.bytes_s,
            messages=self.messages,
            dropped=self.dropped,
            counts=dict(self.memory.counts),
        )
        built = fleet_view(self.federation, context, devices, observer, self._broker)
        return msgspec.structs.replace(
            built,
            seq=self.seq,
            now_s=now,
            alerts=self._alerts.current,
            resolved=self._alerts.resolved,
            events=tuple(self._events),
        )

    def _context(self) -> Context:
        if self._held_context[0] != self._shared:
            self._held_context = (self._shared, Context(self.memory, self._rounds))
        return self._held_context[1]

    def _device(self, name: str) -> DeviceView:
        record = self.memory.devices[name]
        stamp = (record.changed, self._shared)
        held = self._views.get(name)
        if held is None or held[0] != stamp:
            held = (stamp, device_view(record, self._context()))
            self._views[name] = held
        return held[1]

    # --- devices

    def _record(self, name: str) -> DeviceRecord | None:
        record = self.memory.devices.get(name)
        if record is None:
            if len(self.memory.devices) >= MAX_DEVICES:
                self.dropped += 1
                return None
            record = self.memory.devices[name] = DeviceRecord(id=name)
        return record

    def _status(self, name: str, status: Status, now: float, *, fresh: bool) -> None:
        record = self._record(name)
        if record is None:
            return
        known = record.model != ""
        if record.online != status.online or not known:
            self._fill(name, record, now)
            record.since_s = now if fresh or known else None
            if known or fresh:
                words = "came online" if status.online else "went offline: the broker lost its link, or it said goodbye"
                self._tell(now, "online" if status.online else "offline", name, f"{name} {words}")
            self._touch(shared=True)
        if known and record.version and status.software and record.version != status.software:
            self._tell(now, "version", name, f"{name} runs {status.software} now, {record.version} before")
        record.online = status.online
        if fresh and status.online:
            record.seen_s = now
        record.model, record.size, record.type = status.model.hex(), status.size, status.device_type
        record.difference, record.term = status.difference, status.term
        if status.online or not known:
            record.samples, record.privacy = status.sample_count, status.privacy
            record.version = status.software or record.version
        self._changed(record)

    def _vitals(self, name: str, vitals: Vitals, now: float, *, fresh: bool) -> None:
        record = self._record(name)
        if record is None:
            return
        before = record.vitals
        if fresh:
            record.seen_s = now
        if before is None or vitals.held_back != before.held_back:
            record.held_since_s = now if fresh or before is not None else None
            if vitals.held_back and (fresh or before is not None):
                self._tell(now, vitals.held_back, name, timeline.held_back_words(name, vitals))
        if before is not None and vitals.sent_chunks > before.sent_chunks:
            record.uploaded_s = now if fresh else record.uploaded_s
            timeline.uploaded(self.bins.setdefault(name, []), before, vitals, now)
        if fresh:
            self._traffic.heard(
                before, vitals, leads=any(each.leader == name for each in self.memory.clusters.values())
            )
        record.vitals, record.version = vitals, vitals.version or record.version
        record.vitals_s = now if fresh else record.vitals_s
        self._changed(record)

    def _refusal(self, by: str, name: str, refusal: Refusal, now: float) -> None:
        """Believe the coordinator and those who lead; anybody else may say what it likes."""
        record = self.memory.devices.get(name)
        leads = any(by in (each.leader, each.previous) for each in self.memory.clusters.values())
        if record is None or (by != COORDINATOR and not leads):
            self.dropped += 1
            return
        before = record.refusals.get(by)
        again = before is not None and before.code == refusal.code
        record.refusals = {
            **record.refusals,
            by: RefusalRecord(
                by=by,
                code=refusal.code,
                reason=refusal.reason,
                dropped=refusal.dropped,
                first_s=before.first_s if before is not None and again else now,
                at_s=now,
            ),
        }
        if not again:
            self._tell(now, "refused", name, f"{by} refuses {name}: {refusal.reason}")
        self._changed(record)

    def _order(self, order: Order, now: float, *, fresh: bool) -> None:
        """Enter an order into the audit trail; only an operator may publish one, and the device verifies it."""
        if fresh and order.device in self.memory.devices:
            self._tell(now, "order", order.device, f"An operator ordered {order.device} to {order.action}")

    # --- what the coordinator says

    def _coordinator_spoke(self, now: float, *, fresh: bool) -> None:
        if fresh:
            self.memory.coordinator_s = now

    def _card(self, card: Card) -> None:
        try:
            described = decode_card(card.model)
        except DecodeError:
            self.dropped += 1
            return
        # A built-in network's digest is of another text than the card: the card holds it as its version.
        digest = described.version if described.loss == "built in" else described.digest.hex()
        self.memory.workload, self.memory.model, self.memory.size = described.app[:80], digest[:64], described.size
        self._touch(shared=True)

    def _cluster(self, index: int, note: ClusterNote, now: float) -> None:
        told = clusters.take(self.memory.clusters, index, note, now)
        for name in (note.leader, *note.members):
            self._record(name)
        for kind, subject, text in told:
            self._tell(now, kind, subject, text)
        self._touch(shared=True)

    def _round_opened(self, opened: RoundOpen, now: float, *, fresh: bool) -> None:
        letters = {each.leader: each.letter for each in self.memory.clusters.values()}
        view = round_notes.opened(opened, self._rounds.get(opened.round_no), letters, now if fresh else None)
        if view is not None:
            self._keep(view)
            self._touch(shared=True)

    def _round_ended(self, note: RoundNote, now: float, *, fresh: bool) -> None:
        letters = {each.leader: each.letter for each in self.memory.clusters.values()}
        before = self._rounds.get(note.round_no)
        online = sum(each.online for each in self.memory.devices.values())
        view = round_notes.ended(note, before, letters, online, now if fresh else None)
        if view == before:
            return
        self.memory.version = note.version or self.memory.version
        if fresh and (before is None or before.state == "open"):
            view = msgspec.structs.replace(view, bytes=self._traffic.round_ended())
        self._keep(view)
        if before is None or before.state == "open":
            self._round_is_over(view, now)
        self._touch(shared=True)

    def _round_is_over(self, view: RoundView, now: float) -> None:
        self._count(f"round-{view.state}")
        if view.state == "abandoned":
            words = view.reason or "nobody says why"
            self._tell(now, "abandoned", str(view.round_no), f"Round {view.round_no} was abandoned: {words}")
        elif self.memory.encrypted is not view.encrypted:
            if self.memory.encrypted is not None:
                on = "on again" if view.encrypted else "OFF"
                text = f"Encryption is {on}, from round {view.round_no} on"
                self._tell(now, "encryption", str(view.round_no), text)
            self.memory.encrypted, self.memory.protection_since_s = view.encrypted, view.closed_s
        if view.state != "closed":
            return
        for name in {name for each in view.contributions for name in each.contributors}:
            if (record := self._record(name)) is not None:
                record.last_round, record.last_round_s = view.round_no, view.closed_s
                self._changed(record)

    def _keep(self, view: RoundView) -> None:
        self._rounds[view.round_no] = view
        while len(self._rounds) > MAX_ROUNDS:
            del self._rounds[min(self._rounds)]
        self._new.rounds.append(view)

    # --- changes

    def _tell(self, now: float, kind: str, subject: str, text: str) -> None:
        self._count(kind)
        event = EventView(at_s=now, kind=kind, subject=subject, text=timeline.plain(text))
        self._events.appendleft(event)
        self._new.events.append(event)

    def _count(self, what: str) -> None:
        self.memory.counts[what] = self.memory.counts.get(what, 0) + 1

    def _changed(self, record: DeviceRecord) -> None:
        record.changed += 1
        self._touch()

    def _touch(self, *, shared: bool = False) -> None:
        self.seq += 1
        self._shared += shared
        self._new.memory = True

    def _judge(self, now: float) -> None:
        """Open and end alerts, and say so."""
        opened, over = self._alerts.judge(self.view(now), now)
        self._new.alerts.extend(over)
        if opened or over:
            self._touch()
