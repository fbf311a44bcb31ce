"""A lean round at the coordinator, from the last upload to the opened sum.

    prepare ─▶ sketch asked ─▶ score ─▶ scores asked ─▶ weigh ─▶ vouch asked ─▶ open asked ─▶ finish

Sketches, signatures and answers come from the contributors. Without a sketch a leader is left out; scores are asked
again without whoever is silent or wrong; every contributor must sign, or the round is abandoned; then any `threshold`
answers open the sum, and no other set of leaders needs another ciphertext.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ofl_iot.errors import DecodeError, LateError, RefusedError
from ofl_iot.ids import DeviceId
from ofl_iot.protocol.codec import decode_body
from ofl_iot.protocol.lean import OPEN, SCORES, SKETCH, VOUCH, LeanAnswer
from ofl_iot.protocol.messages import Part, PartReceipt
from ofl_iot.roles.commands import Command, Compute
from ofl_iot.roles.decryption.requester import REQUESTER, TOO_FEW, WRONG, SealedRound, label_of
from ofl_iot.roles.decryption.share_collector import ActiveSet, ShareCollector, ShareRequest
from ofl_iot.roles.events import DecryptionRequested, JobFailed, LeanAsked, LeanWeights
from ofl_iot.roles.job_kinds.lean import FinishLean, LeanRound, OpenLean, PrepareLean, ScoreLean, WeighLean
from ofl_iot.roles.reports.coordinator import ContributionRefused
from ofl_iot.roles.reports.keys import ShareRefused, WrongShare
from ofl_iot.roles.settings import ProtectionRules
from ofl_iot.roles.transfer import receipt_of

_FEWEST = 2


class LeanDecryption:
    """One lean round."""

    def __init__(self, sealed: SealedRound, lean: LeanRound, rules: ProtectionRules) -> None:
        self._lean = lean
        self._rules = rules
        self._threshold = lean.key.opened.threshold
        self._set = ActiveSet(sealed.candidates(), self._threshold)
        self._given_up = ""
        self._stage = SKETCH
        self._turn = 0
        self._retry = 0
        self._accepted: tuple[str, ...] = ()
        """Whose uploads are what they must be: all their headers together fix the sketches' directions."""
        self._sketches: dict[str, bytes] = {}
        self._signatures: dict[str, bytes] = {}
        """Of the sketches, by their leaders."""
        self._held = self._digest = b""
        self._weighed: LeanWeights | None = None
        self._blamed: set[str] = set()
        self._silent: set[str] = set()
        """Who gave no answer of use in the last stage."""
        self.asked: ShareCollector | None = None

    @property
    def failing(self) -> set[str]:
        """Leaders that did not answer, not as they must, or dealt shares that do not open."""
        return self._set.failing | self._blamed

    @property
    def given_up(self) -> str:
        """Why it cannot go on; empty while it can."""
        return self._given_up or ("" if self._set.enough else TOO_FEW)

    @property
    def score_requests(self) -> int:
        """How often the joint key was asked for scores."""
        return self._retry

    def begin(self) -> Iterator[Command]:
        """Check the uploads."""
        yield Compute(PrepareLean(self._lean))

    def requested(self, event: DecryptionRequested | LeanAsked, now: float) -> Iterator[Command]:
        """A stage is ready to be asked."""
        number = (self._lean.round_no, self._lean.attempt, self._stage)
        if not isinstance(event, LeanAsked) or (event.round_no, event.attempt, event.stage) != number:
            return
        for leader, reason in event.refused.items():
            self._blamed.add(leader)
            yield ContributionRefused(leader=leader, reason=reason)
        if event.stage == SKETCH:
            self._accepted = event.accepted
            self._set.exclude(set(self._set.willing) - set(event.accepted))
        self._held, self._digest = event.held or self._held, event.digest or self._digest
        self._weighed = event.weighed or self._weighed
        if event.stage == VOUCH:
            self._set.trust()
        if self.given_up:
            return
        self._turn += 1
        label = label_of(self._stage, self._lean.attempt, self._turn)
        asked = tuple(sorted(event.requests.keys() & self._asking()))
        question = ShareRequest(self._lean.key.opened.term, self._lean.round_no, label, b"", asked, event.requests)
        self.asked = ShareCollector(REQUESTER, question, self._rules)
        yield from self.asked.begin(now)

    def _asking(self) -> set[str]:
        """Who is asked in this stage: contributors sign, all leaders that contributed may answer the rest."""
        if self._stage == VOUCH and self._weighed:
            return set(self._weighed.whole)
        return set(self._set.active if self._stage == SCORES else self._set.willing)

    def receive(self, sender: DeviceId, message: Part | PartReceipt, now: float) -> Iterator[Command]:
        """A part of an answer, or a receipt for parts of a request."""
        if self.asked is None:
            if sender not in self._set.willing:
                raise RefusedError(f"{sender} is not asked in this round")
            if isinstance(message, Part):
                yield REQUESTER.receipt(sender, receipt_of(message))  # lest it is sent again
            raise LateError("nothing is asked at the moment")
        yield from self.asked.receive(sender, message, now)
        if self.asked.complete:
            yield from self._next_stage(self.asked)

    def deadline(self, now: float) -> Iterator[Command]:
        """Half of the time is over: ask the silent ones again. All of it: go on with those who answered."""
        if self.asked is None:
            return
        if self.asked.overdue():
            yield from self._next_stage(self.asked)
        else:
            yield from self.asked.remind(now)

    def failed(self, event: JobFailed) -> Iterator[Command]:
        """What leaders sent could not be used: scores are asked again without them, anything else ends the round."""
        if event.job in (ScoreLean, WeighLean):
            self._stage = SCORES
            if event.culprits and not self._sketches.keys() & set(event.culprits):
                self._given_up = event.reason
            elif event.culprits:
                self._without(event.culprits)
                yield from self._score()
            elif self._set.doubt():
                yield WrongShare(among=tuple(event.suspects), left_out=self._set.left_out)
                yield from self._score()
            else:
                self._given_up = WRONG
        else:
            self._blamed.update(event.culprits)
            self._given_up = event.reason if event.culprits else WRONG

    def link_lost(self) -> None:
        """What was under way may be lost."""
        if self.asked:
            self.asked.link_lost()

    def send_due(self, now: float) -> Iterator[Command]:
        """Send what was not confirmed."""
        if self.asked:
            yield from self.asked.send_due(now)

    # --- stages

    def _next_stage(self, asked: ShareCollector) -> Iterator[Command]:
        self.asked = None
        yield from REQUESTER.stop()
        answers: dict[str, LeanAnswer] = {}
        yield from self._read(asked, answers)
        if self._stage == SKETCH:
            yield from self._sketched(answers)
        elif self._stage == SCORES:
            yield from self._scored(answers)
        elif self._stage == VOUCH:
            yield from self._vouched(answers)
        else:
            yield from self._opened(answers)

    def _read(self, asked: ShareCollector, answers: dict[str, LeanAnswer]) -> Iterator[Command]:
        """Fill in the answers by leader; who said nothing of use is noted."""
        for leader, body in sorted(asked.shares.items()):
            try:
                answers[leader] = decode_body(LeanAnswer, body)
            except DecodeError as error:  # noqa: PERF203  # each leader is judged apart
                self._blamed.add(leader)
                yield ShareRefused(reason=f"{leader}: {error}")
        self._silent = set(asked.silent) | (asked.shares.keys() - answers.keys())

    def _sketched(self, answers: dict[str, LeanAnswer]) -> Iterator[Command]:
        """Leave out who made no sketch, and whose key shares too few leaders could open."""
        dealers = self._undealt(answers)
        self._blamed |= dealers
        self._sketches = {leader: answer.data for leader, answer in answers.items() if leader not in dealers}
        self._signatures = {leader: answers[leader].signature for leader in self._sketches}
        self._set.exclude(self._silent | dealers)
        self._stage = SCORES
        yield from self._score()

    def _undealt(self, answers: dict[str, LeanAnswer]) -> set[str]:
        """Dealers accused by so many that fewer than the threshold could open their shares."""
        accusers: dict[str, int] = {}
        for answer in answers.values():
            for dealer in set(answer.accused):
                accusers[dealer] = accusers.get(dealer, 0) + 1
        return {dealer for dealer, count in accusers.items() if len(answers) - count < self._threshold}

    def _score(self) -> Iterator[Command]:
        if self.given_up:
            return
        if len(self._sketches) < _FEWEST:
            self._given_up = f"{len(self._sketches)} contributions can be scored"
            return
        self._retry += 1
        signatures = {leader: self._signatures[leader] for leader in self._sketches}
        yield Compute(
            ScoreLean(self._lean, self._accepted, dict(self._sketches), self._set.active, self._retry, signatures)
        )

    def _scored(self, answers: dict[str, LeanAnswer]) -> Iterator[Command]:
        if self._silent:
            self._without(self._silent)
            yield from self._score()
            return
        self._stage = VOUCH
        shares = {leader: answer.data for leader, answer in answers.items()}
        numbers = {leader: answer.numbers for leader, answer in answers.items() if not answer.accused}
        yield Compute(WeighLean(self._lean, self._accepted, self._held, shares, numbers, self._digest, self._retry))

    def _without(self, leaders: Iterable[str]) -> None:
        """Go on without these: they would not sign, either."""
        gone = set(leaders)
        self._set.exclude(gone)
        self._sketches = {leader: data for leader, data in self._sketches.items() if leader not in gone}

    def _vouched(self, answers: dict[str, LeanAnswer]) -> Iterator[Command]:
        if self._silent or self._weighed is None:
            self._blamed |= self._silent
            self._given_up = f"{', '.join(sorted(self._silent))} did not sign for the sum"
            return
        self._stage = OPEN
        signatures = {leader: answer.data for leader, answer in answers.items()}
        yield Compute(OpenLean(self._lean, self._accepted, self._weighed, signatures))

    def _opened(self, answers: dict[str, LeanAnswer]) -> Iterator[Command]:
        self._blamed |= self._silent | self._undealt(answers)
        shares = {leader: answer.data for leader, answer in answers.items() if not answer.accused and answer.data}
        if len(shares) < self._threshold or self._weighed is None:
            self._given_up = TOO_FEW
            return
        yield Compute(FinishLean(self._lean, self._weighed, shares))
