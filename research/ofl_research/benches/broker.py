"""What a fleet costs its broker: memory a connection, processor time a message, delay; by clients of one process.

Two kinds of traffic dominate: telemetry (small, QoS 0, from everybody to the coordinator) and chunks (16 KiB, QoS 1,
from everybody to one of log2 N leaders). One process drives all parties, so messages a second say what driver and
broker do together on a shared machine; processor time a message is the broker's own.
"""

from __future__ import annotations

import asyncio
import math
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ofl_iot.errors import TransportError
from ofl_iot.ids import COORDINATOR, DeviceId, FederationId
from ofl_iot.protocol.topics import Kind, Topic, Topics
from ofl_iot.transport.link import Delivery, LinkEvent
from ofl_iot.transport.mqtt import MqttLink, MqttSettings
from ofl_research.benches.broker_processes import RunningBroker, mosquitto, nats

FEDERATION = FederationId("bench")
QUICK_SIZES = (20,)
CHUNKS, TELEMETRY = 4000, 10_000
"""Messages of a whole run, however many clients share them."""
CHUNK_BYTES, TELEMETRY_BYTES = 16 * 1024, 300
STEADY_S = 5.0
MAX_STEADY_PER_S = 1000
"""More the driver cannot send evenly."""
PATIENCE_S = 300.0

Figures = dict[str, float]


@dataclass(frozen=True)
class Candidate:
    """A broker to measure, and with how many clients."""

    sizes: tuple[int, ...]
    open: Callable[[Path, Sequence[DeviceId]], AbstractAsyncContextManager[RunningBroker]]
    qos: Literal[0, 1] = 1


BASE = "mosquitto"
BROKERS = {
    BASE: Candidate((50, 200, 1000, 5000), lambda folder, names: mosquitto(folder, FEDERATION, names, tls=False)),
    "mosquitto with TLS": Candidate((200, 1000), lambda folder, names: mosquitto(folder, FEDERATION, names, tls=True)),
    "nats": Candidate((50,), lambda folder, _: nats(folder, FEDERATION, 1)),
    "nats, 3 nodes": Candidate((50,), lambda folder, _: nats(folder, FEDERATION, 3)),
    "nats, 3 nodes, QoS 0": Candidate((50, 200, 1000), lambda folder, _: nats(folder, FEDERATION, 3), qos=0),
}


def run(
    *, quick: bool = False, brokers: Iterable[str] = BROKERS, progress: Callable[[str], None] = print
) -> dict[str, dict[str, Figures]]:
    """Measure each broker, mosquitto at several sizes; processor time of the others is set against mosquitto's."""
    scale = 0.05 if quick else 1.0
    figures: dict[str, dict[str, Figures]] = {}
    for name in brokers:
        for size in QUICK_SIZES if quick else BROKERS[name].sizes:
            measured = asyncio.run(_measure(size, scale, BROKERS[name]))
            base = figures.get(BASE, {}).get(str(size), {}).get("chunk_cpu_us", 0.0)
            if base > 0 and name != BASE:  # the system counts in ticks of 10 ms; a short run may take none
                measured["chunk_cpu_to_mosquitto"] = measured["chunk_cpu_us"] / base
            figures.setdefault(name, {})[str(size)] = measured
            progress(f"{name}, {size} clients: " + "  ".join(f"{key} {value:.4g}" for key, value in measured.items()))
    return figures


@dataclass
class Fleet:
    """The parties of one run, all driven by this process."""

    broker: RunningBroker
    devices: dict[DeviceId, MqttLink]
    coordinator: MqttLink
    arrived: int = 0
    delays_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.topics = Topics(FEDERATION)
        names = list(self.devices)
        self.leaders = names[: max(1, round(math.log2(len(names))))]

    def hear(self, event: LinkEvent) -> None:
        """Count a delivery; telemetry carries when it was sent."""
        if isinstance(event, Delivery):
            event.ack()
            self.arrived += 1
            if len(event.payload) == TELEMETRY_BYTES:
                self.delays_s.append(time.perf_counter() - float(event.payload[:20]))

    def send_telemetry(self, name: DeviceId) -> bool:
        """One report of a device."""
        payload = f"{time.perf_counter():020.9f}".encode().ljust(TELEMETRY_BYTES)
        return self.devices[name].publish(self.topics.build(Topic(Kind.TELEMETRY, name)), payload, qos=0)

    def send_chunk(self, name: DeviceId, number: int) -> bool:
        """One chunk to a device's leader."""
        leader = self.leaders[number % len(self.leaders)]
        payload = number.to_bytes(8, "big").ljust(CHUNK_BYTES, b"\0")  # a repetition would not be sent twice
        return self.devices[name].publish(self.topics.build(Topic(Kind.UPDATE, name, leader)), payload, qos=1)


