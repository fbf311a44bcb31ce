"""The coordinator's side of key generation: calls the leaders together, sums what is public, sees who is missing.

It learns the public key and the relinearisation key, and nothing of anybody's secret: deals pass it sealed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from ofl_iot.crypto.context import threshold_of
from ofl_iot.errors import LateError, RefusedError
from ofl_iot.ids import COORDINATOR, MAX_ID_LENGTH, DeviceId
from ofl_iot.protocol.codec import encode_body
from ofl_iot.protocol.messages import KeyMember, KeyOpen, Part, PartReceipt
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.roles.commands import (
    CancelTimer,
    Command,
    Compute,
    CoordinatorKey,
    MakeKeys,
    Persist,
    Publish,
    SetTimer,
)
from ofl_iot.roles.events import KeysMade
from ofl_iot.roles.keys.participant import FAULT, MAX_BODY_BYTES, OPEN, ROUND1, ROUND2
from ofl_iot.roles.reports import JointKeyReady, KeyGenerationBegun, KeyGenerationDisputed
from ofl_iot.roles.settings import ProtectionRules
from ofl_iot.roles.storage import Delete, Put, Stored
from ofl_iot.roles.transfer import BodyExchange, receipt_of

TABLE = "coordinator.keys"
RESEND, DEADLINE = "coordinator.keys.resend", "coordinator.keys.deadline"


class KeyCeremony:
    """The joint key of the leaders in office, or the making of it."""

    def __init__(self, rules: ProtectionRules) -> None:
        self._rules = rules
        self.key: CoordinatorKey | None = None
        self.requests = 0
        """How often leaders were asked to decrypt under the key what its budget counts."""
        self._opened: KeyOpen | None = None
        self._attempt = 0
        self._exchange: BodyExchange | None = None
        self._round1_shares: dict[str, bytes] = {}
        self._round2_shares: dict[str, bytes] = {}
        self._accused: set[str] = set()
        self._making = False

    def restore(self, stored: Stored) -> None:
        """Take up the stored key."""
        rows = stored.get(TABLE, {})
        if "key" in rows:
            self.key = msgspec.msgpack.decode(rows["key"], type=CoordinatorKey)
        self.requests = int.from_bytes(rows.get("requests", b""), "little")
        if "attempt" in rows:
            self._attempt = int.from_bytes(rows["attempt"], "little")

    def fits(self, leaders: Mapping[str, int]) -> bool:
        """Whether the key at hand is that of these leaders (with their terms): every term has a key of its own."""
        if self.key is None or self.key.opened.term < max(leaders.values(), default=0):
            return False
        return {member.leader for member in self.key.opened.members} == set(leaders)

    @property
    def under_way(self) -> bool:
        """Whether a key is being made."""
        return self._opened is not None

    def is_making(self, term: int, attempt: int) -> bool:
        """Whether the key of this term and attempt is being made."""
        return self._opened is not None and (self._opened.term, self._opened.attempt) == (term, attempt)

    def missing(self) -> set[str]:
        """Leaders that have not delivered what is due, or not what it must be.

        When nobody could finish, somebody's deals are missing, and the coordinator cannot see whose: it names nobody.
        """
        if self._opened is None:
            return set()
        members = {member.leader for member in self._opened.members}
        if self._accused:
            return self._accused & members
        if not self._round1_shares.keys() >= members:
            return members - self._round1_shares.keys()
        return members - self._round2_shares.keys() if self._round2_shares else set()

    def begin(self, term: int, members: tuple[KeyMember, ...], now: float) -> Iterator[Command]:
        """Call the leaders together; an earlier attempt is void."""
        self._attempt += 1
        self.key = None
        threshold = threshold_of(self._rules.threshold, len(members))
        self._opened = KeyOpen(term, self._attempt, members, threshold, self._rules.params)
        self._round1_shares, self._round2_shares, self._accused, self._making = {}, {}, set(), False
        self._exchange = BodyExchange(term, self._attempt, resend_s=self._rules.resend_s, max_bytes=MAX_BODY_BYTES)
        for member in members:
            self._exchange.send(member.leader, OPEN, encode_body(self._opened))
        # The old key goes too: leaders replace their share of it before the new one is complete.
        yield Persist((Put(TABLE, "attempt", self._attempt.to_bytes(8, "little")), Delete(TABLE, "key")))
        yield KeyGenerationBegun(
            term=term,
            attempt=self._attempt,
            leaders=len(members),
            threshold=threshold,
            collusion_bound=max(0, min(threshold - 1, len(members) - 2)),  # all but one: the sum
        )
        yield SetTimer(DEADLINE, now + self._rules.key_deadline_s)
        yield from self.send_due(now)

    def receive(self, sender: DeviceId, message: Part | PartReceipt, now: float) -> Iterator[Command]:
        """A part or a receipt of the key generation."""
        exchange = self._exchange
        if (
            exchange is None
            or self._opened is None
            or (message.term, message.round_no) != (exchange.term, exchange.number)
        ):
            if isinstance(message, Part):
                yield Publish(Topic(Kind.KEYS, COORDINATOR, sender), receipt_of(message))  # lest it is sent again
            raise LateError("a key generation that is over")
        if sender not in {member.leader for member in self._opened.members}:
            raise RefusedError(f"{sender} takes no part in this key generation")
        if isinstance(message, PartReceipt):
            exchange.confirm(sender, message)
            yield from self.send_due(now)
            return
        if message.stage not in (ROUND1, ROUND2, FAULT):
            raise RefusedError(f"the coordinator does not expect the stage {message.stage!r}")
        receipt, body = exchange.take(sender, message)
        yield Publish(Topic(Kind.KEYS, COORDINATOR, sender), receipt)
        if body is not None:
            yield from self._take(sender, message.stage, body, now)
        members = {member.leader for member in self._opened.members}
        if self._round1_shares.keys() == self._round2_shares.keys() == members and not self._making:
            self._making = True
            yield Compute(MakeKeys(self._opened, dict(self._round1_shares), dict(self._round2_shares)))

    def _take(self, sender: DeviceId, stage: str, body: bytes, now: float) -> Iterator[Command]:
        if stage == FAULT:
            accused = body[: MAX_ID_LENGTH + 1].decode(errors="replace")
            if self._opened is None or accused not in {member.leader for member in self._opened.members}:
                raise RefusedError(f"{sender} accuses somebody who takes no part in this key generation")
            self._accused.add(accused)
            yield KeyGenerationDisputed(leader=sender, accuses=accused)
            yield SetTimer(DEADLINE, now)
        else:
            (self._round2_shares if stage == ROUND2 else self._round1_shares)[sender] = body

    def blame(self, culprits: Iterable[str]) -> None:
        """What these leaders sent cannot be used."""
        self._accused.update(culprits)

    def made(self, event: KeysMade) -> Iterator[Command]:
        """The joint key is complete."""
        if self._opened is None or event.key.opened != self._opened:
            return
        self.key, self.requests = event.key, 0
        yield Persist((Put(TABLE, "key", msgspec.msgpack.encode(event.key)), Delete(TABLE, "requests")))
        yield JointKeyReady(term=self._opened.term, leaders=len(self._opened.members))
        yield from self.stop()

    def asked(self) -> Iterator[Command]:
        """Leaders are asked to decrypt: noted before they are."""
        self.requests += 1
        yield Persist((Put(TABLE, "requests", self.requests.to_bytes(8, "little")),))

    def stop(self) -> Iterator[Command]:
        """End the making of a key."""
        self._opened = self._exchange = None
        self._round1_shares, self._round2_shares, self._accused, self._making = {}, {}, set(), False
        yield CancelTimer(DEADLINE)
        yield CancelTimer(RESEND)

    def link_lost(self) -> None:
        """What was under way may be lost."""
        if self._exchange:
            self._exchange.link_lost()

    def send_due(self, now: float) -> Iterator[Command]:
        """Send what was not confirmed."""
        if self._exchange is None:
            return
        for peer, part in self._exchange.due(now):
            yield Publish(Topic(Kind.KEYS, COORDINATOR, DeviceId(peer)), part)
        if self._exchange.pending:
            yield SetTimer(RESEND, now + self._rules.resend_s)
