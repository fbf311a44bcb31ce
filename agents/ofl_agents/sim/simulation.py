"""`ofl sim`: a whole federation on this machine, over a real broker or in virtual time."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from ofl_agents.build import AgentPlan, Parties
from ofl_agents.sim.audit import Audit, audit_chunks
from ofl_agents.sim.churn import COMING_AND_GOING, Churn
from ofl_agents.sim.fleet_report import count_service, service_by_type
from ofl_agents.sim.summary import Costs, DeviceRow, Progress, SimulationError, Summary
from ofl_iot.apps.opening import Fleet
from ofl_iot.fleet.devices import DeviceType, deal_types
from ofl_iot.ids import COORDINATOR, DECRYPTOR, DeviceId, device_id
from ofl_iot.jobs.toolbox import TypePace
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.roles.agent import AgentMachine
from ofl_iot.roles.coordinator.machine import CoordinatorMachine
from ofl_iot.runtime.addressing import Wire
from ofl_iot.runtime.live import Equipment, LiveParty
from ofl_iot.runtime.settings import Settings
from ofl_iot.runtime.store import SqliteStore
from ofl_iot.runtime.telemetry import SimulatedSource
from ofl_iot.runtime.virtual import Party, VirtualWorld
from ofl_iot.runtime.virtual_broker import Faults
from ofl_iot.transport.mqtt import MqttLink, Will
from ofl_iot.workloads.base import Vector, Workload

Runtime = Literal["live", "virtual"]
LIVE_LIMIT_S = 600.0
Beside = Callable[[Settings], AbstractAsyncContextManager[None]]
"""What runs beside a live fleet, at the broker that its settings name; it is left while all parties still run."""


@dataclass(frozen=True)
class SimulatedDevice:
    """A device that exists only here."""

    plan: AgentPlan
    kind: DeviceType
    workload: Workload
    samples: int
    number: int


@dataclass(frozen=True)
class Outcome:
    """The parties as they stand at the end of a run."""

    agents: dict[DeviceId, AgentMachine]
    coordinator: CoordinatorMachine
    traffic: dict[DeviceId, tuple[int, int]]
    """Bytes up and down."""
    virtual_s: float | None = None
    costs: Costs | None = None


class Simulation:
    """A federation of simulated devices; `run` returns its summary or raises."""

    def __init__(
        self,
        settings: Settings,
        progress: Progress,
        runtime: Runtime,
        learning: Fleet,
        *,
        churn: bool = False,
        beside: Beside | None = None,
    ) -> None:
        self._settings = settings
        self._runtime = runtime
        self._progress = progress
        self._churning = churn
        self._beside = beside
        self._churn: Churn | None = None
        self.model: Vector | None = None
        """The last global model, once the run is over."""
        simulation = settings.simulation
        self._parties = Parties(settings, simulation.seed if runtime == "virtual" else None)
        self._judge = learning.judge
        self._coordinator = self._parties.coordinator(self._judge)
        self._decryptor = self._parties.decryptor() if settings.protection.server == DECRYPTOR else None
        seeds = np.random.SeedSequence(simulation.seed).spawn(simulation.devices)
        self._devices = [
            SimulatedDevice(
                self._parties.agent(name, workload, kind.name, np.random.default_rng(seed)),
                kind,
                workload,
                workload.sample_count,
                number,
            )
            for number, (name, workload, kind, seed) in enumerate(
                zip(
                    device_names(simulation.devices),
                    learning.devices,
                    deal_types(simulation.devices),
                    seeds,
                    strict=True,
                )
            )
        ]

    def run(self, work_dir: Path) -> Summary:
        """Run to the last round."""
        began = time.monotonic()
        if self._runtime == "virtual":
            return self._run_virtual(began)
        return asyncio.run(self._run_live(began, work_dir))

    # --- virtual

    def _run_virtual(self, began: float) -> Summary:
        simulation = self._settings.simulation
        world = VirtualWorld(self._parties.federation, Faults(), simulation.seed, self._progress.listen)
        coordinator = Party(COORDINATOR, self._coordinator.make, self._coordinator.toolbox, TypePace(0.0))
        world.add(coordinator)
        if self._decryptor:
            world.add(Party(DECRYPTOR, self._decryptor.make, self._decryptor.toolbox, TypePace(0.0)))
        for device in self._devices:
            plan = device.plan
            party = Party(
                plan.name,
                plan.make,
                plan.toolbox,
                self._pace(device),
                will=plan.will,
                meter=self._meter(device, lambda: world.now),
                faults=COMING_AND_GOING if self._churning else None,
            )
            world.add(party)
        self._churn = Churn(world, simulation.seed) if self._churning else None

        def done() -> bool:
            machine = coordinator.machine
            return isinstance(machine, CoordinatorMachine) and self._finished(machine)

        rounds = self._settings.round
        patience = 60 + 3 * simulation.rounds * (rounds.interval_s + rounds.deadline_s)
        if not (self._churn or world).run(done, limit_s=patience):
            raise SimulationError(f"only {self._progress.completed} of {simulation.rounds} rounds were completed")
        traffic = {name: world.broker.session(name).traffic for name in world.parties}
        outcome = Outcome(
            {name: _agent(world.parties[name].machine) for name in self._names()},
            _coordinator(coordinator.machine),
            {DeviceId(name): (each.up, each.down) for name, each in traffic.items()},
            world.now,
            Costs(
                trainings=self._progress.trainings,
                messages=world.broker.messages,
                commits=sum(party.store.commits for party in world.parties.values()),
                stored_bytes=sum(party.store.bytes_written for party in world.parties.values()),
            ),
        )
        return self._summarise("virtual", began, outcome)

    # --- live

    async def _run_live(self, began: float, work_dir: Path) -> Summary:
        from ofl_broker.embedded import EmbeddedBroker

        async with EmbeddedBroker() as broker:
            mqtt = msgspec.structs.replace(
                self._settings.mqtt, hosts=("127.0.0.1",), port=broker.port, tls=None, identity=None
            )
            with ThreadPoolExecutor(max_workers=4, thread_name_prefix="ofl-job") as executor:
                servers = (COORDINATOR, DECRYPTOR) if self._decryptor else (COORDINATOR,)
                links = {name: self._link(name, mqtt) for name in (*servers, *self._names())}
                parties = self._live_parties(links, work_dir, executor)
                at_broker = msgspec.structs.replace(self._settings, mqtt=mqtt)
                await self._drive(list(parties.values()), self._beside(at_broker) if self._beside else nullcontext())
        outcome = Outcome(
            {name: _agent(parties[name].machine) for name in self._names()},
            _coordinator(parties[COORDINATOR].machine),
            {name: (link.bytes_sent, link.bytes_received) for name, link in links.items()},
        )
        return self._summarise("live", began, outcome)

    def _link(self, name: DeviceId, mqtt: object) -> MqttLink:
        wire = Wire(self._parties.federation)
        wills = {device.plan.name: device.plan.will for device in self._devices}
        will = Will(*wills[name]) if name in wills else None
        echo = wire.topics.build(Topic(Kind.ECHO, name))
        return MqttLink(mqtt, name, will, federation=self._parties.federation, echo_topic=echo)  # type: ignore[arg-type]

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
        if self._decryptor:
            its = equipment(DECRYPTOR, toolbox=self._decryptor.toolbox)
            parties[DECRYPTOR] = LiveParty(DECRYPTOR, self._decryptor.make, its)
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

    async def _drive(self, parties: list[LiveParty], beside: AbstractAsyncContextManager[None]) -> None:
        """Run all parties until the coordinator has finished; a party that dies ends the run."""
        tasks = [asyncio.create_task(party.run(), name=party.name) for party in parties]
        coordinator = parties[0]
        try:
            async with beside:
                await self._until_finished(tasks, coordinator)
        finally:
            for party in parties:
                party.stop()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _until_finished(self, tasks: list[asyncio.Task[None]], coordinator: LiveParty) -> None:
        deadline = time.monotonic() + LIVE_LIMIT_S
        while not self._finished(_coordinator(coordinator.machine)):
            ended, _ = await asyncio.wait(tasks, timeout=0.1, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                raise SimulationError(f"{task.get_name()} ended before the run did") from task.exception()
            if time.monotonic() > deadline:
                raise SimulationError(
                    f"only {self._progress.completed} of {self._settings.simulation.rounds} rounds "
                    f"were completed in {LIVE_LIMIT_S:.0f} s"
                )

    # --- both

    def _names(self) -> list[DeviceId]:
        return [device.plan.name for device in self._devices]

    def _pace(self, device: SimulatedDevice) -> TypePace:
        return TypePace(self._settings.simulation.step_s / device.kind.relative_speed)

    def _meter(self, device: SimulatedDevice, clock: object) -> SimulatedSource:
        rng = np.random.default_rng([self._settings.simulation.seed, device.number])
        return SimulatedSource(device.kind, rng, clock, step_s=self._settings.simulation.step_s)  # type: ignore[arg-type]

    def _finished(self, coordinator: CoordinatorMachine) -> bool:
        """Whether the last round is closed and its model evaluated."""
        history = self._progress.history
        return coordinator.finished and bool(history) and history[-1].round_no >= coordinator.counter.closed

    def _summarise(self, runtime: Runtime, began: float, outcome: Outcome) -> Summary:
        coordinator = outcome.coordinator
        self.model = coordinator.model
        audit: Audit = audit_chunks(coordinator, outcome.agents)
        rows = [self._row(device, outcome) for device in self._devices]
        plan = coordinator.roster.plan
        services = count_service(
            {row.device: row.device_type for row in rows},
            {device: record.terms for device, record in plan.service.items()} if plan else {},
        )
        churn, progress = self._churn, self._progress
        measured = progress.history[-1].metrics if progress.history else {}
        return Summary(
            accuracy=measured.get("accuracy"),
            metrics=measured,
            app=self._settings.federation.app,
            parameters=self._judge.size,
            rounds=coordinator.counter.completed,
            wall_s=time.monotonic() - began,
            bytes_up_per_device=float(np.mean([row.bytes_up for row in rows])),
            bytes_down_per_device=float(np.mean([row.bytes_down for row in rows])),
            clusters=len(coordinator.roster.seats()),
            lost_chunks=audit.lost,
            doubled_chunks=audit.doubled + (churn.doubled_chunks if churn else 0),
            runtime=runtime,
            costs=outcome.costs,
            devices=len(rows),
            seed=self._settings.simulation.seed,
            virtual_s=outcome.virtual_s,
            leaders=[seat.leader for seat in coordinator.roster.seats()],
            chunks_merged=progress.chunks,
            messages_dropped=progress.dropped,
            churn=self._churning,
            leader_changes=progress.leader_changes,
            reclusterings=len(progress.reclusterings),
            coordinator_restarts=churn.coordinator_restarts if churn else 0,
            service_by_type=service_by_type(services),
            services=services,
            reclustering_history=progress.reclusterings,
            accuracy_by_round=[
                (each.round_no, each.metrics["accuracy"]) for each in progress.history if "accuracy" in each.metrics
            ],
            metrics_by_round=progress.history,
            rows=rows,
        )

    def _row(self, device: SimulatedDevice, outcome: Outcome) -> DeviceRow:
        name = device.plan.name
        cluster = outcome.coordinator.roster.cluster_of(name)
        up, down = outcome.traffic[name]
        leader = cluster.leader if cluster else ""
        return DeviceRow(name, device.kind.name, device.samples, up, down, leader)


def device_names(count: int) -> list[DeviceId]:
    """device-01, device-02, …"""
    width = max(2, len(str(count)))
    return [device_id(f"device-{number:0{width}d}") for number in range(1, count + 1)]


def work_folder() -> tempfile.TemporaryDirectory[str]:
    """Where the parties of a live run keep their stores."""
    return tempfile.TemporaryDirectory(prefix="ofl-sim-")


def _agent(machine: object) -> AgentMachine:
    if not isinstance(machine, AgentMachine):
        raise SimulationError("a device was not running at the end")
    return machine


def _coordinator(machine: object) -> CoordinatorMachine:
    if not isinstance(machine, CoordinatorMachine):
        raise SimulationError("the coordinator was not running at the end")
    return machine