async def _measure(size: int, scale: float, candidate: Candidate) -> Figures:
    names = [DeviceId(f"device-{number}") for number in range(size)]
    with tempfile.TemporaryDirectory(prefix="ofl-bench-") as folder:
        async with candidate.open(Path(folder), [*names, COORDINATOR]) as broker:
            idle_bytes, idle_cpu_s = broker.rss_bytes(), broker.cpu_s()
            async with _connected(broker, names, candidate.qos) as fleet:
                figures = {
                    "rss_mib": broker.rss_bytes() / 2**20,
                    "rss_a_client_kib": (broker.rss_bytes() - idle_bytes) / (size + 1) / 1024,
                    "connect_cpu_ms": 1000 * (broker.cpu_s() - idle_cpu_s) / (size + 1),
                }
                figures |= await _steady_telemetry(fleet, STEADY_S if scale == 1 else 1.0)
                figures |= await _burst(
                    fleet, "telemetry", int(TELEMETRY * scale), lambda n, _: fleet.send_telemetry(n)
                )
                figures |= await _burst(fleet, "chunk", int(CHUNKS * scale), fleet.send_chunk)
                figures["rss_after_mib"] = broker.rss_bytes() / 2**20
                return figures


@asynccontextmanager
async def _connected(broker: RunningBroker, names: Sequence[DeviceId], qos: Literal[0, 1]) -> AsyncIterator[Fleet]:
    """All parties, subscribed as in a federation: five patterns a device, two more a leader."""

    def link(name: DeviceId, number: int) -> MqttLink:
        first = number % len(broker.hosts)
        hosts = broker.hosts[first:] + broker.hosts[:first]
        tls = broker.tls[name] if broker.tls else None
        return MqttLink(MqttSettings(hosts=hosts, tls=tls, qos=qos, connect_timeout_s=60.0, keepalive_s=600), name)

    fleet = Fleet(broker, {name: link(name, i) for i, name in enumerate(names)}, link(COORDINATOR, 0))
    topics = fleet.topics
    for name, each in fleet.devices.items():
        for kind in (Kind.ASSIGNMENT, Kind.RECEIPT, Kind.BLOCKS, Kind.KEYS, Kind.DECRYPT):
            each.subscribe(topics.pattern(kind, receiver=name), 1)
    for name in fleet.leaders:
        for kind in (Kind.UPDATE, Kind.PULL):
            fleet.devices[name].subscribe(topics.pattern(kind, receiver=name), 1)
    for kind in (Kind.STATUS, Kind.TELEMETRY):
        fleet.coordinator.subscribe(topics.pattern(kind), 1)
    links = [fleet.coordinator, *fleet.devices.values()]
    for each in links:
        each.start(fleet.hear)
    try:
        await _until(lambda: all(each.connected and each.all_granted for each in links))
        yield fleet
    finally:
        await asyncio.gather(*(each.stop() for each in links))


async def _steady_telemetry(fleet: Fleet, for_s: float) -> Figures:
    """Reports at an even pace, one a device and second at most; the delay that 99 of 100 of them stay below."""
    names = list(fleet.devices)
    per_s = min(len(names), MAX_STEADY_PER_S)
    fleet.arrived, fleet.delays_s, sent, began = 0, [], 0, time.perf_counter()
    while (passed := time.perf_counter() - began) < for_s:
        while sent < passed * per_s:
            fleet.send_telemetry(names[sent % len(names)])
            sent += 1
        await asyncio.sleep(0.002)
    await _until(lambda: fleet.arrived >= sent)
    delays = sorted(fleet.delays_s)
    return {"steady_per_s": per_s, "steady_p99_ms": 1000 * delays[int(0.99 * (len(delays) - 1))]}


async def _burst(fleet: Fleet, what: str, count: int, send: Callable[[DeviceId, int], bool]) -> Figures:
    """As fast as it goes; how many messages a second, and what each costs the broker and this process."""
    names = list(fleet.devices)
    fleet.arrived, cpu_s, own_s, began = 0, fleet.broker.cpu_s(), time.process_time(), time.perf_counter()
    for number in range(count):
        while not send(names[number % len(names)], number):  # noqa: ASYNC110 -- a link says no, and not when it can
            await asyncio.sleep(0.001)
        if number % 50 == 0:
            await asyncio.sleep(0)
    await _until(lambda: fleet.arrived >= count)
    return {
        f"{what}_per_s": count / (time.perf_counter() - began),
        f"{what}_cpu_us": 1e6 * (fleet.broker.cpu_s() - cpu_s) / count,
        f"{what}_driver_cpu_us": 1e6 * (time.process_time() - own_s) / count,
    }


async def _until(condition: Callable[[], Any]) -> None:
    """Look again every 5 ms: what is awaited are the links' counters, which tell nobody."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > end:
            raise TransportError(
                f"the fleet and its broker were not done within {PATIENCE_S:g} s: measure fewer clients"
            )
        await asyncio.sleep(0.005)
