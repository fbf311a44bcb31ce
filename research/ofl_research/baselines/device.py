"""A baseline's device: trains what it is offered and answers whoever offered it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from ofl_iot.ids import COORDINATOR, DeviceId
from ofl_iot.roles.commands import Command, Compute
from ofl_iot.roles.events import Evaluated, JobFailed, LinkUp, Started, Trained
from ofl_iot.roles.job_kinds.device import TrainLocally
from ofl_iot.roles.job_kinds.rounds import EvaluateModel
from ofl_iot.roles.reports.base import JobFailure
from ofl_iot.roles.reports.device import DeviceTrained
from ofl_research.baselines.letters import (
    BaselineEvent,
    BaselineMessageArrived,
    Hello,
    Offer,
    Reply,
    Vector,
    mailbox,
    pack_dense,
    post,
    unpack_dense,
)


@dataclass(frozen=True)
class Worker:
    """What a device is, and how it trains."""

    device: DeviceId
    sample_count: int
    steps: int
    """Local steps between two letters (the paper's T_lt)."""
    step_s: float = 0.0
    noise_multiplier: float = 0.0
    """Noise multiplier of record-level DP-SGD."""


class Packing(Protocol):
    """In which form a trained model leaves its device."""

    def pack(self, start: Vector, trained: Vector) -> bytes:
        """The body of a Reply."""
        ...


class DensePacking:
    """The whole model."""

    def pack(self, start: Vector, trained: Vector) -> bytes:  # noqa: ARG002
        """4 bytes a parameter."""
        return pack_dense(trained)


@dataclass
class _Work:
    """An offer being worked on."""

    boss: DeviceId
    offer: Offer
    losses: list[float] = field(default_factory=list)
    choice: int = 0


class DeviceMachine:
    """One device's decisions; of several models it trains the one with the least loss on its own samples."""

    def __init__(self, worker: Worker, packing: Packing) -> None:
        self.worker = worker
        self.local: Vector | None = None
        """The model it trained last."""
        self._packing = packing
        self._work: _Work | None = None

    def handle(self, event: BaselineEvent, now: float) -> list[Command]:  # noqa: ARG002
        """Take an event, decide, and say what to do."""
        return list(self._decide(event))

    def _decide(self, event: BaselineEvent) -> Iterator[Command]:
        if isinstance(event, Started):
            yield from mailbox(self.worker.device)
        elif isinstance(event, LinkUp):
            yield post(self.worker.device, COORDINATOR, Hello(self.worker.sample_count, self.worker.step_s))
        elif isinstance(event, BaselineMessageArrived) and isinstance(event.letter, Offer):
            self._work = _Work(event.sender, event.letter)
            yield from self._choose()
        elif isinstance(event, Evaluated) and self._work:
            self._work.losses.append(event.loss)
            if len(self._work.losses) == len(self._work.offer.models):
                self._work.choice = min(range(len(self._work.losses)), key=self._work.losses.__getitem__)
                yield self._train()
        elif isinstance(event, Trained) and self._work:
            yield from self._answer(event)
        elif isinstance(event, JobFailed):
            yield JobFailure(job=event.job.__name__, reason=event.reason)

    def _choose(self) -> Iterator[Command]:
        assert self._work is not None  # noqa: S101  # callers have one
        models = self._work.offer.models
        if len(models) == 1:
            yield self._train()
            return
        for number, model in enumerate(models):
            yield Compute(EvaluateModel(number, unpack_dense(model)))

    def _train(self) -> Compute:
        assert self._work is not None  # noqa: S101  # callers have one
        start = unpack_dense(self._work.offer.models[self._work.choice])
        return Compute(TrainLocally(start, self.worker.steps, self.worker.noise_multiplier))

    def _answer(self, event: Trained) -> Iterator[Command]:
        assert self._work is not None  # noqa: S101  # callers have one
        work, self._work, self.local = self._work, None, event.params
        yield DeviceTrained(loss=event.loss, steps=event.steps, seconds=event.seconds)
        body = self._packing.pack(event.start, event.params)
        yield post(self.worker.device, work.boss, Reply(work.offer.round_no, body, work.choice))
