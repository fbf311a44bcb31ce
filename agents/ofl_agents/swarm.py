"""Many agents in one process: each has its connection, outbox and state; code, data and the store's file are shared."""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ofl_agents.app import open_app
from ofl_agents.build import Parties
from ofl_iot.errors import OflError
from ofl_iot.ids import DeviceId, device_id
from ofl_iot.privacy.noise import noise_generator
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.roles.agent import AgentMachine
from ofl_iot.runtime.addressing import Wire
from ofl_iot.runtime.live import Equipment, LiveParty
from ofl_iot.runtime.settings import Settings
from ofl_iot.runtime.shared_store import SharedStore
from ofl_iot.runtime.store import SqliteStore
from ofl_iot.runtime.telemetry import best_source
from ofl_iot.transport.mqtt import MqttLink, Will
from ofl_iot.workloads.base import Workload

log = logging.getLogger(__name__)
START_GAP_S = 0.004
"""Between the starts of two agents, so that a broker is not met by all connections at once."""
STORE_THREADS = 32
"""Agents that may wait for the same sync to disk."""
JOB_THREADS = 2


class SwarmError(OflError):
    """An agent of a swarm ended before it was told to."""


@dataclass(frozen=True)
class Slice:
    """The agents of one process among all of a swarm."""

    agents: int
    number: int = 0
    of: int = 1
    prefix: str = "swarm"

    @property
    def members(self) -> range:
        """Numbers of this process's agents, from 0."""
        return range(self.number, self.agents, self.of)

    def name(self, member: int) -> DeviceId:
        """An agent's id, such as swarm-0042."""
        return device_id(f"{self.prefix}-{member + 1:0{len(str(self.agents))}d}")


class Tally(msgspec.Struct, frozen=True):
    """What the agents of one process did."""

    agents: int
    connections: int
    """How often the broker accepted one."""
    publishes: int
    deliveries: int
    bytes_sent: int
    bytes_received: int
    commits: int
    """Transactions that were synced to disk."""
    store_failures: int
    unsettled: int
    """Chunks that no global model holds yet."""
    cpu_s: float
    peak_mb: float
    """Most memory that the process held at a time."""


def run_slice(settings: Settings, state: Path, part: Slice) -> Tally:
    """Run the agents of one process until SIGTERM or SIGINT."""
    app = open_app(settings)
    try:
        workloads = app.fleet(part.agents, repeats=False).devices
        with SqliteStore(state / f"{part.prefix}-{part.number}-of-{part.of}.sqlite") as file:
            return asyncio.run(_Swarm(settings, part, SharedStore(file)).run([workloads[at] for at in part.members]))
    finally:
        app.close()


class _Swarm:
    """The agents of one process."""

    def __init__(self, settings: Settings, part: Slice, store: SharedStore) -> None:
        self._settings = settings
        self._part = part
        self._store = store
        self._parties = Parties(settings)
        self._wire = Wire(self._parties.federation)
        self._meter = best_source("")
        self._links: list[MqttLink] = []
        self._stop = asyncio.Event()

    async def run(self, workloads: Sequence[Workload]) -> Tally:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        with (
            ThreadPoolExecutor(JOB_THREADS, thread_name_prefix="ofl-job") as jobs,
            ThreadPoolExecutor(STORE_THREADS, thread_name_prefix="ofl-store") as stores,
        ):
            members = zip(self._part.members, workloads, strict=True)
            parties = [self._party(self._part.name(at), workload, jobs, stores) for at, workload in members]
            tasks = await self._start(parties)
            try:
                await self._until_stopped(tasks)
            finally:
                for party in parties:
                    party.stop()
                await asyncio.gather(*tasks, return_exceptions=True)
        return self._tally(parties)

    def _party(
        self, name: DeviceId, workload: Workload, jobs: ThreadPoolExecutor, stores: ThreadPoolExecutor
    ) -> LiveParty:
        plan = self._parties.agent(name, workload, "", noise_generator())
        echo = self._wire.topics.build(Topic(Kind.ECHO, name))
        link = MqttLink(self._settings.mqtt, name, Will(*plan.will), echo_topic=echo)
        self._links.append(link)
        equipment = Equipment(
            link=link,
            store=self._store.of(name),
            toolbox=plan.toolbox,
            wire=self._wire,
            executor=jobs,
            store_executor=stores,
            meter=self._meter,
            job_limit_s=self._settings.service.job_limit_s,
        )
        return LiveParty(name, plan.make, equipment)

    async def _start(self, parties: list[LiveParty]) -> list[asyncio.Task[None]]:
        tasks = []
        for party in parties:
            tasks.append(asyncio.create_task(party.run(), name=party.name))
            await asyncio.sleep(START_GAP_S)
        log.info("swarm started agents=%d process=%d/%d", len(parties), self._part.number + 1, self._part.of)
        return tasks

    async def _until_stopped(self, tasks: list[asyncio.Task[None]]) -> None:
        stopping = asyncio.create_task(self._stop.wait(), name="stop")
        done, _ = await asyncio.wait({stopping, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        for task in done - {stopping}:
            raise SwarmError(f"{task.get_name()} ended before it was told to") from task.exception()

    def _tally(self, parties: list[LiveParty]) -> Tally:
        machines = [party.machine for party in parties if isinstance(party.machine, AgentMachine)]
        return Tally(
            agents=len(parties),
            connections=sum(link.connections for link in self._links),
            publishes=sum(link.publishes for link in self._links),
            deliveries=sum(link.deliveries for link in self._links),
            bytes_sent=sum(link.bytes_sent for link in self._links),
            bytes_received=sum(link.bytes_received for link in self._links),
            commits=self._store.commits,
            store_failures=sum(party.store_failures for party in parties),
            unsettled=sum(len(machine.device.outbox.unsettled) for machine in machines),
            cpu_s=round(time.process_time(), 2),
            peak_mb=round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000, 1),
        )
