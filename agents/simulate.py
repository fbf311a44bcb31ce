"""`ofl sim`: a whole federation on this machine, over a real broker or in virtual time."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from agents.audit import Audit, audit_chunks
from agents.parties import AgentPlan, Parties
from ofl_iot.errors import OflError
from ofl_iot.fleet.devices import DeviceType, deal_types
from ofl_iot.ids import COORDINATOR, DeviceId, device_id
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.roles.agent import AgentMachine
from ofl_iot.roles.commands import Tell
from ofl_iot.roles.coordinator import CoordinatorMachine
from ofl_iot.runtime.live import Equipment, LiveParty
from ofl_iot.runtime.settings import Settings
from ofl_iot.runtime.store import SqliteStore
from ofl_iot.runtime.telemetry import SimulatedSource
from ofl_iot.runtime.toolbox import TypePace
from ofl_iot.runtime.virtual import Party, VirtualWorld
from ofl_iot.runtime.virtual_broker import Faults
from ofl_iot.runtime.wire import Wire
from ofl_iot.transport.mqtt import MqttLink, Will
from ofl_iot.workloads.digits import DigitsWorkload, digits_federation

Runtime = Literal["live", "virtual"]
LIVE_LIMIT_S = 600.0


class SimulationFailed(OflError):
    """The run did not do what it set out to do."""


@dataclass
class Progress:
    """What has happened so far; the display reads it while the run writes."""

    rounds: int
    completed: int = 0
    accuracy: float = 0.0
    history: list[tuple[int, float]] = field(default_factory=list)
    chunks: int = 0
    trainings: int = 0
    clusters: int = 0
    leaders: list[str] = field(default_factory=list)
    dropped: int = 0

    def listen(self, name: str, told: Tell, _now: float) -> None:
        """Take in what a party tells."""
        fields = told.fields
        if told.what == "merged":
            self.chunks += 1
        elif told.what == "trained":
            self.trainings += 1
        elif told.what == "message dropped":
            self.dropped += 1
        elif name == COORDINATOR and told.what == "round closed":
            self.completed = int(str(fields["completed"]))
        elif told.what == "evaluated":
            self.accuracy = float(str(fields["accuracy"]))
            self.history.append((int(str(fields["round_no"])), self.accuracy))
        elif told.what == "clustered":
            self.clusters = int(str(fields["clusters"]))
            self.leaders = list(fields["leaders"])  # type: ignore[call-overload]


@dataclass(frozen=True)
class DeviceRow:
    """One device in the summary."""

    device: str
    device_type: str
    samples: int
    bytes_up: int
    bytes_down: int
    leader: str


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What a run came to."""

    accuracy: float
    rounds: int
    wall_s: float
    bytes_up_per_device: float
    bytes_down_per_device: float
    clusters: int
    lost_chunks: int
    doubled_chunks: int
    runtime: str
    devices: int
    seed: int
    virtual_s: float | None
    leaders: list[str]
    chunks_merged: int
    messages_dropped: int
    accuracy_by_round: list[tuple[int, float]]
    rows: list[DeviceRow]


@dataclass(frozen=True)
class SimulatedDevice:
    """A device that exists only here."""

    plan: AgentPlan
    kind: DeviceType
    workload: DigitsWorkload


