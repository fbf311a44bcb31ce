"""Asks an active set for its decryption shares of one ciphertext, whoever performs ServerDec."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ofl_iot.errors import LateError, RefusedError
from ofl_iot.ids import DeviceId
from ofl_iot.protocol.messages import Part, PartReceipt
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.roles.commands import CancelTimer, Command, Publish, SetTimer
from ofl_iot.roles.resend import send_due
from ofl_iot.roles.settings import ProtectionRules
from ofl_iot.roles.transfer import BodyExchange, receipt_of

MOST_TRIES = 3
"""How many are left out, one after the other, before a ciphertext is given up: leaders answer few requests a round."""


@dataclass(frozen=True)
class Requester:
    """Who asks, on which topic, with which timers."""

    me: DeviceId
    kind: Kind
    resend: str
    deadline: str

    def receipt(self, leader: DeviceId, receipt: PartReceipt) -> Publish:
        """Confirm parts of a share."""
        return Publish(Topic(Kind.RECEIPT, self.me, leader), receipt)

    def stop(self) -> Iterator[Command]:
        """Forget the timers."""
        yield CancelTimer(self.deadline)
        yield CancelTimer(self.resend)


class ActiveSet:
    """Who is asked to decrypt: all that can, without those that failed, and without one at a time when in doubt.

    When well-formed shares do not decrypt together, one of them is wrong and nothing shows whose. So all but one are
    asked about another ciphertext, and then all but the next, the most doubtful first. Whoever is left out when it
    works has failed. That finds a leader whose key share is broken. A leader that lies on purpose can have another one
    left out, by telling the truth in its absence; but it cannot stop the rounds.
    """

    def __init__(self, willing: Iterable[str], threshold: int) -> None:
        self.willing = tuple(willing)
        """In the order in which they are left out."""
        self._threshold = threshold
        self._gone: set[str] = set()
        self.left_out = ""
        self.doubted: tuple[str, ...] = ()
        """Who was left out so far, one after the other."""

    @property
    def active(self) -> tuple[str, ...]:
        """Who is asked now."""
        return tuple(sorted(leader for leader in self.willing if leader != self.left_out))

    @property
    def failing(self) -> set[str]:
        """Leaders that did not answer, not with a share, or were left out."""
        return self._gone | ({self.left_out} if self.left_out else set())

    @property
    def enough(self) -> bool:
        """Whether the active set can decrypt."""
        return len(self.active) >= self._threshold

    def exclude(self, leaders: Iterable[str]) -> None:
        """Go on without these."""
        self._gone.update(leaders)
        self.willing = tuple(leader for leader in self.willing if leader not in self._gone)
        if len(self.willing) <= self._threshold:
            self.left_out = ""  # it is needed

    def doubt(self) -> bool:
        """Leave the next one out; False when that cannot be tried (again)."""
        self.left_out = ""
        untried = [leader for leader in self.willing if leader not in self.doubted]
        if len(self.doubted) >= MOST_TRIES or not untried or len(self.willing) <= self._threshold:
            return False
        self.left_out = untried[0]
        self.doubted = (*self.doubted, self.left_out)
        return True

    def trust(self) -> None:
        """The active set has decrypted: whoever was left out stays so."""
        if self.left_out:
            self.exclude({self.left_out})
        self.left_out, self.doubted = "", ()


@dataclass(frozen=True)
class ShareRequest:
    """A request to decrypt, and of whom."""

    term: int
    round_no: int
    label: str
    """Another for every asking: what answers an earlier one is void."""
    request: bytes
    active: tuple[str, ...]
    requests: Mapping[str, bytes] = field(default_factory=dict)
    """In place of `request`, where every leader is asked something of its own."""

    def to(self, leader: str) -> bytes:
        """What this leader is asked."""
        return self.requests.get(leader, self.request)


class ShareCollector:
    """The shares of one active set, as they come in."""

    def __init__(self, requester: Requester, question: ShareRequest, rules: ProtectionRules) -> None:
        self._requester = requester
        self._label = question.label
        self._active = question.active
        self._rules = rules
        self._reminded = False
        self.shares: dict[str, bytes] = {}
        max_bytes = 64 + 2 * len(question.request) + (1 << 20)
        self._exchange = BodyExchange(question.term, question.round_no, resend_s=rules.resend_s, max_bytes=max_bytes)
        for leader in question.active:
            self._exchange.send(leader, question.label, question.to(leader))

    @property
    def complete(self) -> bool:
        """Whether every member of the set has answered."""
        return len(self.shares) == len(self._active)

    @property
    def silent(self) -> tuple[str, ...]:
        """Members that have not answered."""
        return tuple(leader for leader in self._active if leader not in self.shares)

    def begin(self, now: float) -> Iterator[Command]:
        """Ask."""
        yield SetTimer(self._requester.deadline, now + self._rules.decryption_deadline_s / 2)
        yield from self.send_due(now)

    def receive(self, sender: DeviceId, message: Part | PartReceipt, now: float) -> Iterator[Command]:
        """A part of a share, or a receipt for parts of the request."""
        if sender not in self._active:
            raise RefusedError(f"{sender} is not asked to decrypt")
        if isinstance(message, PartReceipt):
            self._exchange.confirm(sender, message)
            yield from self.send_due(now)
            return
        if message.stage != self._label:
            yield self._requester.receipt(sender, receipt_of(message))  # lest it is sent again
            raise LateError(f"a share for {message.stage}, not {self._label}")
        receipt, body = self._exchange.take(sender, message)
        yield self._requester.receipt(sender, receipt)
        if body is not None:
            self.shares[sender] = body

    def remind(self, now: float) -> Iterator[Command]:
        """Half of the time is over: ask the silent ones again."""
        for leader in self._active:
            if not self._exchange.heard_of(leader):
                self._exchange.send_again(leader)  # it may have restarted and lost what it confirmed
        yield SetTimer(self._requester.deadline, now + self._rules.decryption_deadline_s / 2)
        yield from self.send_due(now)

    def overdue(self) -> bool:
        """Whether the time is over, at the second call; the first is for `remind`."""
        over, self._reminded = self._reminded, True
        return over

    def link_lost(self) -> None:
        """What was under way may be lost."""
        self._exchange.link_lost()

    def send_due(self, now: float) -> Iterator[Command]:
        """Send what was not confirmed."""
        yield from send_due(
            self._exchange,
            self._requester.resend,
            lambda peer, part: Publish(Topic(self._requester.kind, self._requester.me, DeviceId(peer)), part),
            now,
        )
