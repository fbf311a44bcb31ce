"""The leader's side of key generation: no dealer, and no secret key that exists in one place.

    open (coordinator) ─▶ draw secrets ─▶ broadcast one, seal a deal to each other leader
    all ones and deals here ─▶ key share stored ─▶ two (to the coordinator)

A leader that restarts in the middle has nothing to go on with: the coordinator begins another attempt.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ofl_iot.errors import LateError, RefusedError
from ofl_iot.ids import COORDINATOR, DeviceId
from ofl_iot.protocol.codec import decode_body
from ofl_iot.protocol.messages import KeyOpen, Part, PartReceipt
from ofl_iot.protocol.parts import TARGET_PART_BYTES
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.roles.commands import (
    BeginKeys,
    CancelTimer,
    Command,
    Compute,
    FinishKeys,
    KeyMaterial,
    MakeSealingKey,
    Persist,
    Publish,
    SetTimer,
)
from ofl_iot.roles.events import JobFailed, KeysBegun, KeysFinished, SealingKeyMade
from ofl_iot.roles.reports import KeyShareReady
from ofl_iot.roles.storage import Delete, Put, Stored
from ofl_iot.roles.transfer import BodyExchange, receipt_of

TABLE = "keeper.keys"
RESEND = "keeper.keys.resend"
OPEN, ROUND1, DEAL, ROUND2 = "open", "one", "deal", "two"
FAULT = "fault"
"""To the coordinator: what the leader of this name sent cannot be used."""
MAX_BODY_BYTES = 1 << 24
_MAX_EARLY_OF_ONE, _MAX_EARLY_SENDERS = 8, 16
"""Parts kept for an opening still to come, of each sender, and senders; the others are sent again."""


class KeyParticipant:
    """A device's sealing key, the key generation under way, and the joint key it has a share of."""

    def __init__(self, me: DeviceId, resend_s: float) -> None:
        self._me = me
        self._resend_s = resend_s
        self.sealing_private = b""
        self.sealing_public = b""
        self.certificate = b""
        self.material: KeyMaterial | None = None
        self._opened: KeyOpen | None = None
        self._exchange: BodyExchange | None = None
        self._opening = BodyExchange(0, 0, resend_s=resend_s, max_bytes=1 << 20)
        self._begun: KeysBegun | None = None
        self._round1_shares: dict[str, bytes] = {}
        self._deals: dict[str, bytes] = {}
        self._early: list[tuple[DeviceId, Part]] = []

    def start(self, stored: Stored) -> Iterator[Command]:
        """Take up the stored keys; a new device makes its sealing key."""
        rows = stored.get(TABLE, {})
        if "material" in rows:
            self.material = msgspec.msgpack.decode(rows["material"], type=KeyMaterial)
        if "private" in rows:
            self.sealing_private, self.sealing_public = rows["private"], rows["public"]
            self.certificate = rows.get("certificate", b"")
        else:
            yield Compute(MakeSealingKey())

    def sealing_key_made(self, event: SealingKeyMade) -> Iterator[Command]:
        """Keep the new sealing key, or the renewed certificate of it; the device announces its public half."""
        self.sealing_private, self.sealing_public, self.certificate = event.private, event.public, event.certificate
        rows = {"private": event.private, "public": event.public, "certificate": event.certificate}
        yield Persist(tuple(Put(TABLE, name, value) for name, value in rows.items()))

    def receive(self, sender: DeviceId, message: Part | PartReceipt, now: float) -> Iterator[Command]:
        """A part or a receipt of a key generation."""
        if isinstance(message, PartReceipt):
            if self._exchange:
                self._exchange.confirm(sender, message)
                yield from self._send(now)
            return
        if message.stage == OPEN:
            yield from self._take_opening(sender, message)
            return
        if self._exchange is None or (message.term, message.round_no) > (self._exchange.term, self._exchange.number):
            self._keep_early(sender, message)
            return
        self._check_member(sender, message.stage)
        if (message.term, message.round_no) < (self._exchange.term, self._exchange.number):
            yield Publish(Topic(Kind.KEYS, self._me, sender), receipt_of(message))  # lest it is sent again
            raise LateError("a key generation that is over")
        receipt, body = self._exchange.take(sender, message)
        yield Publish(Topic(Kind.KEYS, self._me, sender), receipt)
        if body is not None:
            (self._round1_shares if message.stage == ROUND1 else self._deals)[sender] = body
            yield from self._finish_if_complete()

    def _keep_early(self, sender: DeviceId, part: Part) -> None:
        """Keep a part whose sender heard of the opening before us: a few of each sender, for who takes part is unknown.

        What is not kept is sent again; nobody can push out what others sent.
        """
        if part.stage not in (ROUND1, DEAL) or len(part.body) > TARGET_PART_BYTES:
            raise RefusedError(f"a part of stage {part.stage!r} of no key generation that is known here")
        own = [each for each in self._early if each[0] == sender]
        if len(own) >= _MAX_EARLY_OF_ONE:
            self._early.remove(own[0])  # it may have begun anew: the latest parts count
        if own or len({other for other, _ in self._early}) < _MAX_EARLY_SENDERS:
            self._early.append((sender, part))

    def begun(self, event: KeysBegun, now: float) -> Iterator[Command]:
        """The secrets are drawn: broadcast and deal."""
        opened = self._opened
        if opened is None or self._exchange is None or (event.term, event.attempt) != (opened.term, opened.attempt):
            return
        self._begun = event
        self._round1_shares[self._me] = event.one
        self._deals[self._me] = event.deals[self._me]
        for member in opened.members:
            if member.leader != self._me:
                self._exchange.send(member.leader, ROUND1, event.one)
                self._exchange.send(member.leader, DEAL, event.deals[member.leader])
        self._exchange.send(COORDINATOR, ROUND1, event.one)
        yield from self._send(now)
        early, self._early = self._early, []
        for sender, part in early:
            if (part.term, part.round_no) == (opened.term, opened.attempt):
                yield from self.receive(sender, part, now)
        yield from self._finish_if_complete()

    def finished(self, event: KeysFinished, now: float) -> Iterator[Command]:
        """The key share is ready: store it, then tell the coordinator."""
        opened = self._opened
        if opened is None or self._exchange is None or (event.term, event.attempt) != (opened.term, opened.attempt):
            return
        self.material = event.material
        self._begun, self._round1_shares, self._deals = None, {}, {}
        yield Persist(
            (Delete(TABLE, "material", wipe=True), Put(TABLE, "material", msgspec.msgpack.encode(event.material)))
        )
        yield KeyShareReady(term=event.term, leaders=len(opened.members), threshold=opened.threshold)
        self._exchange.send(COORDINATOR, ROUND2, event.two)
        yield from self._send(now)

    def failed(self, event: JobFailed, now: float) -> Iterator[Command]:
        """The key share cannot be made: tell the coordinator whose fault it is, where that is known."""
        if event.job not in (BeginKeys, FinishKeys) or not event.culprits:
            return
        if self._exchange and (event.term, event.attempt) == (self._exchange.term, self._exchange.number):
            self._exchange.send(COORDINATOR, FAULT, event.culprits[0].encode())
            yield from self._send(now)

    def drop_share(self) -> Iterator[Command]:
        """The term of the key is over, and this device leads no longer."""
        self.material = None
        yield Persist((Delete(TABLE, "material", wipe=True),))

    def send_due(self, now: float) -> Iterator[Command]:
        """Send again what was not confirmed."""
        yield from self._send(now)

    def link_lost(self) -> None:
        """What was under way may be lost."""
        if self._exchange:
            self._exchange.link_lost()

    def _take_opening(self, sender: DeviceId, part: Part) -> Iterator[Command]:
        if sender != COORDINATOR:
            raise RefusedError(f"{sender} is not the coordinator and opens no key generation")
        if not self.sealing_private:
            raise LateError("a key generation before this device has its sealing key")  # it is opened again
        held = self._opened
        if held and (part.term, part.round_no) < (held.term, held.attempt):
            raise LateError("a key generation that is over")
        if (self._opening.term, self._opening.number) != (part.term, part.round_no):
            self._opening = BodyExchange(part.term, part.round_no, resend_s=self._resend_s, max_bytes=1 << 20)
        receipt, body = self._opening.take(sender, part)
        yield Publish(Topic(Kind.KEYS, self._me, COORDINATOR), receipt)
        if body is None:
            return
        opened = decode_body(KeyOpen, body)
        if (opened.term, opened.attempt) != (part.term, part.round_no):
            raise RefusedError("a key generation whose opening says another term or attempt than its parts")
        if (self._me, self.sealing_public) not in {(each.leader, each.sealing_key) for each in opened.members}:
            raise RefusedError("a key generation that this device, with its sealing key, is not part of")
        self._opened = opened
        self._exchange = BodyExchange(opened.term, opened.attempt, resend_s=self._resend_s, max_bytes=MAX_BODY_BYTES)
        self._begun, self._round1_shares, self._deals = None, {}, {}
        yield Compute(BeginKeys(opened, self._me, self.sealing_private))

    def _check_member(self, sender: DeviceId, stage: str) -> None:
        if self._opened is None or sender not in {member.leader for member in self._opened.members}:
            raise RefusedError(f"{sender} takes no part in this key generation")
        if stage not in (ROUND1, DEAL):
            raise RefusedError(f"a leader does not expect the stage {stage!r}")

    def _finish_if_complete(self) -> Iterator[Command]:
        opened = self._opened
        if opened is None or self._begun is None or not self.sealing_private:
            return
        members = {member.leader for member in opened.members}
        if self._round1_shares.keys() >= members and self._deals.keys() >= members:
            secret, self._begun = self._begun.secret, None
            yield Compute(
                FinishKeys(opened, self._me, self.sealing_private, secret, dict(self._round1_shares), dict(self._deals))
            )

    def _send(self, now: float) -> Iterator[Command]:
        if self._exchange is None:
            return
        for peer, part in self._exchange.due(now):
            yield Publish(Topic(Kind.KEYS, self._me, DeviceId(peer)), part)
        yield SetTimer(RESEND, now + self._resend_s) if self._exchange.pending else CancelTimer(RESEND)
