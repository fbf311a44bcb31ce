"""Threshold decryption at the coordinator: scores first, then the model; it survives members that vanish.

    scores asked ─▶ shares of the active set ─▶ weighed ─▶ model asked ─▶ shares ─▶ finished

The active set is fixed before anyone answers. When a member does not answer in time, the coordinator makes a freshly
re-randomised ciphertext for those who did; with fewer than the threshold the round is abandoned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from ofl_iot.errors import LateError, RefusedError
from ofl_iot.ids import COORDINATOR, DeviceId
from ofl_iot.protocol.messages import Part, PartReceipt
from ofl_iot.protocol.topics import Kind
from ofl_iot.roles.commands import (
    Command,
    Compute,
    Contributed,
    CoordinatorKey,
    FinishRound,
    ScoreRound,
    WeighRound,
)
from ofl_iot.roles.events import DecryptionRequested
from ofl_iot.roles.exchange import receipt_of
from ofl_iot.roles.rules import ProtectionRules
from ofl_iot.roles.shares import Desk, Question, SharesAsked

RESEND, DEADLINE = "coordinator.decryption.resend", "coordinator.decryption.deadline"
SCORES, MODEL = "scores", "model"
DESK = Desk(COORDINATOR, Kind.DECRYPT, RESEND, DEADLINE)
TOO_FEW = "too few leaders are left to decrypt"


class RoundDecryption(Protocol):
    """How the rounds see a decryption, here or at the decryptor."""

    failing: set[str]
    """Leaders that did not answer, or not with a share."""

    @property
    def given_up(self) -> str:
        """Why it cannot go on; empty while it can."""
        ...

    def begin(self) -> Iterator[Command]:
        """Compute the scores on ciphertext."""
        ...

    def requested(self, event: DecryptionRequested, now: float) -> Iterator[Command]:
        """A ciphertext is ready to be decrypted."""
        ...

    def receive(self, sender: DeviceId, message: Part | PartReceipt, now: float) -> Iterator[Command]:
        """A part or a receipt from who decrypts."""
        ...

    def deadline(self, now: float) -> Iterator[Command]:
        """Somebody may be silent."""
        ...

    def failed(self, job: str, culprits: Iterable[str]) -> Iterator[Command]:
        """What these leaders sent could not be used."""
        ...

    def link_lost(self) -> None:
        """What was under way may be lost."""
        ...

    def send_due(self, now: float) -> Iterator[Command]:
        """Send what was not confirmed."""
        ...


class Decryption:
    """The decryption of one round."""

    def __init__(
        self,
        key: CoordinatorKey,
        round_no: int,
        contributions: tuple[Contributed, ...],
        evidence: dict[str, float],
        rules: ProtectionRules,
        *,
        size: int,
        attempt: int = 0,
    ) -> None:
        self._key = key
        self._round_no = round_no
        self._size = size
        self._attempt = attempt
        """Grows with every restart of the coordinator: what answers an earlier process is void."""
        self._contributions = contributions
        self._evidence = evidence
        self._rules = rules
        self._active = candidates(key, contributions)
        self._stage = SCORES
        self._turn = 0
        """Grows with every request: what answers an earlier one is void."""
        self.asked: SharesAsked | None = None
        self.failing: set[str] = set()

    @property
    def given_up(self) -> str:
        """Why it cannot go on; empty while enough members are there to decrypt."""
        return "" if len(self._active) >= self._key.opened.threshold else TOO_FEW

    def begin(self) -> Iterator[Command]:
        """Compute the scores on ciphertext."""
        yield Compute(ScoreRound(self._round_no, self._key, self._contributions, self._active, self._size))

    def requested(self, event: DecryptionRequested, now: float) -> Iterator[Command]:
        """A ciphertext is ready to be decrypted by the active set."""
        if event.round_no != self._round_no or event.stage != self._stage:
            return
        self._turn += 1
        label = f"{self._stage}.{self._attempt}.{self._turn}"
        question = Question(self._key.opened.term, self._round_no, label, event.request, self._active)
        self.asked = SharesAsked(DESK, question, self._rules)
        yield from self.asked.begin(now)

    def receive(self, sender: DeviceId, message: Part | PartReceipt, now: float) -> Iterator[Command]:
        """A part of a share, or a receipt for parts of the request."""
        if self.asked is None:
            if sender not in self._active:
                raise RefusedError(f"{sender} is not asked to decrypt")
            if isinstance(message, Part):
                yield DESK.receipt(sender, receipt_of(message))  # lest it is sent again
            raise LateError("nothing is asked at the moment")
        yield from self.asked.receive(sender, message, now)
        if self.asked.complete:
            yield from self._next_stage(self.asked.shares)

    def deadline(self, now: float) -> Iterator[Command]:
        """Half of the time is over: ask the silent ones again. All of it: go on with those who answered."""
        if self.asked is None:
            return
        if self.asked.overdue():
            yield from self.exclude(self.asked.silent)
        else:
            yield from self.asked.remind(now)

    def exclude(self, leaders: Iterable[str]) -> Iterator[Command]:
        """Go on without these: another set, another ciphertext."""
        gone = set(leaders)
        self.failing |= gone
        self._active = tuple(leader for leader in self._active if leader not in gone)
        self.asked = None
        if not self.given_up:
            yield from self._ask_again()

    def failed(self, job: str, culprits: Iterable[str]) -> Iterator[Command]:
        """Shares could not be used: their stage is asked again, without those who sent them."""
        if job == WeighRound.__name__:
            self._stage = SCORES
        yield from self.exclude(culprits)

    def link_lost(self) -> None:
        """What was under way may be lost."""
        if self.asked:
            self.asked.link_lost()

    def send_due(self, now: float) -> Iterator[Command]:
        """Send what was not confirmed."""
        if self.asked:
            yield from self.asked.send_due(now)

    def _next_stage(self, shares: dict[str, bytes]) -> Iterator[Command]:
        self.asked = None
        yield from DESK.stop()
        if self._stage == SCORES:
            self._stage = MODEL
            yield Compute(WeighRound(self._round_no, shares, self._active, dict(self._evidence)))
        else:
            yield Compute(FinishRound(self._round_no, shares))

    def _ask_again(self) -> Iterator[Command]:
        if self._stage == SCORES:
            yield from self.begin()
        else:
            yield Compute(WeighRound(self._round_no, {}, self._active, dict(self._evidence)))


def candidates(key: CoordinatorKey, contributions: Iterable[Contributed]) -> tuple[str, ...]:
    """Leaders that can be asked to decrypt: members of the key that have contributed."""
    members = {member.leader for member in key.opened.members}
    return tuple(sorted(members & {each.leader for each in contributions}))
