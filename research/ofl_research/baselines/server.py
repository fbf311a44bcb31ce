"""A baseline's server: synchronous rounds over all devices, or one model that whoever is ready moves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ofl_iot.errors import RefusedError
from ofl_iot.ids import COORDINATOR, DeviceId
from ofl_iot.roles.commands import Command, Compute
from ofl_iot.roles.events import Evaluated, JobFailed, Started
from ofl_iot.roles.job_kinds.rounds import EvaluateModel
from ofl_iot.roles.reports.base import JobFailure
from ofl_iot.roles.reports.coordinator import ModelEvaluated
from ofl_research.baselines.letters import (
    BaselineEvent,
    BaselineMessageArrived,
    Hello,
    Offer,
    Reply,
    Shares,
    Vector,
    mailbox,
    pack_dense,
    post,
)
from ofl_research.baselines.reports import ModelsCombined


@dataclass(frozen=True)
class Schedule:
    """For whom a server waits, how long it goes on and how often it looks at its models."""

    devices: int
    rounds: int
    """0: until whoever runs the server ends it."""
    eval_every: int = 1


@dataclass(frozen=True)
class Judged:
    """A model with the share of the devices that would use it."""

    model: Vector
    share: float = 1.0


class Strategy(Protocol):
    """What a server of synchronous rounds does; sizes are the devices' numbers of samples."""

    def begin(self, hellos: Mapping[str, Hello]) -> None:
        """All devices are known."""
        ...

    def models_for(self, device: str) -> Sequence[Vector]:
        """What a device may train in the next round."""
        ...

    def combine(self, round_no: int, replies: Mapping[str, Reply]) -> int:
        """Take the devices' answers in; return how many multiply-adds that took."""
        ...

    def judged(self) -> list[Judged]:
        """The models as they stand."""
        ...


class Judging:
    """Evaluates models and tells the mean over the devices of how good theirs is."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._waiting: deque[tuple[int, float, int]] = deque()
        """Round, share and how many are left of this round, in the order of the jobs."""
        self._accuracy = self._loss = 0.0

    def ask(self, round_no: int, models: list[Judged], *, last: bool) -> Iterator[Command]:
        """Have a round's models evaluated, if it is its turn."""
        if round_no % self._every and not last:
            return
        for left, judged in zip(range(len(models) - 1, -1, -1), models, strict=True):
            self._waiting.append((round_no, judged.share, left))
            yield Compute(EvaluateModel(round_no, judged.model))

    def answer(self, event: Evaluated) -> Iterator[Command]:
        """One model was evaluated."""
        round_no, share, left = self._waiting.popleft()
        self._accuracy += share * event.accuracy
        self._loss += share * event.loss
        if not left:
            yield ModelEvaluated(round_no, {"accuracy": self._accuracy, "loss": self._loss})
            self._accuracy = self._loss = 0.0

    @property
    def busy(self) -> bool:
        """Whether an evaluation is under way."""
        return bool(self._waiting)


@dataclass
class _Round:
    """The round that is open."""

    number: int
    replies: dict[str, Reply] = field(default_factory=dict)


class Server(ABC):
    """What every server does: opens its mailbox, and has its models judged."""

    def __init__(self, schedule: Schedule) -> None:
        self.finished = False
        self._schedule = schedule
        self._judging = Judging(schedule.eval_every)
        self._hellos: dict[str, Hello] = {}

    def handle(self, event: BaselineEvent, now: float) -> list[Command]:  # noqa: ARG002
        """Take an event, decide, and say what to do."""
        return list(self._decide(event))

    @property
    def idle(self) -> bool:
        """Whether the last round is closed and judged."""
        return self.finished and not self._judging.busy

    def _decide(self, event: BaselineEvent) -> Iterator[Command]:
        if isinstance(event, Started):
            yield from mailbox(COORDINATOR)
        elif isinstance(event, Evaluated):
            yield from self._judging.answer(event)
        elif isinstance(event, JobFailed):
            yield JobFailure(job=event.job.__name__, reason=event.reason)
        elif isinstance(event, BaselineMessageArrived):
            yield from self._receive(event)

    @abstractmethod
    def _receive(self, event: BaselineMessageArrived) -> Iterator[Command]:
        """A device wrote."""


class RoundServer(Server):
    """Offers models to all devices, waits for all answers, combines, and so on."""

    def __init__(self, strategy: Strategy, schedule: Schedule) -> None:
        super().__init__(schedule)
        self.strategy = strategy
        self._round: _Round | None = None

    def _receive(self, event: BaselineMessageArrived) -> Iterator[Command]:
        letter = event.letter
        if isinstance(letter, Hello):
            self._hellos[event.sender] = letter
            if len(self._hellos) == self._schedule.devices and self._round is None:
                self.strategy.begin(dict(sorted(self._hellos.items())))
                yield from self._open(1)
        elif isinstance(letter, Reply) and self._round and letter.round_no == self._round.number:
            self._round.replies[event.sender] = letter
            if len(self._round.replies) == self._schedule.devices:
                yield from self._all_replied()
        elif isinstance(letter, Shares):
            yield from self._shares(event.sender, letter)

    def _open(self, number: int) -> Iterator[Command]:
        self._round = _Round(number)
        encoded: dict[int, bytes] = {}
        for device in self._hellos:
            models = self.strategy.models_for(device)
            bodies = tuple(encoded.setdefault(id(model), pack_dense(model)) for model in models)
            yield post(COORDINATOR, DeviceId(device), Offer(number, bodies))

    def _all_replied(self) -> Iterator[Command]:
        yield from self._close()

    def _shares(self, sender: DeviceId, letter: Shares) -> Iterator[Command]:
        raise RefusedError(f"shares of round {letter.round_no} from {sender}: nothing is secret here")

    def _close(self) -> Iterator[Command]:
        assert self._round is not None  # noqa: S101  # callers have one
        closed = self._round
        work = self.strategy.combine(closed.number, dict(sorted(closed.replies.items())))
        models = self.strategy.judged()
        yield ModelsCombined(round_no=closed.number, models=len(models), multiply_adds=work)
        self.finished = closed.number == self._schedule.rounds
        yield from self._judging.ask(closed.number, models, last=self.finished)
        if not self.finished:
            yield from self._open(closed.number + 1)
