"""Threshold decryption at the coordinator: scores first, then the model; it survives members that vanish.

    scores asked ─▶ shares of the active set ─▶ weighed ─▶ model asked ─▶ shares ─▶ finished

The active set is fixed before anyone answers. When a member does not answer in time, the coordinator makes a freshly
re-randomised ciphertext for those who did; with fewer than the threshold the round is abandoned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ofl_iot.errors import LateError, RefusedError
from ofl_iot.ids import COORDINATOR, DeviceId
from ofl_iot.protocol.messages import Part, PartReceipt
from ofl_iot.protocol.topics import Kind
from ofl_iot.roles.commands import Command, Compute
from ofl_iot.roles.decryption.share_collector import MOST_TRIES, ActiveSet, Requester, ShareCollector, ShareRequest
from ofl_iot.roles.events import DecryptionRequested, JobFailed, LeanAsked
from ofl_iot.roles.job_kinds.keys import CoordinatorKey
from ofl_iot.roles.job_kinds.rounds import Contributed, FinishRound, ScoreRound, WeighRound
from ofl_iot.roles.reports.keys import WrongShare
from ofl_iot.roles.settings import ProtectionRules
from ofl_iot.roles.transfer import receipt_of

RESEND, DEADLINE = "coordinator.decryption.resend", "coordinator.decryption.deadline"
SCORES, MODEL = "scores", "model"
REQUESTER = Requester(COORDINATOR, Kind.DECRYPT, RESEND, DEADLINE)
TOO_FEW = "too few leaders are left to decrypt"
WRONG = "the shares do not decrypt together, whoever is left out"


@dataclass(frozen=True)
class SealedRound:
    """What leaders contributed to a round, encrypted, and the jobs that make a model of it, whoever decrypts."""

    key: CoordinatorKey
    round_no: int
    contributions: tuple[Contributed, ...]
    size: int
    """Parameters of the model."""
    evidence: Mapping[str, float] = field(default_factory=dict)
    misses: Mapping[str, int] = field(default_factory=dict)
    attempt: int = 0
    """Grows with every restart of the coordinator: what answers an earlier process is void."""

    def candidates(self) -> tuple[str, ...]:
        """Leaders that can be asked to decrypt: members of the key that have contributed, the doubtful ones first.

        Among those without misses each round begins with others, so that in some round it is everyone's turn to be
        doubted.
        """
        members = {member.leader for member in self.key.opened.members}
        able = sorted(members & {each.leader for each in self.contributions})
        turn = self.round_no * MOST_TRIES % max(1, len(able))
        return tuple(sorted(able[turn:] + able[:turn], key=lambda leader: -self.misses.get(leader, 0)))

    def score(self, active: tuple[str, ...]) -> Compute:
        """Compute the scores on ciphertext."""
        return Compute(ScoreRound(self.round_no, self.key, self.contributions, active, self.size, self.attempt))

    def weigh(self, held: object, active: tuple[str, ...], shares: dict[str, bytes], values: bytes = b"") -> Compute:
        """Judge the decrypted scores and weigh the models, on ciphertext."""
        return Compute(WeighRound(self.round_no, shares, active, dict(self.evidence), values, self.attempt, held))

    def finish(self, held: object, shares: dict[str, bytes], values: bytes = b"") -> Compute:
        """Make the round's update of the decrypted sum."""
        return Compute(FinishRound(self.round_no, shares, values, self.attempt, held))

    def label(self, stage: str, turn: int) -> str:
        """How the parts of a request and of its answers are named."""
        return label_of(stage, self.attempt, turn)


def label_of(stage: str, attempt: int, turn: int) -> str:
    """How the parts of a request to decrypt and of its answers are named, whoever decrypts."""
    return f"{stage}.{attempt}.{turn}"


