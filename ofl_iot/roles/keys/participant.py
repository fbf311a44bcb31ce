"""The leader's side of key generation: no dealer, and no secret key that exists in one place.

    open (coordinator) ─▶ draw secrets ─▶ broadcast one, seal a deal to each other leader
    all ones and deals here ─▶ key share stored ─▶ two (to the coordinator)

Every step is durable before it is spoken of. A leader that restarts in the middle resumes its attempt with the bytes
it sent before, and asks the others for what it had not yet stored. A new share waits beside the one in use until a
round is opened under its key; only then is the old one deleted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from ofl_iot.errors import LateError, RefusedError
from ofl_iot.ids import COORDINATOR, DeviceId
from ofl_iot.protocol.codec import decode_body
from ofl_iot.protocol.key_messages import KeyOpen
from ofl_iot.protocol.messages import Part, PartReceipt
from ofl_iot.protocol.parts import TARGET_PART_BYTES
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.roles.commands import Command, Compute, Persist, Publish
from ofl_iot.roles.events import JobFailed, KeysBegun, KeysFinished, SealingKeyMade
from ofl_iot.roles.job_kinds.keys import BeginKeys, FinishKeys, KeyMaterial, MakeSealingKey
from ofl_iot.roles.reports.keys import KeyShareReady
from ofl_iot.roles.resend import send_due
from ofl_iot.roles.storage import Delete, DeleteTable, Put, Stored, StoreOp
from ofl_iot.roles.transfer import BodyExchange, receipt_of

TABLE = "keeper.keys"
NEXT = "keeper.next"
"""Shares of keys under which no round was opened yet, by key id."""
STEPS = "keeper.ceremony"
"""The key generation under way, step by step."""
RESEND = "keeper.keys.resend"
OPEN, ROUND1, DEAL, ROUND2 = "open", "one", "deal", "two"
FAULT = "fault"
"""To the coordinator: what the leader of this name sent cannot be used."""
AGAIN = "again"
"""The sender restarted and asks for everything that was sent to it; the body counts its restarts."""
MAX_REPEATS = 8
"""How often one peer may ask for a repetition in one key generation."""
MAX_BODY_BYTES = 1 << 24
_MAX_NEXT = 3
"""Unused shares that are kept; with more, the oldest goes."""
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
        self._two = b""
        """What completes the key at the coordinator; empty until the share is stored."""
        self._confirmed = False
        """Whether a round was opened under the key that was made last."""
        self._next: dict[bytes, KeyMaterial] = {}
        self._restarts = 0
        self._repeats: dict[str, int] = {}
        """Repetitions that each peer asked for."""
        self._early: list[tuple[DeviceId, Part]] = []

    def start(self, stored: Stored) -> Iterator[Command]:
        """Take up the stored keys and the key generation under way; a new device makes its sealing key."""
        rows = stored.get(TABLE, {})
        if "material" in rows:
            self.material = msgspec.msgpack.decode(rows["material"], type=KeyMaterial)
        waiting = [msgspec.msgpack.decode(row, type=KeyMaterial) for row in stored.get(NEXT, {}).values()]
        self._next = {each.key_id: each for each in sorted(waiting, key=_age)}
        if "private" in rows:
            self.sealing_private, self.sealing_public = rows["private"], rows["public"]
            self.certificate = rows.get("certificate", b"")
            yield from self._resume({str(name): row for name, row in stored.get(STEPS, {}).items()})
        else:
            yield Compute(MakeSealingKey())

    def _resume(self, steps: Mapping[str, bytes]) -> Iterator[Command]:
        """Go on with the key generation that the process before had begun."""
        if "opened" not in steps:
            return
        opened = self._opened = msgspec.msgpack.decode(steps["opened"], type=KeyOpen)
        self._exchange = self._exchange_for(opened)
        self._restarts = int.from_bytes(steps.get("restarts", b""), "little") + 1
        yield Persist((Put(STEPS, "restarts", self._restarts.to_bytes(8, "little")),))
        if "one" not in steps:
            yield Compute(BeginKeys(opened, self._me, self.sealing_private))
            return
        self._two = steps.get("two", b"")
        deals = msgspec.msgpack.decode(steps["deals"], type=dict[str, bytes])
        begun = KeysBegun(opened.term, opened.attempt, steps.get("secret", b""), steps["one"], deals)
        for member in opened.members:
            for stage, held in ((ROUND1, self._round1_shares), (DEAL, self._deals)):
                if f"{stage}.{member.leader}" in steps:
                    held[member.leader] = steps[f"{stage}.{member.leader}"]
        self._offer(begun)
        if self._two:
            self._exchange.send(COORDINATOR, ROUND2, self._two)
        else:
            self._begun = begun
            self._ask_again(opened)
            yield from self._finish_if_complete()

    def _ask_again(self, opened: KeyOpen) -> None:
        """Ask whoever owes something: parts that were confirmed but not yet whole were lost with the process."""
        for member in opened.members:
            complete = member.leader in self._round1_shares and member.leader in self._deals
            if self._exchange and not complete:
                self._exchange.send(member.leader, AGAIN, str(self._restarts).encode())

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
        wanted = body is not None and message.stage != AGAIN and not self._two
        if body is not None and wanted:
            (self._round1_shares if message.stage == ROUND1 else self._deals)[sender] = body
            yield Persist((Put(STEPS, f"{message.stage}.{sender}", body),))
        yield Publish(Topic(Kind.KEYS, self._me, sender), receipt)
        if wanted:
            yield from self._finish_if_complete()
        elif body is not None and message.stage == AGAIN:
            yield from self._repeat(sender, now)

    def _repeat(self, peer: DeviceId, now: float) -> Iterator[Command]:
        """A peer restarted: send it everything again, a few times at most."""
        self._repeats[peer] = self._repeats.get(peer, 0) + 1
        if self._exchange and self._repeats[peer] <= MAX_REPEATS:
            self._exchange.send_again(peer)
            yield from self._send(now)

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
        if self._begun or self._two:
            return
        self._begun = event
        self._round1_shares[self._me] = event.one
        self._deals[self._me] = event.deals[self._me]
        yield Persist(
            (
                Put(STEPS, "secret", event.secret),
                Put(STEPS, "one", event.one),
                Put(STEPS, "deals", msgspec.msgpack.encode(dict(event.deals))),
            )
        )
        self._offer(event)
        if self._restarts:
            self._ask_again(opened)
        yield from self._send(now)
        early, self._early = self._early, []
        for sender, part in early:
            if (part.term, part.round_no) == (opened.term, opened.attempt):
                yield from self.receive(sender, part, now)
        yield from self._finish_if_complete()

    def _offer(self, begun: KeysBegun) -> None:
        """Have the broadcast and the deals sent."""
        self._round1_shares[self._me], self._deals[self._me] = begun.one, begun.deals[self._me]
        if self._opened is None or self._exchange is None:
            return
        for member in self._opened.members:
            if member.leader != self._me:
                self._exchange.send(member.leader, ROUND1, begun.one)
                self._exchange.send(member.leader, DEAL, begun.deals[member.leader])
        self._exchange.send(COORDINATOR, ROUND1, begun.one)

    def finished(self, event: KeysFinished, now: float) -> Iterator[Command]:
        """The key share is ready: store it, then tell the coordinator. The share in use stays until `round_opened`."""
        opened = self._opened
        if opened is None or self._exchange is None or (event.term, event.attempt) != (opened.term, opened.attempt):
            return
        if self._two:
            return
        received = [f"{stage}.{member.leader}" for member in opened.members for stage in (ROUND1, DEAL)]
        self._begun, self._round1_shares, self._deals, self._two = None, {}, {}, event.two
        yield Persist(
            (
                *self._keep(event.material),
                Put(STEPS, "two", event.two),
                Delete(STEPS, "secret", wipe=True),
                *(Delete(STEPS, name) for name in received),
            )
        )
        yield KeyShareReady(term=event.term, leaders=len(opened.members), threshold=opened.threshold)
        self._exchange.send(COORDINATOR, ROUND2, event.two)
        yield from self._send(now)

    def _keep(self, material: KeyMaterial) -> Iterator[StoreOp]:
        """Keep a share: in use if there is no other, else for the rounds to come."""
        encoded = msgspec.msgpack.encode(material)
        if self.material is None:
            self.material = material
            yield Put(TABLE, "material", encoded)
            return
        self._next[material.key_id] = material
        yield Put(NEXT, material.key_id.hex(), encoded)
        for key_id in list(self._next)[:-_MAX_NEXT]:
            del self._next[key_id]
            yield Delete(NEXT, key_id.hex(), wipe=True)

    def round_opened(self, key_id: bytes) -> Iterator[Command]:
        """A round runs under this key: its share comes into use, and those of all earlier keys are deleted."""
        ops: list[StoreOp] = []
        if key_id in self._next:
            self.material = self._next[key_id]
            past = [each.key_id for each in self._next.values() if _age(each) <= _age(self.material)]
            self._next = {each: kept for each, kept in self._next.items() if each not in past}
            ops += [Delete(NEXT, each.hex(), wipe=True) for each in past]
            ops += [Delete(TABLE, "material", wipe=True), Put(TABLE, "material", msgspec.msgpack.encode(self.material))]
        made = (self._opened.term, self._opened.attempt) if self._opened and self._two else None
        in_use = _age(self.material) if self.material and self.material.key_id == key_id else None
        if made and made == in_use and not self._confirmed:
            self._confirmed = True
            ops.append(DeleteTable(STEPS))  # everybody has a share: nobody will ask again
        if ops:
            yield Persist(tuple(ops))

    def failed(self, event: JobFailed, now: float) -> Iterator[Command]:
        """The key share cannot be made: tell the coordinator whose fault it is, where that is known."""
        if event.job not in (BeginKeys, FinishKeys) or not event.culprits:
            return
        if self._exchange and (event.term, event.attempt) == (self._exchange.term, self._exchange.number):
            self._exchange.send(COORDINATOR, FAULT, event.culprits[0].encode())
            yield from self._send(now)

    def drop_shares(self, term: int) -> Iterator[Command]:
        """Delete the shares of all keys before this term: it has begun, and this device leads no longer."""
        ops: list[StoreOp] = []
        if self.material and self.material.opened.term < term:
            self.material = None
            ops.append(Delete(TABLE, "material", wipe=True))
        for key_id in [each.key_id for each in self._next.values() if each.opened.term < term]:
            del self._next[key_id]
            ops.append(Delete(NEXT, key_id.hex(), wipe=True))
        if ops:
            yield Persist(tuple(ops))

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
        if body is None:
            yield Publish(Topic(Kind.KEYS, self._me, COORDINATOR), receipt)
            return
        opened = decode_body(KeyOpen, body)
        reason = self._objection(opened, part)
        begins = not reason and opened != self._opened
        if begins:
            self._opened, self._exchange = opened, self._exchange_for(opened)
            self._begun, self._round1_shares, self._deals, self._two = None, {}, {}, b""
            self._restarts, self._repeats, self._confirmed = 0, {}, False
            first = Put(STEPS, "opened", msgspec.msgpack.encode(opened))
            yield Persist((Delete(STEPS, "secret", wipe=True), DeleteTable(STEPS), first))
        yield Publish(Topic(Kind.KEYS, self._me, COORDINATOR), receipt)
        if reason:
            raise RefusedError(reason)
        if begins:
            yield Compute(BeginKeys(opened, self._me, self.sealing_private))

    def _objection(self, opened: KeyOpen, part: Part) -> str:
        """Return why this device takes no part in a key generation; empty if it does."""
        if (opened.term, opened.attempt) != (part.term, part.round_no):
            return "a key generation whose opening says another term or attempt than its parts"
        if (self._me, self.sealing_public) not in {(each.leader, each.sealing_key) for each in opened.members}:
            return "a key generation that this device, with its sealing key, is not part of"
        return ""

    def _exchange_for(self, opened: KeyOpen) -> BodyExchange:
        return BodyExchange(opened.term, opened.attempt, resend_s=self._resend_s, max_bytes=MAX_BODY_BYTES)

    def _check_member(self, sender: DeviceId, stage: str) -> None:
        members = {member.leader for member in self._opened.members} if self._opened else set()
        if sender not in members and (sender, stage) != (COORDINATOR, AGAIN):
            raise RefusedError(f"{sender} takes no part in this key generation")
        if stage not in (ROUND1, DEAL, AGAIN):
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
        if self._exchange is not None:
            yield from send_due(
                self._exchange,
                RESEND,
                lambda peer, part: Publish(Topic(Kind.KEYS, self._me, DeviceId(peer)), part),
                now,
            )


def _age(material: KeyMaterial) -> tuple[int, int]:
    """The place of a key among all that were made."""
    return material.opened.term, material.opened.attempt
