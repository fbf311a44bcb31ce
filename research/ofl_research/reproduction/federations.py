"""Runs any system of the comparison on a task: OFL by its production machines, the others by `baselines`."""

from __future__ import annotations

import gc
import time
from typing import Any

import msgspec

from ofl_agents.sim.fleet_report import count_service, service_by_type
from ofl_agents.sim.simulation import device_names
from ofl_iot.crypto.params import PARAMETER_SETS
from ofl_iot.errors import ConfigError
from ofl_iot.ids import COORDINATOR, federation_id
from ofl_iot.roles.agent import AgentMachine
from ofl_iot.roles.coordinator.machine import CoordinatorMachine
from ofl_iot.runtime.settings import Settings
from ofl_iot.runtime.virtual import VirtualWorld
from ofl_iot.workloads.base import Vector, Workload
from ofl_iot.workloads.tasks import Task
from ofl_research.baselines.server import Server
from ofl_research.benches.learning_federation import Hardware, Member, make_world
from ofl_research.reproduction.plan import Plan, Result
from ofl_research.reproduction.systems import BASELINES, FEDERATION, make_baseline, types_of
from ofl_research.reproduction.watch import Progress, Watch

OFL = "ofl"
SYSTEMS: tuple[str, ...] = (OFL, *BASELINES)

_FORMER_RULES = {"training": {"start": "local"}, "upload": {"score": "o-factor"}}
"""Learning rules with which `results/` was computed; the defaults are others now. A plan's options replace them."""
_GATHER_S = 2.0
_PATIENCE_S = 600.0
"""How long an inter-cluster round may take beyond its interval before a run is given up."""


def run_system(system: str, task: Task, plan: Plan, progress: Progress | None = None) -> Result:
    """Let a system learn a task; the same plan and task give the same result, but for `wall_s`."""
    began = time.perf_counter()
    return _result(system, task, plan, watch_system(system, task, plan, progress), began)


def watch_system(system: str, task: Task, plan: Plan, progress: Progress | None = None) -> Watch:
    """Let a system learn a task to the end; what was counted, and the world as it is then."""
    if system not in SYSTEMS:
        raise ConfigError(f"unknown system {system!r}: use one of {', '.join(SYSTEMS)}")
    gc.collect()  # the federation before is a knot of parties and timers
    judge = _judge(task, plan)
    watch = Watch(device_names(len(task.devices)), plan.rounds, progress)
    if system == OFL:
        world = _ofl_world(task, plan, judge, watch)
    else:
        world = make_baseline(system, task, plan, judge, watch.listen)
    watch.world = world
    world.run(lambda: _done(world, watch), limit_s=min(plan.max_virtual_s, _limit_s(plan)))
    return watch


def ofl_settings(plan: Plan) -> Settings:
    """The production settings of a plan."""
    sections: dict[str, dict[str, Any]] = {
        "training": {
            "steps": plan.steps,
            "batch_size": plan.batch_size,
            "learning_rate": plan.learning_rate,
            "momentum": plan.momentum,
            **_FORMER_RULES["training"],
        },
        "federation": {"seed": plan.seed},
        "privacy": {
            "mode": plan.privacy,
            "epsilon": plan.epsilon,
            "delta": plan.delta,
            "planned_steps": plan.planned_steps,
            "clip_norm": plan.clip_norm,
            "eps1": plan.eps1,
            "eps2": plan.eps2,
        },
        "upload": {"gamma": plan.gamma_up, **_FORMER_RULES["upload"]},
        "download": {"gamma": plan.gamma_down},
        "round": {"interval_s": plan.round_s, "count": plan.rounds},
        "fleet": {"gather_s": _GATHER_S},
        # Scores of whole updates, as the paper's Eq. 6 has them; lean rounds score sketches.
        "protection": {"mode": "threshold" if plan.protection == "encrypted" else "clear", "params": "main"},
        "simulation": {"seed": plan.seed, "step_s": plan.step_s, "rounds": plan.rounds},
    }
    settings = Settings()
    for part in (sections, plan.options):
        changed = {name: msgspec.structs.replace(getattr(settings, name), **values) for name, values in part.items()}
        settings = msgspec.structs.replace(settings, **changed)
    return settings