class Simulation:
    """A federation of simulated devices; `run` returns its summary or raises."""

    def __init__(self, settings: Settings, progress: Progress) -> None:
        self._settings = settings
        self._progress = progress
        simulation = settings.simulation
        self._parties = Parties(settings)
        workloads, self._judge = digits_federation(
            simulation.devices, simulation.seed, model=settings.federation.model, alpha=simulation.alpha
        )
        self._coordinator = self._parties.coordinator(self._judge)
        seeds = np.random.SeedSequence(simulation.seed).spawn(simulation.devices)
        self._devices = [
            SimulatedDevice(self._parties.agent(name, workload, kind.name, np.random.default_rng(seed)), kind, workload)
            for name, workload, kind, seed in zip(
                device_names(simulation.devices), workloads, deal_types(simulation.devices), seeds, strict=True
            )
        ]

    def run(self, runtime: Runtime, work_dir: Path) -> Summary:
        """Run to the last round."""
        began = time.monotonic()
        if runtime == "virtual":
            return self._run_virtual(began)
        return asyncio.run(self._run_live(began, work_dir))

    # --- virtual

    def _run_virtual(self, began: float) -> Summary:
        simulation = self._settings.simulation
        world = VirtualWorld(self._parties.federation, Faults(), simulation.seed, self._progress.listen)
        coordinator = Party(COORDINATOR, self._coordinator.make, self._coordinator.toolbox, TypePace(0.0))
        world.add(coordinator)
        for device in self._devices:
            plan = device.plan
            party = Party(
                plan.name,
                plan.make,
                plan.toolbox,
                self._pace(device),
                will=plan.will,
                meter=self._meter(device, lambda: world.now),
            )
            world.add(party)

        def done() -> bool:
            machine = coordinator.machine
            return isinstance(machine, CoordinatorMachine) and machine.finished and self._evaluated_all()

        rounds = self._settings.round
        patience = 60 + 3 * simulation.rounds * (rounds.interval_s + rounds.deadline_s)
        if not world.run(done, limit_s=patience):
            raise SimulationFailed(f"only {self._progress.completed} of {simulation.rounds} rounds were completed")
        traffic = {name: world.broker.session(name).traffic for name in world.parties}
        return self._summarise(
            "virtual",
            began,
            {device.plan.name: _agent(world.parties[device.plan.name].machine) for device in self._devices},
            _coordinator(coordinator.machine),
            {DeviceId(name): (each.up, each.down) for name, each in traffic.items()},
            world.now,
        )

    # --- live

    async def _run_live(self, began: float, work_dir: Path) -> Summary:
        from broker.embedded import EmbeddedBroker

        async with EmbeddedBroker() as broker:
            mqtt = msgspec.structs.replace(self._settings.mqtt, hosts=("127.0.0.1",), port=broker.port)
            with ThreadPoolExecutor(max_workers=4, thread_name_prefix="ofl-job") as executor:
                links = {name: self._link(name, mqtt) for name in (COORDINATOR, *self._names())}
                parties = self._live_parties(links, work_dir, executor)
                await self._drive(list(parties.values()))
        return self._summarise(
            "live",
            began,
            {name: _agent(parties[name].machine) for name in self._names()},
            _coordinator(parties[COORDINATOR].machine),
            {name: (link.bytes_sent, link.bytes_received) for name, link in links.items()},
            None,
        )

    def _link(self, name: DeviceId, mqtt: object) -> MqttLink:
        wire = Wire(self._parties.federation)
        wills = {device.plan.name: device.plan.will for device in self._devices}
        will = Will(*wills[name]) if name in wills else None
        echo = wire.topics.build(Topic(Kind.ECHO, name))
        return MqttLink(mqtt, name, will, echo_topic=echo)  # type: ignore[arg-type]

    def _live_parties(
        self, links: dict[DeviceId, MqttLink], work_dir: Path, executor: ThreadPoolExecutor
    ) -> dict[DeviceId, LiveParty]:
        def equipment(name: DeviceId, **more: object) -> Equipment:
            return Equipment(
                link=links[name],
                store=SqliteStore(work_dir / f"{name}.sqlite"),
                wire=Wire(self._parties.federation),
                executor=executor,
                listener=self._progress.listen,
                **more,  # type: ignore[arg-type]
            )

        parties = {
            COORDINATOR: LiveParty(
                COORDINATOR, self._coordinator.make, equipment(COORDINATOR, toolbox=self._coordinator.toolbox)
            )
        }
        for device in self._devices:
            plan = device.plan
            parties[plan.name] = LiveParty(
                plan.name,
                plan.make,
                equipment(
                    plan.name,
                    toolbox=plan.toolbox,
                    pace=self._pace(device),
                    meter=self._meter(device, time.monotonic),
                ),
            )
        return parties

    async def _drive(self, parties: list[LiveParty]) -> None:
        """Run all parties until the coordinator has finished; a party that dies ends the run."""
        tasks = [asyncio.create_task(party.run(), name=party.name) for party in parties]
        coordinator = parties[0]
        deadline = time.monotonic() + LIVE_LIMIT_S
        try:
            while not (_coordinator(coordinator.machine).finished and self._evaluated_all()):
                ended, _ = await asyncio.wait(tasks, timeout=0.1, return_when=asyncio.FIRST_COMPLETED)
                for task in ended:
                    raise SimulationFailed(f"{task.get_name()} ended before the run did") from task.exception()
                if time.monotonic() > deadline:
                    raise SimulationFailed(
                        f"only {self._progress.completed} of {self._settings.simulation.rounds} rounds "
                        f"were completed in {LIVE_LIMIT_S:.0f} s"
                    )
        finally:
            for party in parties:
                party.stop()
            await asyncio.gather(*tasks, return_exceptions=True)

    # --- both

    def _names(self) -> list[DeviceId]:
        return [device.plan.name for device in self._devices]

    def _pace(self, device: SimulatedDevice) -> TypePace:
        return TypePace(self._settings.simulation.step_s / device.kind.relative_speed)

    def _meter(self, device: SimulatedDevice, clock: object) -> SimulatedSource:
        rng = np.random.default_rng([self._settings.simulation.seed, self._devices.index(device)])
        return SimulatedSource(device.kind, rng, clock, step_s=self._settings.simulation.step_s)  # type: ignore[arg-type]

    def _evaluated_all(self) -> bool:
        return len(self._progress.history) >= self._settings.simulation.rounds

    def _summarise(
        self,
        runtime: Runtime,
        began: float,
        agents: dict[DeviceId, AgentMachine],
        coordinator: CoordinatorMachine,
        traffic: dict[DeviceId, tuple[int, int]],
        virtual_s: float | None,
    ) -> Summary:
        audit: Audit = audit_chunks(coordinator, agents)
        rows = []
        for device in self._devices:
            name = device.plan.name
            cluster = coordinator.roster.cluster_of(name)
            up, down = traffic[name]
            rows.append(
                DeviceRow(
                    name, device.kind.name, device.workload.sample_count, up, down, cluster.leader if cluster else ""
                )
            )
        return Summary(
            accuracy=self._progress.accuracy,
            rounds=coordinator.counter.completed,
            wall_s=time.monotonic() - began,
            bytes_up_per_device=float(np.mean([row.bytes_up for row in rows])),
            bytes_down_per_device=float(np.mean([row.bytes_down for row in rows])),
            clusters=len(coordinator.roster.seats()),
            lost_chunks=audit.lost,
            doubled_chunks=audit.doubled,
            runtime=runtime,
            devices=len(rows),
            seed=self._settings.simulation.seed,
            virtual_s=virtual_s,
            leaders=[seat.leader for seat in coordinator.roster.seats()],
            chunks_merged=self._progress.chunks,
            messages_dropped=self._progress.dropped,
            accuracy_by_round=self._progress.history,
            rows=rows,
        )


