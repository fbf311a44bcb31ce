"""A federation for the learning bench: production machines in virtual time, some of its devices slow or poisoned."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np
import numpy.typing as npt

from ofl_agents.build import Parties
from ofl_agents.sim.simulation import device_names
from ofl_iot.fleet.devices import LINK_MBPS, DeviceType, deal_types
from ofl_iot.ids import COORDINATOR, DeviceId
from ofl_iot.jobs.toolbox import Toolbox, TypePace
from ofl_iot.roles.agent import AgentMachine
from ofl_iot.roles.coordinator.machine import CoordinatorMachine
from ofl_iot.roles.events import Event, Trained
from ofl_iot.roles.job_kinds.base import Job
from ofl_iot.roles.job_kinds.device import PrepareRelease, TrainLocally
from ofl_iot.roles.reports.base import JobFailure, Report
from ofl_iot.roles.reports.coordinator import Clustered, ModelEvaluated
from ofl_iot.roles.reports.device import BudgetSpent
from ofl_iot.roles.reports.leader import ChunkMerged, ChunkRefused
from ofl_iot.runtime.settings import Settings
from ofl_iot.runtime.telemetry import SimulatedSource
from ofl_iot.runtime.virtual import Listener, Party, VirtualWorld
from ofl_iot.runtime.virtual_broker import Faults, LinkRates
from ofl_iot.workloads.base import Evaluation, Vector, Workload
from ofl_iot.workloads.dense import DenseNet
from ofl_research.attacks import stamp_trigger
from ofl_research.benches.attack_cases import BACKDOOR_TARGET, Attack
from ofl_research.benches.learning_data import CLASSES, ImageWorkload, Part

JUDGED_ROUNDS = 3
"""Accuracies are means over the last global models: one model's is noisy."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Member:
    """One device: its data, how many times slower than its type it is, and what it does to its updates."""

    workload: Workload
    slowness: float = 1.0
    attack: Attack | None = None


@dataclass(frozen=True)
class Outcome:
    """What a federation came to."""

    accuracy: float
    class_accuracy: tuple[float, ...]
    trigger_success: float
    """Share of stamped images of other classes taken for the backdoor's target."""
    attackers_refused: float | None
    """Share of the attackers' chunks that leaders kept out; None without attackers."""
    honest_refused: float
    epsilon: float
    """The most a device spent; 0 where nothing was paid."""
    rounds: int
    """Rounds completed."""
    exhausted: int
    """Devices whose budget was spent before the end."""
    bytes_up: float
    """Mean of the devices, as leaders too."""
    failures: int
    """Trainings and releases that failed: a model that diverges ends in these."""
    silent: int
    """Devices of which nothing was merged."""
    clusters: int
    slow_among_slow: float | None
    """Share of the slow devices' cluster mates that are slow too, in the end; None without slow devices."""
    wall_s: float


class Judge(ImageWorkload):
    """The coordinator's held-out images; remembers how each global model did on every class and on the trigger."""

    def __init__(self, net: DenseNet, part: Part) -> None:
        super().__init__(net, part)
        others = part.labels != BACKDOOR_TARGET
        stamped = stamp_trigger(part.images[others])
        targets = np.full(len(stamped), BACKDOOR_TARGET)
        self._trigger = ImageWorkload(net, Part(stamped, targets))
        self._classes = [ImageWorkload(net, part, np.flatnonzero(part.labels == label)) for label in range(CLASSES)]
        self._models: list[Vector] = []
        """None yet: the untrained model is judged."""

    def evaluate(self, params: Vector) -> Evaluation:
        """Judge `params` on all images."""
        self._models = [*self._models, params][-JUDGED_ROUNDS:]
        return super().evaluate(params)

    def verdict(self) -> tuple[tuple[float, ...], float, float]:
        """Accuracy on each class, on all, and success of the trigger: means over the last models."""
        models = self._models or [self.initial(0)]
        classes = np.mean([[each.evaluate(model).accuracy for each in self._classes] for model in models], axis=0)
        accuracy = float(np.mean([super(Judge, self).evaluate(model).accuracy for model in models]))
        success = float(np.mean([self._trigger.evaluate(model).accuracy for model in models]))
        return tuple(classes.tolist()), accuracy, success


class PoisonedToolbox:
    """A malicious device: what it trains at the last synced model, turned into poison, is its unreleased work.

    It does not train on its poisoned local model, or its gradients would run away and give it away.
    """

    def __init__(self, inner: Toolbox, attack: Attack, rng: np.random.Generator) -> None:
        self._inner = inner
        self._attack = attack
        self._rng = rng
        self._synced: Vector | None = None

    def run(self, job: Job) -> Event:
        """Run a job as any device does, and poison what training yields."""
        poison = self._attack.poison_update
        if isinstance(job, PrepareRelease):
            self._synced = job.synced
        if poison is None or not isinstance(job, TrainLocally):
            return self._inner.run(job)
        start = job.params if self._synced is None else self._synced
        result = self._inner.run(replace(job, params=start))
        if not isinstance(result, Trained):
            return result
        update = np.asarray(poison(result.params - start, self._rng), np.float32)
        return replace(result, start=job.params, params=job.params + update)