def _judge(task: Task, plan: Plan) -> Workload:
    return task.validation if plan.judge == "validation" else task.test


def _ofl_world(task: Task, plan: Plan, judge: Workload, watch: Watch) -> VirtualWorld:
    members = [Member(workload) for workload in task.devices]
    return make_world(ofl_settings(plan), members, judge, watch.listen, Hardware(plan.device_types, plan.limited_links))


def _done(world: VirtualWorld, watch: Watch) -> bool:
    machine = world.parties[COORDINATOR].machine
    if isinstance(machine, CoordinatorMachine):
        return machine.finished and len(watch.curve) >= watch.completed
    return isinstance(machine, Server) and machine.idle


def _limit_s(plan: Plan) -> float:
    """A run that diverges abandons rounds and comes to no end: its last models are judged all the same."""
    return _PATIENCE_S + plan.rounds * 2 * (plan.round_s + plan.steps * plan.step_s * 10 + _PATIENCE_S)


def _result(system: str, task: Task, plan: Plan, watch: Watch, began: float) -> Result:
    judge = _judge(task, plan)
    federation = federation_id(ofl_settings(plan).federation.id) if system == OFL else FEDERATION
    total, leading = watch.mean_bytes_up(), watch.mean_leader_bytes(federation)
    server = watch.running.broker.session(COORDINATOR).traffic
    return Result(
        system=system,
        task=task.name,
        seed=plan.seed,
        judge=plan.judge,
        accuracy=watch.accuracy(),
        best_accuracy=max((point.accuracy for point in watch.curve), default=0.0),
        curve=tuple(watch.curve),
        bytes_up_per_device=total,
        bytes_up_device_role=total - leading,
        bytes_up_leader_role=leading,
        bytes_down_per_device=watch.mean_bytes_down(),
        device_accuracies=_device_accuracies(watch, judge) if plan.judge_devices else {},
        leader_terms_by_type=_service(plan, watch),
        operations=watch.operations(_sums(plan, watch, judge.size) if system == OFL else 0),
        parameters=judge.size,
        devices=len(task.devices),
        rounds=watch.completed,
        failures=watch.failures,
        virtual_s=watch.running.now,
        wall_s=time.perf_counter() - began,
        server_bytes_up=server.up,
        server_bytes_down=server.down,
        bytes_up_in_rounds=watch.mean_bytes_in_rounds(federation) if system == OFL else 0.0,
    )


def _sums(plan: Plan, watch: Watch, size: int) -> int:
    """Multiply-adds of OFL's weighted sums: parameters in the clear, residues of two polynomials under encryption."""
    ring = PARAMETER_SETS[ofl_settings(plan).protection.params]
    residues = 2 * len(ring.primes) * ring.degree * ring.rows(size)
    return watch.weighed[False] * size + watch.weighed[True] * residues


def _device_accuracies(watch: Watch, judge: Workload) -> dict[str, float]:
    models = {name: _own_model(watch.running.parties[name].machine) for name in watch.names}
    return {name: judge.evaluate(model).accuracy for name, model in models.items() if model is not None}


def _own_model(machine: object) -> Vector | None:
    if isinstance(machine, AgentMachine):
        return machine.device.model.own
    model: Vector | None = getattr(machine, "local", None)
    return model


def _service(plan: Plan, watch: Watch) -> dict[str, int]:
    """Terms in office by device type."""
    machine = watch.running.parties[COORDINATOR].machine
    fleet = machine.roster.plan if isinstance(machine, CoordinatorMachine) else None
    if fleet is None:
        return {}
    kinds = {str(n): kind.name for n, kind in zip(watch.names, types_of(plan, len(watch.names)), strict=True)}
    return service_by_type(count_service(kinds, {device: record.terms for device, record in fleet.service.items()}))
