"""A federation of real processes under faults: kills, stops, wiped folders, links that are thin, lossy or seldom there.

A proxy stands in front of every party. An observer at the broker reads what the coordinator publishes, as a successor
would; what devices released is in journals outside their folders. At the end the two are compared.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import shutil
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import msgspec

from ofl_agents.chaos.audit import Figures, Windows, audit
from ofl_agents.chaos.counting import FEDERATION, CountingPlan
from ofl_agents.chaos.observer import Observer
from ofl_agents.chaos.party import LivePlan
from ofl_agents.chaos.proxy import LinkShape, ShapedProxy
from ofl_iot.errors import OflError
from ofl_iot.ids import COORDINATOR
from ofl_iot.roles.settings import (
    DownloadRules,
    FleetRules,
    LeaderRules,
    ProtectionRules,
    RoundRules,
    TrainingRules,
    UploadRules,
)
from ofl_iot.runtime.addressing import Wire
from ofl_iot.transport.mqtt import MqttLink
from ofl_iot.transport.settings import MqttSettings

FaultKind: TypeAlias = Literal[
    "kill", "pause", "cut", "stall", "wipe member", "wipe leader", "wipe coordinator", "kill coordinator", "kill broker"
]
FAULT_KINDS: tuple[FaultKind, ...] = get_args(FaultKind)
ORDER: tuple[FaultKind, ...] = (
    "kill", "cut", "wipe leader", "kill coordinator", "wipe member", "pause", "wipe coordinator", "stall",
    "kill broker",
)  # fmt: skip
"""Each kind comes once before any comes again."""
LINKS: dict[str, LinkShape] = {
    "good": LinkShape(),
    "thin": LinkShape(bytes_s=2500.0, delay_s=0.05),
    "lossy": LinkShape(bytes_s=50_000.0, delay_s=0.02, loss=0.3),
    "windows": LinkShape(open_s=20.0, every_s=120.0),
}
"""Kinds of links; thin is 20 kbit/s, lossy loses three segments in ten, windows is there 20 s in 120."""
DEVICES = ("good", "good", "good", "good", "thin", "lossy", "windows")
PLAN = CountingPlan(
    devices=len(DEVICES),
    width=1000,
    rounds=RoundRules(interval_s=3.0, deadline_s=10.0, recluster_every=10),
    fleet=FleetRules(min_devices=4, gather_s=2.0, clusters=2, leader_grace_s=4.0, heartbeat_s=10.0),
    training=TrainingRules(pause_s=2.0),
    upload=UploadRules(gamma=1.0, values="single", resend_s=6.0),
    download=DownloadRules(gamma=1.0, timeout_s=5.0),
    leader=LeaderRules(block_size=200, snapshot_chunks=8, resend_s=3.0, values="single"),
)
ENCRYPTED = msgspec.structs.replace(
    PLAN,
    step=1 / 256,
    fleet=msgspec.structs.replace(PLAN.fleet, clusters=3),
    protection=ProtectionRules(s_factor="mean", decryption_deadline_s=10.0, resend_s=3.0),
)
"""Lean rounds of three clusters; steps so small that an update of many trainings can be scored."""
MQTT = MqttSettings(backoff_min_s=0.2, backoff_max_s=5.0, echo_interval_s=5.0, echo_timeout_s=5.0, keepalive_s=10)
BETWEEN_FAULTS_S = 5.0
REST_S = 180.0
"""How long a federation may take to settle everything after the last fault."""


class LiveError(OflError):
    """A live run could not be carried out."""


class Injected(msgspec.Struct, frozen=True):
    """A fault that was injected, and when it was over."""

    kind: FaultKind
    party: str
    ended_at: float


@dataclass(eq=False)
class _Process:
    """A child process that can be killed and started again."""

    command: list[str]
    log: Path
    child: asyncio.subprocess.Process | None = None

    async def start(self, *more: str) -> None:
        with self.log.open("ab") as log:
            self.child = await asyncio.create_subprocess_exec(
                *self.command, *more, stdout=log, stderr=log, stdin=asyncio.subprocess.DEVNULL
            )

    def send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self.child is not None:
                self.child.send_signal(number)

    async def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        self.send(signal.SIGCONT)
        self.send(number)
        if self.child is not None:
            await self.child.wait()


@dataclass(eq=False)
class LiveRun:
    """One run: broker, proxies, parties, faults."""

    folder: Path
    minutes: float
    seed: int = 0
    faults: bool = True
    encrypted: bool = False
    say: Callable[[str], None] = lambda _line: None
    injected: list[Injected] = field(default_factory=list)
    _wiped: dict[str, int] = field(default_factory=dict)
    _processes: dict[str, _Process] = field(default_factory=dict)
    _proxies: dict[str, ShapedProxy] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)  # noqa: S311  # the order of faults repeats itself
        self.names = tuple(f"{kind}-{number}" for number, kind in enumerate(DEVICES))
        self.broker = "mosquitto" if _mosquitto() else "amqtt"

    async def run(self) -> Figures:
        """Carry the run out and compare."""
        (self.folder / "state").mkdir(parents=True, exist_ok=True)
        async with self._running() as (plan, observer):
            began, self._began_at = time.monotonic(), time.time()
            end = began + 60.0 * self.minutes
            await self._wait(lambda: observer.round_no > 0, 60.0, "no round was closed in the first minute")
            windows = asyncio.create_task(self._open_and_close(began), name="windows")
            try:
                await self._break_things(observer, end)
            finally:
                windows.cancel()
            for proxy in self._proxies.values():
                proxy.restore()
            until = time.time()
            if not self.encrypted:  # where rounds are, a cluster that speaks alone is not heard: all go on
                plan.quiet_file.touch()
                until = math.inf
            self.say("faults are over: waiting until everything is settled")
            rested = await self._rest(plan, observer, until)
            sent = {name: self._proxies[name].tally.by_kind for name in self.names}
        figures = audit(plan, observer, self.injected, sent, rested=rested, broker=self.broker, until=until)
        return msgspec.structs.replace(figures, windows=self._windows(observer))

    def _windows(self, observer: Observer) -> Windows:
        """Return how many contacts there were, and in how many of them a chunk was settled or on its way to be."""
        every_s, seconds = LINKS["windows"].every_s, 60.0 * self.minutes
        offered = used = 0
        for name in (name for name in self.names if name.startswith("windows-")):
            times = [at - self._began_at for at in observer.settled_at.get(name, ())]
            for start in range(0, int(seconds), int(every_s)):
                offered += 1
                used += any(start <= at < start + every_s for at in times)
        return Windows(offered, used)

    @contextlib.asynccontextmanager
    async def _running(self) -> AsyncIterator[tuple[LivePlan, Observer]]:
        port = _free_port()
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self._end_all)
            await self._start_broker(port)
            for number, name in enumerate((COORDINATOR, *self.names)):
                shape = LINKS[name.split("-")[0]] if name in self.names else LinkShape()
                proxy = ShapedProxy(port, shape, self.seed + number)
                self._proxies[name] = await stack.enter_async_context(proxy)
            plan = self._write_plan()
            observer = Observer(Wire(FEDERATION), plan.counting.size)
            link = MqttLink(msgspec.structs.replace(MQTT, port=port), "observer", None)
            watching = asyncio.create_task(observer.watch(link), name="observer")
            stack.callback(watching.cancel)
            for name in (COORDINATOR, *self.names):
                await self._processes[name].start()
            yield plan, observer

    async def _end_all(self) -> None:
        for process in self._processes.values():
            await process.end()

    async def _start_broker(self, port: int) -> None:
        mosquitto = _mosquitto()
        if mosquitto:
            config = self.folder / "mosquitto.conf"
            config.write_text(
                f"listener {port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\n"
                f"persistence true\npersistence_location {self.folder}/\nautosave_interval 1\n"
            )
            command = [mosquitto, "-c", str(config)]
        else:
            command = [sys.executable, "-m", "ofl_agents", "broker", "--port", str(port)]
        broker = self._processes["broker"] = _Process(command, self.folder / "broker.log")
        await broker.start()
        await self._wait(lambda: _listens(port), 30.0, f"the broker does not listen: see {broker.log}")

    def _write_plan(self) -> LivePlan:
        plan = LivePlan(
            counting=ENCRYPTED if self.encrypted else PLAN,
            mqtt=MQTT,
            folder=str(self.folder),
            ports={name: proxy.port for name, proxy in self._proxies.items()},
            names=self.names,
        )
        file = self.folder / "plan.json"
        file.write_bytes(msgspec.json.encode(plan))
        for name in (COORDINATOR, *self.names):
            command = [sys.executable, "-m", "ofl_agents.chaos.party", str(file), name]
            self._processes[name] = _Process(command, self.folder / f"{name}.log")
        return plan

    # --- faults

    async def _open_and_close(self, began: float) -> None:
        """Let links with contact windows come and go."""
        there = dict.fromkeys(self._proxies, True)
        while True:
            for name, proxy in self._proxies.items():
                is_open = proxy.shape.is_open(time.monotonic() - began)
                if is_open != there[name]:
                    there[name] = is_open
                    proxy.restore() if is_open else proxy.cut()
            await asyncio.sleep(0.1)

    async def _break_things(self, observer: Observer, end: float) -> None:
        number = 0
        while time.monotonic() + 2.0 < end:
            await asyncio.sleep(min(self._rng.uniform(0.6, 1.4) * BETWEEN_FAULTS_S, max(0.0, end - time.monotonic())))
            if self.faults and time.monotonic() + 2.0 < end:
                kind = ORDER[number % len(ORDER)]
                number += 1
                party = self._target(kind, observer)
                self.say(f"{kind}: {party}")
                await self._inject(kind, party)
                self.injected.append(Injected(kind, party, time.time()))

    def _target(self, kind: FaultKind, observer: Observer) -> str:
        if kind.endswith("coordinator"):
            return COORDINATOR
        if kind == "kill broker":
            return "broker"
        leaders = sorted(observer.leaders & set(self.names))
        members = sorted(set(self.names) - set(leaders))
        if kind in ("wipe leader", "wipe member"):
            chosen = (leaders if kind == "wipe leader" else members) or list(self.names)
            return min(chosen, key=lambda name: (self._wiped.get(name, 0), self._rng.random()))
        return self._rng.choice([*self.names, COORDINATOR] if kind in ("cut", "stall", "pause") else list(self.names))

    async def _inject(self, kind: FaultKind, party: str) -> None:
        """Carry one fault out, to its end."""
        seconds = self._rng.uniform(1.0, 5.0)
        if kind in ("cut", "stall"):
            proxy = self._proxies[party]
            proxy.cut() if kind == "cut" else proxy.stall()
            await asyncio.sleep(seconds)
            proxy.restore()
            if not proxy.shape.is_open(time.time() - self._began_at):
                proxy.cut()  # it was in no contact before, and is in none now
            return
        process = self._processes[party]
        if kind == "pause":
            process.send(signal.SIGSTOP)
            await asyncio.sleep(seconds)
            process.send(signal.SIGCONT)
            return
        await process.end()
        if kind.startswith("wipe"):
            self._wiped[party] = self._wiped.get(party, 0) + 1
            await asyncio.to_thread(shutil.rmtree, self.folder / "state" / party)
        await asyncio.sleep(seconds / 2)
        await process.start(*(["--take-over"] if kind == "wipe coordinator" else []))

    # --- coming to rest

    async def _rest(self, plan: LivePlan, observer: Observer, until: float) -> bool:
        end = time.monotonic() + REST_S
        since: float | None = None
        while time.monotonic() < end:
            settled = not observer.unsettled(plan, until)
            since = (since or time.monotonic()) if settled else None
            if since is not None and time.monotonic() - since > 8.0:
                return True
            await asyncio.sleep(0.5)
        return False

    async def _wait(self, condition: Callable[[], bool], seconds: float, complaint: str) -> None:
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise LiveError(f"{complaint} (logs are in {self.folder})")
            await asyncio.sleep(0.1)


def _mosquitto() -> str | None:
    return shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
        return True
    return False
