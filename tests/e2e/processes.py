"""A federation of real processes: starts them, kills them, watches what the broker retains, reads their stores."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ofl_agents.app import open_app
from ofl_agents.build import Parties
from ofl_agents.sim.audit import Audit, audit_chunks
from ofl_iot.ids import COORDINATOR, DECRYPTOR, DeviceId
from ofl_iot.protocol.messages import Assignment, Manifest, Status
from ofl_iot.protocol.seqset import SeqSet
from ofl_iot.protocol.topics import Kind
from ofl_iot.roles.agent import AgentMachine
from ofl_iot.roles.coordinator.machine import CoordinatorMachine
from ofl_iot.roles.events import Started
from ofl_iot.runtime.addressing import Wire
from ofl_iot.runtime.settings import Settings
from ofl_iot.runtime.settings_file import load_settings
from ofl_iot.runtime.store import SqliteStore
from ofl_iot.transport.link import Delivery, LinkEvent

OFL = Path(sys.executable).with_name("ofl")
PARTS = 4
NAMES = [DeviceId(f"truck-{number}") for number in range(1, PARTS + 1)]
DEADLINE_S = 120.0
"""Only reached when something is wrong; a busy machine may need most of it."""
QUICK = """
[federation]
id = "e2e"
app = "digits"
[mqtt]
port = {port}
backoff_min_s = 0.05
backoff_max_s = 0.3
echo_interval_s = 1.0
echo_timeout_s = 1.0
[training]
pause_s = 0.05
[privacy]
mode = "off"
[protection]
mode = "{protection}"
server_dec = "{server_dec}"
params = "{params}"
resend_s = 1.0
key_deadline_s = 20.0
decryption_deadline_s = 10.0
[upload]
resend_s = 1.0
[download]
timeout_s = 1.0
[leader]
resend_s = 1.0
[round]
count = {rounds}
interval_s = 0.3
deadline_s = 4.0
recluster_every = 3
[fleet]
min_devices = 4
gather_s = 0.2
clusters = 2
heartbeat_s = 1.0
leader_grace_s = 1.5
"""


class OflProcess:
    """One `ofl` process; its output goes to a file that the test can read at any time."""

    program: tuple[str, ...] = (str(OFL),)

    def __init__(self, arguments: list[str], log: Path) -> None:
        self.arguments = arguments
        self._log = log
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self.program,
                *self.arguments,
                stdout=log,
                stderr=log,
                stdin=asyncio.subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )

    @property
    def output(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def ended(self) -> int:
        """The exit code, once it has one."""
        assert self._process is not None
        return await asyncio.wait_for(self._process.wait(), DEADLINE_S)

    async def kill_and_restart(self) -> None:
        self.kill()
        assert await self.ended() == -signal.SIGKILL
        await self.start()


@dataclass
class Watch:
    """What the broker retains, as an observer sees it."""

    settings: Settings
    statuses: dict[str, Status] = field(default_factory=dict)
    assignments: dict[str, Assignment] = field(default_factory=dict)
    manifest: Manifest | None = None

    def __post_init__(self) -> None:
        self._wire = Wire(Parties(self.settings).federation)

    @property
    def patterns(self) -> list[str]:
        return [self._wire.topics.pattern(kind) for kind in (Kind.STATUS, Kind.ASSIGNMENT, Kind.MANIFEST)]

    def __call__(self, event: LinkEvent) -> None:
        if not isinstance(event, Delivery):
            return
        event.ack()
        arrived = self._wire.incoming(event.topic, event.payload)
        assert arrived is not None
        message = arrived.message
        if isinstance(message, Status):
            self.statuses[arrived.topic.sender] = message
        elif isinstance(message, Assignment):
            self.assignments[str(arrived.topic.receiver)] = message
        elif isinstance(message, Manifest):
            self.manifest = message

    @property
    def round_no(self) -> int:
        return self.manifest.round_no if self.manifest else 0

    @property
    def leaders(self) -> set[str]:
        return {assignment.leader for assignment in self.assignments.values()}

    def follower(self) -> str:
        return next(name for name in NAMES if name not in self.leaders)

    def leader(self) -> str:
        return sorted(self.leaders)[0]


class Federation:
    """A coordinator and four agents, and a decryptor where there is to be one, each a process with its own store."""

    def __init__(
        self, folder: Path, port: int, rounds: int, protection: str = "clear", server_dec: str = "coordinator"
    ) -> None:
        self.state = folder / "state"
        config = folder / "ofl.toml"
        params = "main" if server_dec == DECRYPTOR else "lean"
        config.write_text(
            QUICK.format(port=port, rounds=rounds, protection=protection, server_dec=server_dec, params=params)
        )
        self.settings: Settings = load_settings(Settings, [config], {}, {}).settings
        common = ["--config", str(config), "--state", str(self.state)]
        self.processes = {
            name: OflProcess(["agent", "--id", name, "--part", f"{part}/{PARTS}", *common], folder / f"{name}.log")
            for part, name in enumerate(NAMES, 1)
        }
        self.processes[COORDINATOR] = OflProcess(["coordinator", *common], folder / "coordinator.log")
        if server_dec == DECRYPTOR:
            self.processes[DECRYPTOR] = OflProcess(["decryptor", *common], folder / "decryptor.log")

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        for process in self.processes.values():
            await process.start()
        try:
            yield
        finally:
            for process in self.processes.values():
                process.kill()
                await process.ended()

    def restored(self) -> tuple[CoordinatorMachine, Mapping[DeviceId, AgentMachine]]:
        """The machines as their stores would let them start again."""
        learning = open_app(self.settings).fleet(PARTS, repeats=False)
        parties = Parties(self.settings)
        coordinator = parties.coordinator(learning.judge).make()
        coordinator.handle(Started(self._load(COORDINATOR)), 0.0)
        return coordinator, {name: self.restored_agent(name) for name in NAMES}

    def restored_agent(self, name: DeviceId) -> AgentMachine:
        """One agent's machine as its store would let it start again; the agent does not run."""
        learning = open_app(self.settings).fleet(PARTS, repeats=False)
        workload = learning.devices[NAMES.index(name)]
        agent = Parties(self.settings).agent(name, workload, "", np.random.default_rng(0)).make()
        agent.handle(Started(self._load(name)), 0.0)
        return agent

    def _load(self, name: str) -> Any:
        store = SqliteStore(self.state / f"{name}.sqlite")
        try:
            return store.load()
        finally:
            store.close()


def audit_stores(coordinator: CoordinatorMachine, agents: Mapping[DeviceId, AgentMachine]) -> Audit:
    """Every chunk that was ever released is settled or still in its device's outbox; none waits to be merged again."""
    for agent in agents.values():
        agent.device.acknowledged = SeqSet(agent.device.outbox.next_seq - 1)
    return audit_chunks(coordinator, agents)


async def until(condition: Any, federation: Federation | None = None, deadline_s: float = DEADLINE_S) -> None:
    """Wait until the condition holds; the processes' last words help when it does not."""
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            logs = {name: process.output[-500:] for name, process in federation.processes.items()} if federation else {}
            raise AssertionError(f"not within {deadline_s:g} s; {logs}")
        await asyncio.sleep(0.02)
