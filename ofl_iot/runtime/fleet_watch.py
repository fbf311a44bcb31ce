"""Fleet views for programs: one that was recorded, or one that follows a fleet over its broker."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

from ofl_iot.errors import StoreError, TransportError
from ofl_iot.fleet_view.observer import KINDS, Observer
from ofl_iot.fleet_view.records import Past
from ofl_iot.fleet_view.view import BrokerView, DeviceDetails, FleetView
from ofl_iot.ids import OBSERVER, OPERATOR, DeviceId, federation_id
from ofl_iot.protocol.codec import encode
from ofl_iot.protocol.fleet_orders import Order
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.runtime.addressing import Wire
from ofl_iot.runtime.fleet_history import Batch, FleetHistory
from ofl_iot.runtime.settings import Settings
from ofl_iot.transport.backoff import Outage
from ofl_iot.transport.link import Delivery, LinkEvent, LinkUp
from ofl_iot.transport.mqtt import MqttLink

log = logging.getLogger(__name__)

TICK_S = 1.0
GATHER_S = 0.05
"""Changes within this time are told as one."""
SETTLED_S = 0.4
"""Silence after which a new session has read what the broker retained."""


@dataclass(frozen=True)
class RecordedFleet:
    """A fleet view that does not change: from a file, or of a run that is over. Implements `FleetSource`."""

    recorded: FleetView
    pages: dict[str, DeviceDetails] = field(default_factory=dict)

    def view(self) -> FleetView:
        """Return the recorded view."""
        return self.recorded

    def details(self, device: str) -> DeviceDetails | None:
        """Return the recorded details of a device, if there are any."""
        return self.pages.get(device)

    async def changed(self, after: int) -> int:
        """Return at once if the recorded view is newer, otherwise never."""
        if self.recorded.seq <= after:
            await asyncio.Event().wait()
        return self.recorded.seq


class FleetWatch:
    """A fleet that is being watched. Implements `FleetSource`."""

    def __init__(self, observer: Observer, link: MqttLink, history: FleetHistory | None) -> None:
        self._observer, self._link, self._history = observer, link, history
        self._changed = asyncio.Event()
        self._outage = Outage()
        self.clock: Callable[[], float] = time.time

    def view(self) -> FleetView:
        """Return what is known now."""
        return self._observer.view(self.clock())

    def details(self, device: str) -> DeviceDetails | None:
        """Return a device's last day, or None if the fleet has no such device."""
        return self._observer.details(device, self.clock())

    async def changed(self, after: int) -> int:
        """Wait until the view's `seq` is above `after`; return it."""
        while self._observer.seq <= after:
            self._changed.clear()
            await self._changed.wait()
            await asyncio.sleep(GATHER_S)
        return self._observer.seq

    async def settled(self, timeout_s: float) -> FleetView:
        """Return the view once the retained messages are read, or TransportError if no broker answers in time."""
        until = time.monotonic() + timeout_s
        while not (self._link.connected and self._link.all_granted):
            if time.monotonic() >= until:
                raise TransportError(
                    f"no session at the broker within {timeout_s:g} s: {self._link.last_failure or 'no answer'}"
                )
            await asyncio.sleep(0.02)
        heard, quiet_since = -1, time.monotonic()
        while time.monotonic() < min(until, quiet_since + SETTLED_S):
            if self._observer.messages != heard:
                heard, quiet_since = self._observer.messages, time.monotonic()
            await asyncio.sleep(0.02)
        return self.view()

    def order(self, order: Order, wire: Wire) -> bool:
        """Publish an order, retained; only a watch under an operator's name may. False: the link did not take it."""
        topic = wire.topics.build(Topic(Kind.ORDER, OPERATOR, DeviceId(order.device)))
        return self._link.publish(topic, encode(order), qos=1, retain=True)

    # --- the runner's side

    def hear(self, event: LinkEvent, wire: Wire, broker: BrokerView) -> None:
        """Fold one event of the link."""
        now = self.clock()
        if isinstance(event, Delivery):
            event.ack()
            arrived = wire.incoming(event.topic, event.payload)
            if arrived is None:
                self._observer.unreadable(now)
            else:
                size = len(event.topic) + len(event.payload)
                self._observer.arrived(arrived.topic, arrived.message, size, now, retained=event.retained)
        elif isinstance(event, LinkUp):
            self._observer.linked(broker, now)
        else:
            self._observer.unlinked(event.reason, now)
        self._changed.set()

    async def keep_time(self) -> None:
        """Let time pass for the observer and write its history, until cancelled."""
        while True:
            await asyncio.sleep(TICK_S)
            before = self._observer.seq
            self._observer.tick(self.clock())
            if self._observer.seq != before:
                self._changed.set()
            await asyncio.to_thread(self.write, self.take_batch())

    def take_batch(self) -> Batch:
        """Return what the history lacks."""
        observer = self._observer
        return Batch.of(observer.take_changes(), observer.memory, observer.open_alerts, self.clock())

    def write(self, batch: Batch) -> None:
        """Keep what is new; a full disk costs history, not the view."""
        if self._history is None:
            return
        try:
            self._history.write(batch)
        except StoreError as error:
            if self._outage.should_complain(time.monotonic()):
                log.warning("the history is not kept reason=%s", error)


@contextlib.asynccontextmanager
async def watch_fleet(
    settings: Settings, history: Path | None = None, name: DeviceId = OBSERVER
) -> AsyncIterator[FleetWatch]:
    """Observe the federation of these settings over its broker for as long as the block lasts.

    With `mqtt.identity`, a folder enrolled as `observer`, over TLS; without, over plain MQTT. `history` is a sqlite
    file that a later observer goes on from; None keeps nothing. The link mends itself; `view().observer.link` tells.
    """
    federation = federation_id(settings.federation.id)
    wire = Wire(federation)
    kept = FleetHistory(history, federation) if history is not None else None
    try:
        now = time.time()
        observer = Observer(federation, now, kept.load(now) if kept else Past())
        # Several may observe at a time, where the broker takes a session's id from its client.
        link = MqttLink(settings.mqtt, name, federation=federation, visitor=secrets.token_hex(4))
        watch = FleetWatch(observer, link, kept)
        for kind in KINDS:
            link.subscribe(wire.topics.pattern(kind), 1)
        broker = _broker_of(settings)
        link.start(lambda event: watch.hear(event, wire, broker))
        keeping = asyncio.create_task(watch.keep_time(), name="observer")
        try:
            yield watch
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            await link.stop()
            observer.tick(time.time())
            watch.write(watch.take_batch())
    finally:
        if kept:
            kept.close()


def _broker_of(settings: Settings) -> BrokerView:
    host = settings.mqtt.addresses()[0].host
    return BrokerView(host=host, tls="1.3" if settings.mqtt.identity or settings.mqtt.tls else None)
