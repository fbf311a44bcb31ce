"""A federation for the learning bench: production machines in virtual time, some of its devices slow or poisoned."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np
import numpy.typing as npt

from agents.learning_data import CLASSES, ImageWorkload, Part
from agents.parties import Parties
from agents.robust_experiment import BACKDOOR_TARGET, Attack
from agents.simulate import device_names
from ofl_iot.errors import OflError
from ofl_iot.fleet.devices import DeviceType, deal_types
from ofl_iot.ids import COORDINATOR
from ofl_iot.privacy.events import PaperRelease
from ofl_iot.robust.attacks import stamp_trigger
from ofl_iot.roles.agent import AgentMachine
from ofl_iot.roles.commands import AggregateRound, Job, PrepareRelease, Tell, TrainLocally
from ofl_iot.roles.coordinator import CoordinatorMachine
from ofl_iot.roles.events import Event, Trained
from ofl_iot.runtime.settings import Settings
from ofl_iot.runtime.telemetry import SimulatedSource
from ofl_iot.runtime.toolbox import Toolbox, TypePace
from ofl_iot.runtime.virtual import Party, VirtualWorld
from ofl_iot.runtime.virtual_broker import Faults
from ofl_iot.workloads.base import Evaluation, Vector
from ofl_iot.workloads.dense import DenseNet

JUDGED_ROUNDS = 3
"""Accuracies are means over the last global models: one model's is noisy."""

Floats = npt.NDArray[np.float64]


class BenchFailed(OflError):
    """A federation of the bench did not come to its end."""


@dataclass(frozen=True)
class Member:
    """One device: its data, how many times slower than its type it is, and what it does to its updates."""

    workload: ImageWorkload
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
    exhausted: int
    """Devices whose budget was spent before the end."""
    bytes_up: float
    """Mean of the devices, as leaders too."""
    releases: float
    """Updates merged, mean of the devices."""
    clusters: int
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

    def evaluate(self, params: Vector) -> Evaluation:
        """Judge `params` on all images."""
        self._models = [*self._models, params][-JUDGED_ROUNDS:]
        return super().evaluate(params)

    def verdict(self) -> tuple[tuple[float, ...], float, float]:
        """Accuracy on each class, on all, and success of the trigger: means over the last models."""
        classes = np.mean([[each.evaluate(m).accuracy for each in self._classes] for m in self._models], axis=0)
        accuracy = float(np.mean([super(Judge, self).evaluate(model).accuracy for model in self._models]))
        success = float(np.mean([self._trigger.evaluate(model).accuracy for model in self._models]))
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
    evaluations: int = 0
    clusters: int = 0

    def listen(self, name: str, told: Tell, _now: float) -> None:
        """Take in what a party tells."""
        if told.what == "merged":
            device = str(told.fields["device"])
            book = self.merged if float(str(told.fields["step"])) > 0 else self.refused
            book[device] = book.get(device, 0) + 1
        elif told.what == "evaluated":
            self.evaluations += 1
        elif told.what == "privacy budget exhausted":
            self.exhausted.add(name)
        elif told.what == "clustered":
            self.clusters = int(str(told.fields["clusters"]))
        elif told.what == "job failed":
            raise BenchFailed(f"{name}: {told.fields['reason']}")

    def refused_share(self, devices: Sequence[str]) -> float:
        """Refused chunks of these devices over all of theirs."""
        refused = sum(self.refused.get(device, 0) for device in devices)
        return refused / max(1, refused + sum(self.merged.get(device, 0) for device in devices))


def run_federation(
    settings: Settings, members: Sequence[Member], judge: Judge, *, coordinator: Toolbox | None = None
) -> Outcome:
    """Let the members learn until the last round; `coordinator` replaces what runs the coordinator's jobs."""
    began = time.perf_counter()
    seed, rounds = settings.simulation.seed, settings.simulation.rounds
    settings = msgspec.structs.replace(settings, round=msgspec.structs.replace(settings.round, count=rounds))
    parties, observer = Parties(settings), Observer()
    world = VirtualWorld(parties.federation, Faults(), seed, observer.listen)
    plan = parties.coordinator(judge)
    leader_of_rounds = Party(COORDINATOR, plan.make, coordinator or plan.toolbox, TypePace(0.0))
    world.add(leader_of_rounds)
    names = device_names(len(members))
    seeds = np.random.SeedSequence(seed).spawn(len(members))
    for name, member, kind, own in zip(names, members, deal_types(len(members)), seeds, strict=True):
        world.add(_party(parties, name, member, kind, np.random.default_rng(own), world))

    def done() -> bool:
        machine = leader_of_rounds.machine
        return isinstance(machine, CoordinatorMachine) and machine.finished and observer.evaluations >= rounds

    limit_s = 60 + 3 * rounds * (settings.round.interval_s + settings.round.deadline_s)
    if not world.run(done, limit_s=limit_s):
        raise BenchFailed(f"only {observer.evaluations} of {rounds} rounds were completed")
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
        exhausted=len(observer.exhausted),
        bytes_up=float(np.mean([world.broker.session(name).traffic.up for name in names])),
        releases=float(np.mean([observer.merged.get(name, 0) for name in names])),
        clusters=observer.clusters,
        wall_s=time.perf_counter() - began,
    )


def _party(
    parties: Parties, name: str, member: Member, kind: DeviceType, rng: np.random.Generator, world: VirtualWorld
) -> Party:
    step_s = parties.settings.simulation.step_s * member.slowness
    plan = parties.agent(name, member.workload, kind.name, rng)  # type: ignore[arg-type]
    toolbox: Toolbox = plan.toolbox
    if member.attack:
        toolbox = PoisonedToolbox(toolbox, member.attack, np.random.default_rng(rng.integers(2**63)))
    return Party(
        plan.name,
        plan.make,
        toolbox,
        TypePace(step_s / kind.relative_speed),
        will=plan.will,
        meter=SimulatedSource(kind, np.random.default_rng(rng.integers(2**63)), lambda: world.now, step_s=step_s),
    )


def _epsilon(party: Party) -> float:
    """What a device spent, at its budget's delta."""
    machine = party.machine
    ledger = machine.device.guard.ledger if isinstance(machine, AgentMachine) else None
    return ledger.spent_epsilon() if ledger else 0.0