class RoundDecryption(Protocol):
    """How the rounds see a decryption, here or at the decryptor."""

    @property
    def failing(self) -> set[str]:
        """Leaders that did not answer, not with a share, or without whom it worked."""
        ...

    @property
    def given_up(self) -> str:
        """Why it cannot go on; empty while it can."""
        ...

    def begin(self) -> Iterator[Command]:
        """Compute the scores on ciphertext."""
        ...

    def requested(self, event: DecryptionRequested | LeanAsked, now: float) -> Iterator[Command]:
        """A ciphertext, or a stage of a lean round, is ready to be asked for."""
        ...

    def receive(self, sender: DeviceId, message: Part | PartReceipt, now: float) -> Iterator[Command]:
        """A part or a receipt from who decrypts."""
        ...

    def deadline(self, now: float) -> Iterator[Command]:
        """Somebody may be silent."""
        ...

    def failed(self, event: JobFailed) -> Iterator[Command]:
        """What leaders sent could not be used."""
        ...

    def link_lost(self) -> None:
        """What was under way may be lost."""
        ...

    def send_due(self, now: float) -> Iterator[Command]:
        """Send what was not confirmed."""
        ...


class Decryption:
    """The decryption of one round."""

    def __init__(self, sealed: SealedRound, rules: ProtectionRules) -> None:
        self._sealed = sealed
        self._rules = rules
        self._set = ActiveSet(sealed.candidates(), sealed.key.opened.threshold)
        self._hopeless = False
        self._stage = SCORES
        self._weighing = False
        """The scores are decrypted and being judged."""
        self._turn = 0
        """Grows with every request: what answers an earlier one is void."""
        self._held: object = None
        """What the last job left for the next one."""
        self.asked: ShareCollector | None = None

    @property
    def failing(self) -> set[str]:
        """Leaders that did not answer, not with a share, or without whom it worked."""
        return self._set.failing

    @property
    def given_up(self) -> str:
        """Why it cannot go on; empty while enough members are there to decrypt."""
        if self._hopeless:
            return WRONG
        return "" if self._set.enough else TOO_FEW

    def begin(self) -> Iterator[Command]:
        """Compute the scores on ciphertext."""
        yield self._sealed.score(self._set.active)

    def requested(self, event: DecryptionRequested | LeanAsked, now: float) -> Iterator[Command]:
        """A ciphertext is ready to be decrypted by the active set."""
        sealed = self._sealed
        if isinstance(event, LeanAsked) or event.round_no != sealed.round_no or event.stage != self._stage:
            return
        if self._weighing:
            self._weighing = False
            self._set.trust()
        self._held = event.held
        self._turn += 1
        label = sealed.label(self._stage, self._turn)
        question = ShareRequest(sealed.key.opened.term, sealed.round_no, label, event.request, self._set.active)
        self.asked = ShareCollector(REQUESTER, question, self._rules)
        yield from self.asked.begin(now)

    def receive(self, sender: DeviceId, message: Part | PartReceipt, now: float) -> Iterator[Command]:
        """A part of a share, or a receipt for parts of the request."""
        if self.asked is None:
            if sender not in self._set.willing:
                raise RefusedError(f"{sender} is not asked to decrypt")
            if isinstance(message, Part):
                yield REQUESTER.receipt(sender, receipt_of(message))  # lest it is sent again
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
        self._set.exclude(leaders)
        self.asked = None
        if not self.given_up:
            yield from self._ask_again()

    def failed(self, event: JobFailed) -> Iterator[Command]:
        """Shares could not be used: their stage is asked again, without those who sent them, or who may have."""
        if event.job is WeighRound:
            self._stage, self._weighing = SCORES, False
        if event.culprits:
            yield from self.exclude(event.culprits)
        elif self._set.doubt():
            yield WrongShare(among=event.suspects, left_out=self._set.left_out)
            yield from self._ask_again()
        else:
            self._hopeless = True

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
        yield from REQUESTER.stop()
        if self._stage == SCORES:
            self._stage, self._weighing = MODEL, True
            yield self._sealed.weigh(self._held, self._set.active, shares)
        else:
            yield self._sealed.finish(self._held, shares)

    def _ask_again(self) -> Iterator[Command]:
        if self._stage == SCORES:
            yield from self.begin()
        else:
            yield self._sealed.weigh(self._held, self._set.active, {})
