"""Runs the jobs that machines ask for: a job in, the event with its result out. Called from an executor.

Here is where randomness enters: a device's generator is seeded from the operating system unless a simulation gives
it a seed.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Protocol

import msgspec
import numpy as np

from ofl_iot.errors import RoundError
from ofl_iot.opportunity.ofactor import Density
from ofl_iot.opportunity.release import ReleaseSettings, prepare_release
from ofl_iot.privacy.accountant import noise_multiplier_for
from ofl_iot.privacy.events import Budget
from ofl_iot.privacy.ledger import Ledger
from ofl_iot.protocol.chunks import split_update
from ofl_iot.roles.commands import (
    AggregateRound,
    EvaluateModel,
    Job,
    OpenLedger,
    PrepareRelease,
    ProtectContribution,
    TrainLocally,
)
from ofl_iot.roles.device import DeviceRules
from ofl_iot.roles.events import (
    ContributionProtected,
    Evaluated,
    Event,
    JobFailed,
    LedgerOpened,
    ReleasePrepared,
    RoundAggregated,
    Trained,
)
from ofl_iot.runtime.protection import Protection
from ofl_iot.workloads.base import TrainJob, Workload


class Toolbox(Protocol):
    """Whatever can run a party's jobs."""

    def run(self, job: Job) -> Event:
        """The job's result, JobFailed included; never raises for what a job may meet."""
        ...


class Pace(Protocol):
    """How long a simulated party takes for a job."""

    def seconds(self, job: Job) -> float:
        """Seconds from the command to its result."""
        ...


class TypePace:
    """Training at the speed of a device type; everything else at once."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s

    def seconds(self, job: Job) -> float:
        """Steps times seconds a step."""
        return job.steps * self._step_s if isinstance(job, TrainLocally) else 0.0


class DeviceToolbox:
    """Opening the ledger, training, preparing releases, protecting contributions."""

    def __init__(
        self, workload: Workload, rules: DeviceRules, protection: Protection, rng: np.random.Generator, density: Density
    ) -> None:
        self._workload = workload
        self._rules = rules
        self._protection = protection
        self._rng = rng
        privacy = rules.privacy
        self._release = ReleaseSettings(mode=privacy.mode, density=density, eps1=privacy.eps1, eps2=privacy.eps2)

    def run(self, job: Job) -> Event:
        """Run one job; an arithmetic failure becomes JobFailed."""
        try:
            if isinstance(job, OpenLedger):
                return LedgerOpened(self._open_ledger(job.stored))
            if isinstance(job, TrainLocally):
                return self._train(job)
            if isinstance(job, PrepareRelease):
                return self._prepare(job)
            if isinstance(job, ProtectContribution):
                return ContributionProtected(job.round_no, self._protection.protect(job.update))
        except Exception as error:  # noqa: BLE001  # a job's failure is an event, whatever a workload raises
            return JobFailed(type(job).__name__, f"{type(error).__name__}: {error}")
        raise TypeError(f"a device does not run {type(job).__name__}")

    def _open_ledger(self, stored: bytes | None) -> Ledger:
        """The stored ledger goes on if the budget is the same; what it spent is never forgotten."""
        rules = self._rules.privacy
        # What the paper's mode composes to is beyond any budget (privacy.events): it is counted and reported.
        budget = Budget(math.inf if rules.mode == "paper" else rules.epsilon, rules.delta)
        ledger = Ledger(budget)
        if stored is not None:
            ledger = replace(Ledger.from_plain(msgspec.msgpack.decode(stored)), budget=budget)
        if rules.mode == "paper":
            return ledger
        rate = min(1.0, self._rules.training.batch_size / max(1, self._workload.sample_count))
        noise = rules.noise_multiplier or noise_multiplier_for(budget, rate, rules.planned_steps)
        return ledger.allow(noise, rate)

    def _train(self, job: TrainLocally) -> Trained:
        began = time.perf_counter()
        rules = self._rules.training
        result = self._workload.train(
            job.params,
            TrainJob(
                steps=job.steps,
                batch_size=rules.batch_size,
                learning_rate=rules.learning_rate,
                momentum=rules.momentum,
                clip_norm=self._rules.privacy.clip_norm if job.noise_multiplier else None,
                noise_multiplier=job.noise_multiplier,
            ),
            self._rng,
        )
        return Trained(job.params, result.params, result.loss, result.steps, time.perf_counter() - began)

    def _prepare(self, job: PrepareRelease) -> ReleasePrepared:
        chosen = prepare_release(job.update, job.synced, job.synced_before, job.gamma, self._release, self._rng)
        pieces = split_update(
            job.head,
            chosen.indices,
            chosen.values,
            chosen.utility,
            half_precision=self._rules.upload.half_precision,
            target_bytes=self._rules.upload.chunk_bytes,
        )
        return ReleasePrepared(tuple(pieces))


class CoordinatorToolbox:
    """Aggregating contributions, evaluating global models."""

    def __init__(self, judge: Workload | None, protection: Protection) -> None:
        self._judge = judge
        self._protection = protection

    def run(self, job: Job) -> Event:
        """Run one job; a round that cannot be aggregated becomes JobFailed."""
        try:
            if isinstance(job, AggregateRound):
                return self._aggregate(job)
            if isinstance(job, EvaluateModel):
                return self._evaluate(job)
        except Exception as error:  # noqa: BLE001  # a job's failure is an event
            return JobFailed(type(job).__name__, f"{type(error).__name__}: {error}")
        raise TypeError(f"a coordinator does not run {type(job).__name__}")

    def _aggregate(self, job: AggregateRound) -> RoundAggregated:
        return self._protection.aggregate(job)

    def _evaluate(self, job: EvaluateModel) -> Evaluated:
        if self._judge is None:
            raise RoundError("no held-out data at the coordinator")
        result = self._judge.evaluate(job.params)
        return Evaluated(job.round_no, result.accuracy, result.loss)