def device_names(count: int) -> list[DeviceId]:
    """device-01, device-02, …"""
    width = max(2, len(str(count)))
    return [device_id(f"device-{number:0{width}d}") for number in range(1, count + 1)]


def check(summary: Summary, settings: Settings) -> None:
    """Raise unless the run did what it says."""
    if summary.rounds != settings.simulation.rounds:
        raise SimulationFailed(f"{summary.rounds} rounds were completed, not {settings.simulation.rounds}")
    if summary.lost_chunks or summary.doubled_chunks:
        raise SimulationFailed(f"{summary.lost_chunks} chunks were lost, {summary.doubled_chunks} counted twice")
    chance = 0.1
    if not summary.accuracy > 2 * chance:
        raise SimulationFailed(f"an accuracy of {summary.accuracy:.3f} is no better than guessing")


def write_results(summary: Summary, settings: Settings, folder: Path) -> None:
    """The summary and the settings that gave it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "summary.json").write_text(json.dumps(msgspec.to_builtins(summary), indent=2) + "\n")
    (folder / "settings.json").write_text(json.dumps(msgspec.to_builtins(settings), indent=2) + "\n")
    lines = ["round,accuracy", *(f"{round_no},{accuracy:.6f}" for round_no, accuracy in summary.accuracy_by_round)]
    (folder / "accuracy.csv").write_text("\n".join(lines) + "\n")


def work_folder() -> tempfile.TemporaryDirectory[str]:
    """Where the parties of a live run keep their stores."""
    return tempfile.TemporaryDirectory(prefix="ofl-sim-")


def _agent(machine: object) -> AgentMachine:
    if not isinstance(machine, AgentMachine):
        raise SimulationFailed("a device was not running at the end")
    return machine


def _coordinator(machine: object) -> CoordinatorMachine:
    if not isinstance(machine, CoordinatorMachine):
        raise SimulationFailed("the coordinator was not running at the end")
    return machine
