"""The worlds of the baselines: their machines with the same devices, toolbox and broker as production's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import numpy as np

from ofl_agents.sim.simulation import device_names
from ofl_iot.errors import ConfigError
from ofl_iot.fleet.devices import DeviceType
from ofl_iot.ids import COORDINATOR, FederationId
from ofl_iot.jobs.toolbox import Tools, TypePace, run_job, run_training
from ofl_iot.privacy.accountant import noise_multiplier_for
from ofl_iot.privacy.events import Budget
from ofl_iot.roles.base import Machine
from ofl_iot.roles.events import Evaluated, Event, Trained
from ofl_iot.roles.job_kinds.base import Job
from ofl_iot.roles.job_kinds.device import TrainLocally
from ofl_iot.roles.job_kinds.rounds import EvaluateModel
from ofl_iot.roles.settings import TrainingRules
from ofl_iot.runtime.virtual import Listener, Party, VirtualWorld
from ofl_iot.runtime.virtual_broker import Faults
from ofl_iot.workloads.base import Workload
from ofl_iot.workloads.tasks import Task
from ofl_research.baselines.ahfl import AhflOptions, AsynchronousHead, NoisyPacking
from ofl_research.baselines.cfl import Cfl, CflOptions
from ofl_research.baselines.device import DensePacking, DeviceMachine, Worker
from ofl_research.baselines.fedavg import FedAvg
from ofl_research.baselines.fedavg_variants import (
    ChunkPacking,
    CodecOptions,
    FedAvgM,
    FedAvgMOptions,
    FedAvgWithCodec,
)
from ofl_research.baselines.fedphe import FedPhe, FedPheOptions, PackPacking
from ofl_research.baselines.fldp import Fldp, FldpDevice, FldpFleet, FldpOptions, FldpServer
from ofl_research.baselines.head import AsynchronousServer, HeadableDevice, SynchronousHead
from ofl_research.baselines.ifca import Ifca, IfcaOptions
from ofl_research.baselines.letters import LetterWire, Vector
from ofl_research.baselines.rfl_ha import HierarchyOptions, equal_pace
from ofl_research.baselines.server import RoundServer, Schedule, Strategy
from ofl_research.benches.learning_federation import Hardware
from ofl_research.reproduction.plan import Plan

FEDERATION = FederationId("baseline")


class BaselineToolbox:
    """Trains and evaluates on one party's samples."""

    def __init__(self, workload: Workload, plan: Plan, rng: np.random.Generator) -> None:
        self._workload = workload
        self._rules = TrainingRules(
            steps=plan.steps, batch_size=plan.batch_size, learning_rate=plan.learning_rate, momentum=plan.momentum
        )
        self._clip_norm = plan.clip_norm
        self._rng = rng
        self._tools: Tools = {TrainLocally: self._train, EvaluateModel: self._evaluate}

    def run(self, job: Job) -> Event:
        """Run one job."""
        return run_job(self._tools, job)

    def _train(self, job: TrainLocally) -> Trained:
        return run_training(self._workload, job, self._rules, self._clip_norm, self._rng)

    def _evaluate(self, job: EvaluateModel) -> Evaluated:
        result = self._workload.evaluate(job.params)
        return Evaluated(job.round_no, result.accuracy, result.loss)


Options = TypeVar("Options", bound=msgspec.Struct)
MakeDevice = Callable[[Worker, np.random.Generator], Machine]


@dataclass(frozen=True)
class System:
    """How to make a baseline's machines."""

    server: Callable[[], Machine]
    device: MakeDevice


def _fedavg(initial: Vector, schedule: Schedule, plan: Plan) -> System:  # noqa: ARG001
    return _rounds(FedAvg(initial), schedule)


def _fedavgm(initial: Vector, schedule: Schedule, plan: Plan) -> System:
    return _rounds(FedAvgM(initial, _options(plan, FedAvgMOptions)), schedule)


def _fedavg_codec(initial: Vector, schedule: Schedule, plan: Plan) -> System:
    options = _options(plan, CodecOptions)
    return System(
        lambda: RoundServer(FedAvgWithCodec(initial), schedule),
        lambda worker, _: DeviceMachine(worker, ChunkPacking(options)),
    )


def _cfl(initial: Vector, schedule: Schedule, plan: Plan) -> System:
    return _rounds(Cfl(initial, _options(plan, CflOptions)), schedule)


def _ifca(initial: Vector, schedule: Schedule, plan: Plan) -> System:
    return _rounds(Ifca(initial, _options(plan, IfcaOptions), np.random.default_rng(plan.seed)), schedule)


def _rfl_ha(initial: Vector, schedule: Schedule, plan: Plan) -> System:
    options = _options(plan, HierarchyOptions)
    return System(
        lambda: _asynchronous(initial, schedule, options),
        lambda worker, _: HeadableDevice(DeviceMachine(worker, DensePacking()), SynchronousHead),
    )


