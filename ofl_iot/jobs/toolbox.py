"""Runs the jobs that machines ask for: a job in, the event with its result out. Called from an executor.

Here is where randomness enters: a device's generator is seeded from the operating system unless a simulation gives
it a seed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeAlias

import numpy as np

from ofl_iot.errors import PrivacyError, WrongShareError
from ofl_iot.jobs.clear_round import aggregate_clear
from ofl_iot.jobs.coordinator_crypto import CoordinatorCrypto
from ofl_iot.jobs.decrypt import DecryptorCrypto
from ofl_iot.jobs.joint_key import CulpritError
from ofl_iot.jobs.leader_crypto import LeaderCrypto
from ofl_iot.jobs.ledger import LedgerRequest, open_ledger
from ofl_iot.jobs.rounding import RoundingWatch
from ofl_iot.opportunity.ofactor import Density
from ofl_iot.opportunity.release import ReleaseSettings, prepare_release
from ofl_iot.privacy.ledger import RATE_SLACK, Ledger
from ofl_iot.privacy.planning import TrainingPlan
from ofl_iot.protocol.chunks import split_update
from ofl_iot.protocol.model_card import TensorCard
from ofl_iot.roles.device.profile import DeviceRules
from ofl_iot.roles.events import (
    DataLooked,
    Evaluated,
    Event,
    LedgerOpened,
    ReleasePrepared,
    RoundAggregated,
    Trained,
)
from ofl_iot.roles.job_kinds.base import Job, failure_of
from ofl_iot.roles.job_kinds.device import JudgeOrder, LookAtData, OpenLedger, PrepareRelease, TrainLocally
from ofl_iot.roles.job_kinds.keys import (
    AnswerDecryption,
    AnswerLean,
    BeginKeys,
    FinalDecrypt,
    FinishKeys,
    MakeKeys,
    MakeSealingKey,
    ServerDecrypt,
)
from ofl_iot.roles.job_kinds.lean import FinishLean, OpenLean, PrepareLean, ScoreLean, WeighLean
from ofl_iot.roles.job_kinds.rounds import (
    AggregateRound,
    EvaluateModel,
    FinishRound,
    ProtectContribution,
    ScoreRound,
    WeighRound,
)
from ofl_iot.roles.settings import ProtectionRules, TrainingRules
from ofl_iot.workloads.base import TrainJob, Vector, Workload


class Toolbox(Protocol):
    """Whatever can run a party's jobs."""

    def run(self, job: Job) -> Event:
        """The job's result, JobFailed included; never raises for what a job may meet."""
        ...


Tools: TypeAlias = dict[type, Callable[[Any], Event]]
"""What runs a job of each type."""


def run_job(tools: Tools, job: Job) -> Event:
    """Run a job with the tool for it; its failure is an event as well."""
    tool = tools.get(type(job))
    if tool is None:
        raise TypeError(f"this party does not run {type(job).__name__}")
    try:
        return tool(job)
    except CulpritError as error:
        return failure_of(job, error, culprits=error.culprits)
    except WrongShareError as error:
        return failure_of(job, error, suspects=error.leaders)
    except Exception as error:  # noqa: BLE001  # workloads raise what they like; the machine decides what follows
        return failure_of(job, error)


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


def run_training(
    workload: Workload, job: TrainLocally, rules: TrainingRules, clip_norm: float, rng: np.random.Generator
) -> Trained:
    """Train as the rules say; gradients are clipped only where noise is asked for."""
    began = time.perf_counter()
    result = workload.train(job.params, _train_job(workload, job, rules, clip_norm), rng)
    seconds = time.perf_counter() - began
    return Trained(job.params, result.params, result.loss, result.steps, seconds, result.sampling_rate)


def _train_job(workload: Workload, job: TrainLocally, rules: TrainingRules, clip_norm: float) -> TrainJob:
    if job.plan is not None:
        return TrainJob(
            steps=job.steps,
            batch_size=job.batch_size,
            learning_rate=job.plan.learning_rate,
            clip_norm=job.plan.clip_norm,
            noise_multiplier=job.noise_multiplier,
            sampling_rate=job.plan.sampling_rate,
            noise_a_rate=job.plan.noise_a_rate,
        )
    if job.noise_multiplier:
        _check_rate(workload, job, rules)
    return TrainJob(
        steps=job.steps,
        batch_size=rules.batch_size,
        learning_rate=rules.learning_rate,
        momentum=rules.momentum,
        clip_norm=clip_norm if job.noise_multiplier else None,
        noise_multiplier=job.noise_multiplier,
    )


class Momentum:
    """Momentum of a plan, from one of its steps to the next and from training to training.

    A device's velocity is made of its own noisy steps alone, so the mean of all is that of one common descent.
    """

    def __init__(self) -> None:
        self._velocity: Vector | None = None

    def carried(self, step: Trained, plan: TrainingPlan) -> Vector:
        """Return the parameters after a step and what earlier ones add to it: v = momentum · v + step."""
        velocity = step.params - step.start
        if self._velocity is not None and self._velocity.shape == velocity.shape:
            velocity += np.float32(plan.momentum) * self._velocity
        if not np.isfinite(velocity).all():
            self._velocity = None
            return step.params
        self._velocity = velocity
        moved: Vector = step.start + velocity
        return moved