@dataclass
class Observer:
    """Counts what leaders merged and refused, and who ran out of budget."""

    merged: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    exhausted: set[str] = field(default_factory=set)
    failures: int = 0
    evaluations: int = 0
    clusters: int = 0

    def listen(self, name: str, report: Report, _now: float) -> None:
        """Count what a party reports."""
        if isinstance(report, ChunkMerged):
            self.merged[report.device] = self.merged.get(report.device, 0) + 1
        elif isinstance(report, ChunkRefused):
            self.refused[report.device] = self.refused.get(report.device, 0) + 1
        elif isinstance(report, ModelEvaluated):
            self.evaluations += 1
        elif isinstance(report, BudgetSpent):
            self.exhausted.add(name)
        elif isinstance(report, Clustered):
            self.clusters = report.clusters
        elif isinstance(report, JobFailure):
            self.failures += 1

    def refused_share(self, devices: Sequence[str]) -> float:
        """Refused chunks of these devices over all of theirs."""
        refused = sum(self.refused.get(device, 0) for device in devices)
        return refused / max(1, refused + sum(self.merged.get(device, 0) for device in devices))


def run_federation(settings: Settings, members: Sequence[Member], judge: Judge) -> Outcome:
    """Let the members learn until the last round."""
    began = time.perf_counter()
    rounds = settings.simulation.rounds
    settings = msgspec.structs.replace(settings, round=msgspec.structs.replace(settings.round, count=rounds))
    observer = Observer()
    world = make_world(settings, members, judge, observer.listen)
    coordinator = world.parties[COORDINATOR]

    def done() -> bool:
        machine = coordinator.machine
        return isinstance(machine, CoordinatorMachine) and machine.finished and observer.evaluations >= rounds

    # A federation that diverges abandons rounds and comes to no end: its last models are judged all the same.
    world.run(done, limit_s=60 + 2 * rounds * settings.round.interval_s)
    names = device_names(len(members))
    classes, accuracy, success = judge.verdict()
    attackers = [name for name, member in zip(names, members, strict=True) if member.attack]
    honest = [name for name in names if name not in attackers]
    return Outcome(
        accuracy=accuracy,
        class_accuracy=classes,
        trigger_success=success,
        attackers_refused=observer.refused_share(attackers) if attackers else None,
        honest_refused=observer.refused_share(honest),
        epsilon=max(_epsilon(world.parties[name]) for name in names),
        rounds=observer.evaluations,
        exhausted=len(observer.exhausted),
        bytes_up=float(np.mean([world.broker.session(name).traffic.up for name in names])),
        failures=observer.failures,
        silent=sum(name not in observer.merged for name in names),
        clusters=observer.clusters,
        slow_among_slow=_slow_among_slow(coordinator, names, members),
        wall_s=time.perf_counter() - began,
    )


@dataclass(frozen=True)
class Hardware:
    """The devices' types, dealt in this order, and whether their links have the types' rates."""

    types: str = "ABCD"
    limited_links: bool = False

    def deal(self, count: int) -> list[tuple[DeviceType, LinkRates]]:
        """Type and link of each device."""
        return [(kind, self._rates(kind)) for kind in deal_types(count, self.types)]

    def _rates(self, kind: DeviceType) -> LinkRates:
        if not self.limited_links:
            return LinkRates()
        rate = LINK_MBPS[kind.name] * 1e6 / 8
        return LinkRates(up=rate, down=rate)


def make_world(
    settings: Settings, members: Sequence[Member], judge: Workload, listener: Listener, hardware: Hardware | None = None
) -> VirtualWorld:
    """The coordinator and the members, all of whose randomness comes from the seed."""
    seed = settings.simulation.seed
    parties = Parties(settings, seed)
    world = VirtualWorld(parties.federation, Faults(), seed, listener)
    plan = parties.coordinator(judge)
    world.add(Party(COORDINATOR, plan.make, plan.toolbox, TypePace(0.0)))
    seeds = np.random.SeedSequence(seed).spawn(len(members))
    dealt = (hardware or Hardware()).deal(len(members))
    for name, member, (kind, rates), own in zip(device_names(len(members)), members, dealt, seeds, strict=True):
        rng = np.random.default_rng(own)
        step_s = settings.simulation.step_s * member.slowness
        agent = parties.agent(name, member.workload, kind.name, rng)
        toolbox: Toolbox = agent.toolbox
        if member.attack:
            toolbox = PoisonedToolbox(toolbox, member.attack, np.random.default_rng(rng.integers(2**63)))
        own_rng = np.random.default_rng(rng.integers(2**63))
        mbps = min(20.0, rates.up * 8e-6)
        meter = SimulatedSource(kind, own_rng, lambda: world.now, step_s=step_s, network_mbps=mbps)
        pace = TypePace(step_s / kind.relative_speed)
        world.add(Party(agent.name, agent.make, toolbox, pace, will=agent.will, meter=meter, rates=rates))
    return world


def _slow_among_slow(coordinator: Party, names: Sequence[DeviceId], members: Sequence[Member]) -> float | None:
    machine = coordinator.machine
    slow = {name for name, member in zip(names, members, strict=True) if member.slowness > 1}
    if not slow or not isinstance(machine, CoordinatorMachine):
        return None
    clusters = [machine.roster.cluster_of(name) for name in slow]
    mates = [mate for cluster in clusters if cluster for mate in cluster.members]
    return (sum(mate in slow for mate in mates) - len(slow)) / max(1, len(mates) - len(slow))


def _epsilon(party: Party) -> float:
    """What a device spent, at its budget's delta."""
    machine = party.machine
    ledger = machine.device.guard.ledger if isinstance(machine, AgentMachine) else None
    return ledger.spent_epsilon() if ledger else 0.0