def _ahfl(initial: Vector, schedule: Schedule, plan: Plan) -> System:
    options = _options(plan, AhflOptions)
    return System(
        lambda: _asynchronous(initial, schedule, options),
        lambda worker, rng: HeadableDevice(
            DeviceMachine(worker, NoisyPacking(options, rng)), lambda lead: AsynchronousHead(lead, options)
        ),
    )


def _fldp(initial: Vector, schedule: Schedule, plan: Plan) -> System:
    names = tuple(map(str, device_names(schedule.devices)))
    fleet = FldpFleet(names, plan.seed, _options(plan, FldpOptions))
    return System(
        lambda: FldpServer(Fldp(initial, fleet), fleet, schedule), lambda worker, rng: FldpDevice(worker, fleet, rng)
    )


def _fedphe(initial: Vector, schedule: Schedule, plan: Plan) -> System:
    options = _options(plan, FedPheOptions)
    return System(
        lambda: RoundServer(FedPhe(initial), schedule),
        lambda worker, _: DeviceMachine(worker, PackPacking(options)),
    )


def _asynchronous(initial: Vector, schedule: Schedule, options: HierarchyOptions) -> AsynchronousServer:
    return AsynchronousServer(
        initial,
        lambda hellos: equal_pace(hellos, options.clusters),
        schedule,
        alpha=options.alpha,
        exponent=options.exponent,
    )


def _options(plan: Plan, kind: type[Options]) -> Options:
    try:
        return msgspec.convert(plan.options, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"options {plan.options} of a plan: {error}") from error


def _rounds(strategy: Strategy, schedule: Schedule) -> System:
    return System(lambda: RoundServer(strategy, schedule), lambda worker, _: DeviceMachine(worker, DensePacking()))


BASELINES: dict[str, Callable[[Vector, Schedule, Plan], System]] = {
    "fedavg": _fedavg,
    "fedavgm": _fedavgm,
    "fedavg-codec": _fedavg_codec,
    "cfl": _cfl,
    "ifca": _ifca,
    "rfl-ha": _rfl_ha,
    "ahfl": _ahfl,
    "fldp": _fldp,
    "fedphe": _fedphe,
}


def make_baseline(name: str, task: Task, plan: Plan, judge: Workload, listener: Listener) -> VirtualWorld:
    """A world with the server and all devices of a baseline."""
    if name not in BASELINES:
        raise ConfigError(f"unknown system {name!r}: use ofl or one of {', '.join(BASELINES)}")
    world = VirtualWorld(FEDERATION, Faults(), plan.seed, listener)
    schedule = Schedule(devices=len(task.devices), rounds=plan.rounds, eval_every=plan.eval_every)
    system = BASELINES[name](judge.initial(plan.seed), schedule, plan)
    seeds = np.random.SeedSequence(plan.seed).spawn(len(task.devices) + 1)
    toolbox = BaselineToolbox(judge, plan, np.random.default_rng(seeds[-1]))
    world.add(Party(COORDINATOR, system.server, toolbox, TypePace(0.0), wire=LetterWire(FEDERATION)))
    dealt = Hardware(plan.device_types, plan.limited_links).deal(len(task.devices))
    names = device_names(len(task.devices))
    for device, workload, (kind, rates), seed in zip(names, task.devices, dealt, seeds[:-1], strict=True):
        rng = np.random.default_rng(seed)
        step_s = plan.step_s / kind.relative_speed
        worker = Worker(device, workload.sample_count, plan.steps, step_s, _noise(plan, workload))
        make = _maker(system, worker, rng)
        toolbox = BaselineToolbox(workload, plan, rng)
        world.add(Party(device, make, toolbox, TypePace(step_s), wire=LetterWire(FEDERATION), rates=rates))
    return world


def _maker(system: System, worker: Worker, rng: np.random.Generator) -> Callable[[], Machine]:
    return lambda: system.device(worker, rng)


def _noise(plan: Plan, workload: Workload) -> float:
    """Return the noise multiplier of record-level DP-SGD, the least with which the budget lasts."""
    if plan.privacy == "off":
        return 0.0
    if plan.privacy == "paper":
        raise ConfigError("the baselines know no privacy mode 'paper': use 'off' or 'rigorous'")
    rate = min(1.0, plan.batch_size / max(1, workload.sample_count))
    return noise_multiplier_for(Budget(plan.epsilon, plan.delta), rate, plan.planned_steps)


def types_of(plan: Plan, count: int) -> Sequence[DeviceType]:
    """The devices' types."""
    return [kind for kind, _ in Hardware(plan.device_types).deal(count)]