def _check_rate(workload: Workload, job: TrainLocally, rules: TrainingRules) -> None:
    """Refuse a training before it runs if records are fewer than when it was planned."""
    rate = min(1.0, rules.batch_size / max(1, workload.sample_count))
    if rate > job.sampling_rate * (1 + RATE_SLACK):
        raise PrivacyError(
            f"{workload.sample_count} records are fewer than were planned for: each would be in a step with a chance "
            f"of {rate:.3g}, {job.sampling_rate:.3g} is paid for"
        )


class DeviceToolbox:
    """Opening the ledger, training, preparing releases, protecting contributions."""

    def __init__(
        self,
        workload: Workload,
        rules: DeviceRules,
        crypto: LeaderCrypto,
        rng: np.random.Generator,
        density: Density,
        *,
        open_ledger: Callable[[LedgerRequest], Ledger] = open_ledger,
        tensors: Sequence[TensorCard] = (),
    ) -> None:
        self._opened = open_ledger
        self._momentum = Momentum()
        self._rounding = RoundingWatch(tensors) if tensors else None
        self._workload = workload
        self._rules = rules
        self._crypto = crypto
        self._rng = rng
        privacy = rules.privacy
        self._release = ReleaseSettings(
            mode=privacy.mode, score=rules.upload.score, density=density, eps1=privacy.eps1, eps2=privacy.eps2
        )
        self._tools: Tools = {
            OpenLedger: self._open_ledger,
            LookAtData: self._look,
            JudgeOrder: crypto.judge_order,
            TrainLocally: self._train,
            PrepareRelease: self._prepare,
            MakeSealingKey: crypto.make_sealing_key,
            BeginKeys: crypto.begin_keys,
            FinishKeys: crypto.finish_keys,
            ProtectContribution: crypto.protect,
            AnswerDecryption: crypto.answer,
            AnswerLean: crypto.lean.answer,
        }

    def run(self, job: Job) -> Event:
        """Run one job; whatever a workload raises becomes JobFailed."""
        return run_job(self._tools, job)

    def _open_ledger(self, job: OpenLedger) -> LedgerOpened:
        records = job.records or self._workload.sample_count
        rate = min(1.0, self._rules.training.batch_size / max(1, records))
        rules, source = self._rules, self._workload.name
        request = LedgerRequest(
            rules.privacy, rate, job.stored, rules.training.steps, source, job.at, job.fleet, self._workload.size
        )
        return LedgerOpened(self._opened(request))

    def _look(self, job: LookAtData) -> DataLooked:
        del job
        return DataLooked(self._workload.sample_count)

    def _train(self, job: TrainLocally) -> Trained:
        rules, clip_norm = self._rules.training, self._rules.privacy.clip_norm
        if job.plan is None:
            return run_training(self._workload, job, rules, clip_norm, self._rng)
        done, losses, seconds = job.params, 0.0, 0.0
        for _ in range(job.steps):
            step = run_training(self._workload, replace(job, params=done, steps=1), rules, clip_norm, self._rng)
            done, losses, seconds = self._momentum.carried(step, job.plan), losses + step.loss, seconds + step.seconds
        return Trained(job.params, done, losses / job.steps, job.steps, seconds, job.plan.sampling_rate)

    def _prepare(self, job: PrepareRelease) -> ReleasePrepared:
        chosen = prepare_release(job.update, job.synced, job.synced_before, job.gamma, self._release, self._rng)
        pieces = split_update(
            job.head,
            chosen.indices,
            chosen.values,
            chosen.utility,
            precision=self._rules.upload.values,
            target_bytes=self._rules.upload.chunk_bytes,
            bounds=self._rounding.bounds if self._rounding else None,
            rng=self._rng,
        )
        if self._rounding and self._rules.upload.values == "byte":
            self._rounding.check(chosen.indices, chosen.values, pieces)
        return ReleasePrepared(tuple(pieces))


class DecryptorToolbox:
    """ServerDec and FinDec."""

    def __init__(self, crypto: DecryptorCrypto) -> None:
        self._tools: Tools = {ServerDecrypt: crypto.server_decrypt, FinalDecrypt: crypto.final_decrypt}

    def run(self, job: Job) -> Event:
        """Run one job; what cannot be decrypted becomes JobFailed."""
        return run_job(self._tools, job)


class CoordinatorToolbox:
    """Aggregating contributions, evaluating global models."""

    def __init__(self, judge: Workload, crypto: CoordinatorCrypto, rules: ProtectionRules) -> None:
        self._judge = judge
        self._rules = rules
        self._tools: Tools = {
            EvaluateModel: self._evaluate,
            AggregateRound: self._aggregate,
            MakeKeys: crypto.make_keys,
            ScoreRound: crypto.score,
            WeighRound: crypto.weigh,
            FinishRound: crypto.finish,
            PrepareLean: crypto.lean.prepare,
            ScoreLean: crypto.lean.score,
            WeighLean: crypto.lean.weigh,
            OpenLean: crypto.lean.open,
            FinishLean: crypto.lean.finish,
        }

    def run(self, job: Job) -> Event:
        """Run one job; a round that cannot be aggregated becomes JobFailed."""
        return run_job(self._tools, job)

    def _aggregate(self, job: AggregateRound) -> RoundAggregated:
        return aggregate_clear(job, self._judge.size, self._rules.s_factor)

    def _evaluate(self, job: EvaluateModel) -> Evaluated:
        result = self._judge.evaluate(job.params)
        return Evaluated(job.round_no, result.accuracy, result.loss, result.measured)
