"""The holder of a device's keys: takes part in key generation and answers decryption requests, each once.

A decryption share is made once for a request, stored, and sent again as the same bytes: with two answers to one
ciphertext the noise in them could be averaged away, and with it what hides the key share. Nothing is answered but for
the round in which this device has an open contribution, nor beyond what the key may decrypt in its life.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import msgspec

from ofl_iot.crypto.params import LEAN, parameter_set
from ofl_iot.errors import LateError, RefusedError
from ofl_iot.ids import COORDINATOR, DeviceId
from ofl_iot.protocol import lean
from ofl_iot.protocol.messages import Assignment, Part, PartReceipt, RoundOpen
from ofl_iot.protocol.parts import digest_of
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.roles.base import collect
from ofl_iot.roles.commands import Command, Compute, Persist, Publish, Subscribe
from ofl_iot.roles.events import (
    Arrived,
    DecryptionAnswered,
    Event,
    JobFailed,
    KeysBegun,
    KeysFinished,
    LeanAnswered,
    LinkDown,
    LinkUp,
    OpenBody,
    SealingKeyMade,
    Started,
    TimerFired,
)
from ofl_iot.roles.job_kinds.keys import AnswerDecryption, AnswerLean, KeyMaterial
from ofl_iot.roles.keys.participant import RESEND as KEY_RESEND
from ofl_iot.roles.keys.participant import KeyParticipant
from ofl_iot.roles.keys.usage import KeyUsage
from ofl_iot.roles.reports.keys import KeyWorkFailed, ShareWithheld
from ofl_iot.roles.resend import send_due
from ofl_iot.roles.storage import DeleteTable, Put, Stored, StoreOp
from ofl_iot.roles.transfer import BodyExchange

SHARES = "keeper.shares"
_RESEND = "keeper.shares.resend"
_MAX_REQUESTS = 8
"""Decryption requests of one round that a key holder answers: scores and model, each with a few changes of the set."""
_MAX_LEAN_REQUESTS = 16
"""The same for a lean round, which has four stages."""
_USED_UP = "the key has shown all it may: several requests were under way at once"

Vector = tuple[tuple[str, int], ...]
"""Contributors and weights."""


class Bodies(Protocol):
    """Where the key holder finds what this device contributed to the open round."""

    @property
    def open_body(self) -> OpenBody | None:
        """The contribution to the open round, from when it is made until a global model ends the round."""
        ...

    @property
    def pin(self) -> Vector | None:
        """The vector that the contributed update is pinned to."""
        ...


class StoredShare(msgspec.Struct, frozen=True, array_like=True):
    """A decryption share as it was sent, and for what; known by the digest of its request."""

    term: int
    round_no: int
    ciphertext: str
    share: bytes
    contributors: tuple[str, ...] = ()
    """Whose sum it decrypts; empty for scores and in lean rounds."""
    stage: str = ""
    """Stage of a lean round."""


class KeyHolder:
    """One device's part in what the leaders do together."""

    def __init__(self, me: DeviceId, resend_s: float, server: DeviceId = COORDINATOR) -> None:
        self._me = me
        self._server = server
        """Who performs ServerDec: requests to decrypt come from there and from nobody else."""
        self._resend_s = resend_s
        self._ring = KeyParticipant(me, resend_s)
        self._exchange: BodyExchange | None = None
        self._asked: dict[str, str] = {}
        """The requests of this round: the label of each, by its digest."""
        self.bodies: Bodies | None = None
        """The leader of the same device; without one nothing is decrypted."""
        self._usage = KeyUsage()
        self._shares: dict[str, StoredShare] = {}
        """Shares of the last round that was answered, by the digest of their request."""

    @property
    def material(self) -> KeyMaterial | None:
        """The joint key that this device has a share of."""
        return self._ring.material

    @property
    def sealing_public(self) -> bytes:
        """The key that others seal to; empty until it is made."""
        return self._ring.sealing_public

    @property
    def sealing_private(self) -> bytes:
        """The private half; empty until it is made."""
        return self._ring.sealing_private

    @property
    def certificate(self) -> bytes:
        """What shows others that the sealing key is this device's; empty without enrolment."""
        return self._ring.certificate

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take an event, decide, and say what to do."""
        return collect(self._decide(event, now), event)

    def _decide(self, event: Event, now: float) -> Iterator[Command]:
        if isinstance(event, Started):
            yield from self._start(event.stored)
        elif isinstance(event, LinkUp):
            yield from self._ring.send_due(now)
            yield from self._send(now)
        elif isinstance(event, LinkDown):
            self._ring.link_lost()
            if self._exchange:
                self._exchange.link_lost()
        elif isinstance(event, Arrived):
            yield from self._receive(event, now)
        elif isinstance(event, SealingKeyMade):
            yield from self._ring.sealing_key_made(event)
        elif isinstance(event, TimerFired):
            yield from self._ring.send_due(now) if event.name == KEY_RESEND else self._send(now)
        else:
            yield from self._computed(event, now)

    def _computed(self, event: Event, now: float) -> Iterator[Command]:
        if isinstance(event, KeysBegun):
            yield from self._ring.begun(event, now)
        elif isinstance(event, KeysFinished):
            yield from self._ring.finished(event, now)
        elif isinstance(event, DecryptionAnswered):
            yield from self._answered(event, now)
        elif isinstance(event, LeanAnswered):
            yield from self._lean_answered(event, now)
        elif isinstance(event, JobFailed):
            asked_by = self._server if event.job in (AnswerDecryption, AnswerLean) else ""
            yield KeyWorkFailed(job=event.job.__name__, reason=event.reason, asked_by=asked_by)
            yield from self._ring.failed(event, now)
        else:
            raise TypeError(f"a key holder does not expect {type(event).__name__}")

    def _start(self, stored: Stored) -> Iterator[Command]:
        rows = stored.get(SHARES, {}).items()
        self._shares = {str(digest): msgspec.msgpack.decode(row, type=StoredShare) for digest, row in rows}
        self._usage.restore(stored)
        yield Subscribe(Kind.KEYS, receiver=self._me)
        asks = Kind.DECRYPT if self._server == COORDINATOR else Kind.SERVERDEC
        yield Subscribe(asks, receiver=self._me)
        yield from self._ring.start(stored)

    def _receive(self, event: Arrived, now: float) -> Iterator[Command]:
        message, sender = event.message, event.topic.sender
        if isinstance(message, Assignment):
            yield from self._assigned(message)
            return
        if isinstance(message, RoundOpen):
            yield from self._ring.round_opened(message.key_id)
            return
        if not isinstance(message, Part | PartReceipt):
            raise RefusedError(f"a {event.topic.kind.name} message is not for a key holder")
        if event.topic.kind == Kind.KEYS:
            yield from self._ring.receive(sender, message, now)
        elif sender != self._server:
            raise RefusedError(f"{sender} is not the {self._server}, whom this device decrypts for (server_dec)")
        elif isinstance(message, PartReceipt):
            if self._exchange:
                self._exchange.confirm(sender, message)
                yield from self._send(now)
        else:
            yield from self._request(message, now)

    def _assigned(self, assignment: Assignment) -> Iterator[Command]:
        """A key share is deleted when its term is over for this device."""
        if assignment.leader != self._me:
            yield from self._ring.drop_shares(assignment.term)
            if self.material is None:
                self._exchange, self._asked = None, {}

    def _request(self, part: Part, now: float) -> Iterator[Command]:
        key = self.material
        if key is None or part.term != key.opened.term:
            raise LateError(f"a request to decrypt under the key of term {part.term}")
        if any((part.term, part.round_no) < (share.term, share.round_no) for share in self._shares.values()):
            raise LateError(f"a request to decrypt of round {part.round_no}, which is over")
        own = self._open_body(key, part.round_no)
        if self._exchange is None or (part.term, part.round_no) > (self._exchange.term, self._exchange.number):
            self._exchange = BodyExchange(
                part.term, part.round_no, resend_s=self._resend_s, max_bytes=_most_bytes(key, own)
            )
            self._asked = {}
        receipt, request = self._exchange.take(self._server, part)
        yield Publish(Topic(Kind.SHARE, self._me), receipt)
        if request is None:
            return
        digest = digest_of(request).hex()
        answered = self._answered_in(part)
        under_way = digest in self._asked and digest not in answered
        most = _MAX_LEAN_REQUESTS if key.opened.params == LEAN.name else _MAX_REQUESTS
        if digest not in self._asked and len(self._asked.keys() | answered) >= most:
            raise RefusedError(f"more than {most} requests to decrypt in round {part.round_no}")
        self._asked[digest] = part.stage
        if digest in answered:
            yield from self._send_share(digest, now)
        elif not under_way:
            yield Compute(self._job(key, part, request, own))

    def _open_body(self, key: KeyMaterial, round_no: int) -> OpenBody:
        """What this device contributed to the round; nothing of any other round is decrypted."""
        own = self.bodies.open_body if self.bodies else None
        if own is None or (own.round_no, own.key_id) != (round_no, key.key_id):
            raise RefusedError(f"a request to decrypt in round {round_no}, to which this device did not contribute")
        return own

    def _job(self, key: KeyMaterial, part: Part, request: bytes, own: OpenBody) -> AnswerDecryption | AnswerLean:
        if key.opened.params != LEAN.name:
            self._usage.check_models(key, parameter_set(key.opened.params).rows(own.size))
            return AnswerDecryption(key, self._me, part.round_no, part.stage, request, own.size)
        if part.stage.partition(".")[0] == lean.SCORES:
            self._usage.check_scores(key)
        sketches = [share.share for share in self._shares.values() if share.stage == lean.SKETCH]
        sketch = sketches[-1] if sketches else b""
        return AnswerLean(key, self._me, part.round_no, part.stage, request, own, self._ring.sealing_private, sketch)

    def _answered_in(self, part: Part) -> set[str]:
        spoken = self._shares.items()
        return {digest for digest, share in spoken if (share.term, share.round_no) == (part.term, part.round_no)}

    def _awaited(self, round_no: int, request: str) -> bool:
        """Whether an answer that was computed is still of use."""
        return self._exchange is not None and self._exchange.number == round_no and request in self._asked

    def _answered(self, event: DecryptionAnswered, now: float) -> Iterator[Command]:
        key = self.material
        if key is None or self._exchange is None or not self._awaited(event.round_no, event.request):
            return  # the round has passed
        if event.request not in self._shares:
            summed = tuple(sorted(event.contributors)) if event.rows else ()
            share = StoredShare(self._exchange.term, event.round_no, event.ciphertext, event.share, summed)
            reason = self._objection(key, share, event.rows)
            if reason:
                yield ShareWithheld(round_no=event.round_no, reason=reason, asked_by=self._server)
                return
            yield from self._store(event.request, share, *self._usage.model_answered(key, event.ciphertext, event.rows))
        yield from self._send_share(event.request, now)

    def _objection(self, key: KeyMaterial, share: StoredShare, rows: int) -> str:
        """Why a share must not be sent; empty if it may."""
        if self._usage.answered(key, share.ciphertext):
            return "this ciphertext was answered"
        if rows and not self._usage.may_decrypt(key, rows):
            return _USED_UP
        sets = {
            each.contributors
            for each in (*self._shares.values(), share)
            if each.contributors and (each.term, each.round_no) == (share.term, share.round_no)
        }
        return "a sum of another set of contributors was decrypted in this round" if len(sets) > 1 else ""

    def _lean_answered(self, event: LeanAnswered, now: float) -> Iterator[Command]:
        key = self.material
        if key is None or self._exchange is None or not self._awaited(event.round_no, event.request):
            return  # the round has passed
        if event.request not in self._shares:
            reason = self._lean_objection(key, event)
            if reason:
                yield ShareWithheld(round_no=event.round_no, reason=reason, asked_by=self._server)
                return
            mark = event.mark.hex()
            share = StoredShare(self._exchange.term, event.round_no, mark, event.answer, (), event.stage)
            noted: tuple[StoreOp, ...] = ()
            if event.stage == lean.SCORES:
                noted = tuple(self._usage.scores_answered(key, mark))
            elif event.stage == lean.VOUCH:
                noted = tuple(self._usage.vector_signed(key, event.header, event.mark))
            yield from self._store(event.request, share, *noted)
        yield from self._send_share(event.request, now)

    def _lean_objection(self, key: KeyMaterial, event: LeanAnswered) -> str:
        """Why an answer of a lean round must not be sent; empty if it may."""
        own = self.bodies.open_body if self.bodies else None
        if self.bodies is None or own is None or own.header != event.header or key.key_id != event.key_id:
            return "it was made for another body than the present one"
        if event.stage == lean.SCORES and self._usage.answered(key, event.mark.hex()):
            return "these scores were answered"
        if event.stage == lean.SCORES and not self._usage.may_score(key):
            return _USED_UP
        if event.stage == lean.VOUCH:
            pinned = self.bodies.pin == event.vector
            allowed = pinned and self._usage.may_sign(key, event.header, event.mark)
        else:
            contributes = self._me in dict(event.vector)
            allowed = not contributes or self._usage.has_signed(key, event.header, event.mark)
        return "" if allowed else "another vector was signed for this body, or none"

    def _store(self, request: str, share: StoredShare, *noted: StoreOp) -> Iterator[Command]:
        """Drop the shares of earlier rounds: nothing of them is asked again."""
        number = (share.term, share.round_no)
        over = any((each.term, each.round_no) != number for each in self._shares.values())
        if over:
            self._shares = {}
        self._shares[request] = share
        put = Put(SHARES, request, msgspec.msgpack.encode(share))
        yield Persist((*((DeleteTable(SHARES), put) if over else (put,)), *noted))

    def _send_share(self, digest: str, now: float) -> Iterator[Command]:
        """Send a stored share; what answered an earlier request is void."""
        assert self._exchange is not None  # noqa: S101  # a request has come
        label = self._asked[digest]
        self._exchange.send(self._server, label, self._shares[digest].share)
        self._exchange.send_only(label)
        yield from self._send(now)

    def _send(self, now: float) -> Iterator[Command]:
        if self._exchange is not None:
            to_server = Topic(Kind.SHARE, self._me)
            yield from send_due(self._exchange, _RESEND, lambda _, part: Publish(to_server, part), now)


def _most_bytes(key: KeyMaterial, own: OpenBody) -> int:
    """What a request can take: half of the ciphertexts, scores of pairs, or a sketch and a box of each leader."""
    leaders = len(key.opened.members)
    return (1 << 20) + 16 * own.size + (1 << 16) * leaders * (leaders + 4)
