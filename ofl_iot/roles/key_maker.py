"""The coordinator's side of key generation: calls the leaders together, sums what is public, sees who is missing.

It learns the public key and the relinearisation key, and nothing of anybody's secret: deals pass it sealed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from ofl_iot.crypto.context import threshold_of
from ofl_iot.errors import RefusedError
from ofl_iot.ids import COORDINATOR, DeviceId
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
    tell,
)
from ofl_iot.roles.events import KeysMade
from ofl_iot.roles.exchange import BodyExchange
from ofl_iot.roles.keyring import MAX_BODY_BYTES, OPEN, TWO
from ofl_iot.roles.rules import ProtectionRules
from ofl_iot.roles.storage import Put, Stored

TABLE = "coordinator.keys"
RESEND, DEADLINE = "coordinator.keys.resend", "coordinator.keys.deadline"


class KeyMaker:
    """The joint key of the leaders in office, or the making of it."""

    def __init__(self, rules: ProtectionRules) -> None:
        self._rules = rules
        self.key: CoordinatorKey | None = None
        self._opened: KeyOpen | None = None
        self._attempt = 0
        self._exchange: BodyExchange | None = None
        self._ones: dict[str, bytes] = {}
        self._twos: dict[str, bytes] = {}
        self._making = False

    def restore(self, stored: Stored) -> None:
        """Take up the stored key."""
        rows = stored.get(TABLE, {})
        if "key" in rows:
            self.key = msgspec.msgpack.decode(rows["key"], type=CoordinatorKey)
        if "attempt" in rows:
            self._attempt = int.from_bytes(rows["attempt"], "little")

    def fits(self, leaders: Mapping[str, int]) -> bool:
        """Whether the key at hand is that of these leaders."""
        return self.key is not None and {m.leader for m in self.key.opened.members} == set(leaders)

    @property
    def under_way(self) -> bool:
        """Whether a key is being made."""
        return self._opened is not None

    def missing(self) -> set[str]:
        """Leaders that have not delivered what is due."""
        if self._opened is None:
            return set()
        members = {member.leader for member in self._opened.members}
        return members - (self._twos.keys() if self._ones.keys() >= members else self._ones.keys())

    def begin(self, term: int, sealing_keys: Mapping[str, bytes], now: float) -> Iterator[Command]:
        """Call the leaders together; an earlier attempt is void."""
        self._attempt += 1
        self.key = None
        members = tuple(KeyMember(leader, key) for leader, key in sorted(sealing_keys.items()))
        threshold = threshold_of(self._rules.threshold, len(members))
        self._opened = KeyOpen(term, self._attempt, members, threshold, self._rules.params)
        self._ones, self._twos, self._making = {}, {}, False
        self._exchange = BodyExchange(term, self._attempt, resend_s=self._rules.resend_s, max_bytes=MAX_BODY_BYTES)
        for member in members:
            self._exchange.send(member.leader, OPEN, encode_body(self._opened))
        yield Persist((Put(TABLE, "attempt", self._attempt.to_bytes(8, "little")),))
        yield tell(
            "key generation begins",
            term=term,
            attempt=self._attempt,
            leaders=len(members),
            threshold=threshold,
            colluding_leaders_that_learn_nothing=threshold - 1,
        )
        yield SetTimer(DEADLINE, now + self._rules.key_deadline_s)
        yield from self.send_due(now)

    def receive(self, sender: DeviceId, message: Part | PartReceipt, now: float) -> Iterator[Command]:
        """A part or a receipt of the key generation."""
        if self._exchange is None or self._opened is None:
            raise RefusedError("no key is being made")
        if sender not in {member.leader for member in self._opened.members}:
            raise RefusedError(f"{sender} takes no part in this key generation")
        if isinstance(message, PartReceipt):
            self._exchange.confirm(sender, message)
            yield from self.send_due(now)
            return
        receipt, body = self._exchange.take(sender, message)
        yield Publish(Topic(Kind.KEYS, COORDINATOR, sender), receipt)
        if body is not None:
            (self._twos if message.stage == TWO else self._ones)[sender] = body
        if self._twos.keys() == {member.leader for member in self._opened.members} and not self._making:
            self._making = True
            yield Compute(MakeKeys(self._opened, dict(self._ones), dict(self._twos)))

    def made(self, event: KeysMade) -> Iterator[Command]:
        """The joint key is complete."""
        if self._opened is None or event.key.opened != self._opened:
            return
        self.key = event.key
        yield Persist((Put(TABLE, "key", msgspec.msgpack.encode(event.key)),))
        yield tell("joint key ready", term=self._opened.term, leaders=len(self._opened.members))
        yield from self.stop()

    def stop(self) -> Iterator[Command]:
        """End the making of a key."""
        self._opened = self._exchange = None
        yield CancelTimer(DEADLINE)
        yield CancelTimer(RESEND)

    def send_due(self, now: float) -> Iterator[Command]:
        """Send what was not confirmed."""
        if self._exchange is None:
            return
        for peer, part in self._exchange.due(now):
            yield Publish(Topic(Kind.KEYS, COORDINATOR, DeviceId(peer)), part)
        if self._exchange.pending:
            yield SetTimer(RESEND, now + self._rules.resend_s)
