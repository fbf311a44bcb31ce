"""Threshold decryption at the coordinator: scores first, then the model; it survives members that vanish.

    scores asked ─▶ shares of the active set ─▶ weighed ─▶ model asked ─▶ shares ─▶ finished

The active set is fixed before anyone answers. When a member does not answer in time, the coordinator makes a freshly
re-randomised ciphertext for those who did; with fewer than the threshold the round is abandoned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ofl_iot.errors import LateError, RefusedError
from ofl_iot.ids import COORDINATOR, DeviceId
from ofl_iot.protocol.messages import Part, PartReceipt
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.roles.commands import (
    CancelTimer,
    Command,
    Compute,
    Contributed,
    CoordinatorKey,
    FinishRound,
    Publish,
    ScoreRound,
    SetTimer,
    WeighRound,
)
from ofl_iot.roles.events import DecryptionRequested
from ofl_iot.roles.exchange import BodyExchange, receipt_of
from ofl_iot.roles.rules import ProtectionRules

RESEND, DEADLINE = "coordinator.decryption.resend", "coordinator.decryption.deadline"
SCORES, MODEL = "scores", "model"


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
        members = {member.leader for member in key.opened.members}
        self._active = tuple(sorted(members & {c.leader for c in contributions}))
        self._stage = SCORES
        self._turn = 0
        """Grows with every request: what answers an earlier one is void."""
        self._exchange: BodyExchange | None = None
        self._shares: dict[str, bytes] = {}
        self._reminded = False
        self.failing: set[str] = set()
        """Leaders that did not answer, or not with a share."""

    @property
    def possible(self) -> bool:
        """Whether enough members are there to decrypt."""
        return len(self._active) >= self._key.opened.threshold

    def begin(self) -> Iterator[Command]:
        """Compute the scores on ciphertext."""
        yield Compute(ScoreRound(self._round_no, self._key, self._contributions, self._active, self._size))

    def requested(self, event: DecryptionRequested, now: float) -> Iterator[Command]:
        """A ciphertext is ready to be decrypted by the active set."""
        if event.round_no != self._round_no or event.stage != self._stage:
            return
        self._turn += 1
        self._shares, self._reminded = {}, False
        max_bytes = 64 + 2 * len(event.request)
        self._exchange = BodyExchange(
            self._key.opened.term, self._round_no, resend_s=self._rules.resend_s, max_bytes=max_bytes + (1 << 20)
        )
        for leader in self._active:
            self._exchange.send(leader, self._label(), event.request)
        yield SetTimer(DEADLINE, now + self._rules.decryption_deadline_s / 2)
        yield from self.send_due(now)

    def receive(self, sender: DeviceId, message: Part | PartReceipt, now: float) -> Iterator[Command]:
        """A part of a share, or a receipt for parts of the request."""
        if sender not in self._active:
            raise RefusedError(f"{sender} is not asked to decrypt")
        if isinstance(message, PartReceipt):
            if self._exchange:
                self._exchange.confirm(sender, message)
                yield from self.send_due(now)
            return
        if self._exchange is None or message.stage != self._label():
            yield Publish(Topic(Kind.RECEIPT, COORDINATOR, sender), receipt_of(message))  # lest it is sent again
            raise LateError(f"a share for {message.stage}, not {self._label()}")
        receipt, body = self._exchange.take(sender, message)
        yield Publish(Topic(Kind.RECEIPT, COORDINATOR, sender), receipt)
        if body is not None:
            self._shares[sender] = body
        if len(self._shares) == len(self._active):
            yield from self._next_stage()

    def deadline(self, now: float) -> Iterator[Command]:
        """Half of the time is over: ask the silent ones again. All of it: go on with those who answered."""
        if self._exchange and not self._reminded:
            self._reminded = True
            for leader in self._active:
                if not self._exchange.heard_of(leader):
                    self._exchange.send_again(leader)  # it may have restarted and lost what it confirmed
            yield SetTimer(DEADLINE, now + self._rules.decryption_deadline_s / 2)
            yield from self.send_due(now)
        else:
            yield from self.exclude(leader for leader in self._active if leader not in self._shares)

    def exclude(self, leaders: Iterable[str]) -> Iterator[Command]:
        """Go on without these: another set, another ciphertext."""
        gone = set(leaders)
        self.failing |= gone
        self._active = tuple(leader for leader in self._active if leader not in gone)
        self._exchange, self._shares = None, {}
        if self.possible:
            yield from self._ask_again()

    def failed(self, job: str, culprits: Iterable[str]) -> Iterator[Command]:
        """Shares could not be used: their stage is asked again, without those who sent them."""
        if job == WeighRound.__name__:
            self._stage = SCORES
        yield from self.exclude(culprits)

    def link_lost(self) -> None:
        """What was under way may be lost."""
        if self._exchange:
            self._exchange.link_lost()

    def send_due(self, now: float) -> Iterator[Command]:
        """Send what was not confirmed."""
        if self._exchange is None:
            return
        for peer, part in self._exchange.due(now):
            yield Publish(Topic(Kind.DECRYPT, COORDINATOR, DeviceId(peer)), part)
        if self._exchange.pending:
            yield SetTimer(RESEND, now + self._rules.resend_s)

    @staticmethod
    def stop() -> Iterator[Command]:
        """Forget the timers."""
        yield CancelTimer(DEADLINE)
        yield CancelTimer(RESEND)

    def _next_stage(self) -> Iterator[Command]:
        shares, self._shares, self._exchange = self._shares, {}, None
        yield from self.stop()
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

    def _label(self) -> str:
        return f"{self._stage}.{self._attempt}.{self._turn}"
