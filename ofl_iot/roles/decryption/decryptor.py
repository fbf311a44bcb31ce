"""The decryptor: performs ServerDec and FinDec in the coordinator's place, and so keeps their randomness from it.

    idle ─ask─▶ made fresh (ServerDec) ─▶ active set asked ─▶ shares ─▶ FinDec ─▶ answered
                      ▲───── a member vanished, or sent no share ────────┘
                      └── fewer left than the threshold: the answer says so

It holds no key share. Each step is stored before anything is said of it: after a kill it goes on with the same
ciphertext, and leaders send the same shares again. A newer ask makes the one in hand void.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from ofl_iot.errors import LateError, RefusedError
from ofl_iot.ids import COORDINATOR, DECRYPTOR, DeviceId
from ofl_iot.protocol.codec import decode_body, encode_body
from ofl_iot.protocol.key_messages import ServerDecAnswer, ServerDecAsk
from ofl_iot.protocol.messages import Part, PartReceipt
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.roles.base import collect
from ofl_iot.roles.commands import CancelTimer, Command, Compute, Persist, Publish, SetTimer, Subscribe
from ofl_iot.roles.decryption.remote import label_of_ask
from ofl_iot.roles.decryption.requester import TOO_FEW
from ofl_iot.roles.decryption.share_collector import ActiveSet, Requester, ShareCollector, ShareRequest
from ofl_iot.roles.events import (
    Arrived,
    Event,
    FinalDecrypted,
    JobFailed,
    LinkDown,
    LinkUp,
    ServerDecrypted,
    Started,
    Stopping,
    TimerFired,
)
from ofl_iot.roles.job_kinds.keys import FinalDecrypt, ServerDecrypt
from ofl_iot.roles.reports.keys import DecryptionAsked, DecryptionFailed, ShareRefused, WrongShare
from ofl_iot.roles.resend import send_due
from ofl_iot.roles.settings import ProtectionRules
from ofl_iot.roles.storage import Delete, DeleteTable, Put, Stored
from ofl_iot.roles.transfer import BodyExchange, receipt_of

TABLE = "decryptor"
_ASK, _FRESH, _ANSWER = "ask", "fresh", "answer"
REQUESTER = Requester(DECRYPTOR, Kind.SERVERDEC, "decryptor.resend", "decryptor.deadline")
_ANSWER_RESEND, _ALIVE = "decryptor.answer.resend", "decryptor.alive"
_SIGNS_A_DEADLINE = 3
"""Signs of life within `decryption_deadline_s`; the coordinator looks twice in that time."""
_MAX_ASK_BYTES = 1 << 30
_MAX_REASON = 200


class FreshCiphertext(msgspec.Struct, frozen=True, array_like=True):
    """A ciphertext made fresh for an active set: what its members are asked, and the half that is kept."""

    active: tuple[str, ...]
    failing: tuple[str, ...]
    """Who was left out so far."""
    asking: int
    """Grows with every set and every restart: what answers an earlier asking is void."""
    request: bytes
    held: bytes
    left_out: str = ""
    """Who is in doubt, and was left out to try,"""
    doubted: tuple[str, ...] = ()
    """and who else was so far."""


class DecryptorMachine:
    """One ask at a time: the newest."""

    def __init__(self, rules: ProtectionRules) -> None:
        self._rules = rules
        self._ask: ServerDecAsk | None = None
        self._set = ActiveSet((), 0)
        self._asking = 0
        self._fresh: FreshCiphertext | None = None
        self._asked: ShareCollector | None = None
        self._answer: bytes | None = None
        self._incoming: BodyExchange | None = None
        """The coordinator's asks."""
        self._outgoing: BodyExchange | None = None
        """The answer to the ask in hand."""
        self._busy = False
        """A job is under way; a newer ask waits for its end, so that no result is taken for another's."""
        self._next: ServerDecAsk | None = None

    @property
    def stage(self) -> str:
        """What is being decrypted; empty when nothing is."""
        return self._ask.stage if self._ask and self._answer is None else ""

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take an event, decide, and say what to do."""
        return collect(self._decide(event, now), event)

    def _decide(self, event: Event, now: float) -> Iterator[Command]:
        if isinstance(event, Started):
            yield from self._start(event.stored, now)
        elif isinstance(event, LinkUp):
            yield from self._send_again(now)
        elif isinstance(event, LinkDown):
            self._link_lost()
        elif isinstance(event, Arrived):
            yield from self._receive(event, now)
        elif isinstance(event, TimerFired):
            yield from self._timer(event.name, now)
        elif isinstance(event, ServerDecrypted | FinalDecrypted | JobFailed):
            self._busy = False
            if self._next:
                ask, self._next = self._next, None
                yield from self._accept(ask, now)
            else:
                yield from self._computed(event, now)
        elif not isinstance(event, Stopping):
            raise TypeError(f"a decryptor does not expect {type(event).__name__}")

    # --- life

    def _start(self, stored: Stored, now: float) -> Iterator[Command]:
        yield Subscribe(Kind.SERVERDEC, sender=COORDINATOR, receiver=DECRYPTOR)
        yield Subscribe(Kind.SHARE)
        rows = stored.get(TABLE, {})
        if _ASK not in rows:
            return
        ask = self._take_up(decode_body(ServerDecAsk, rows[_ASK]))
        if _ANSWER in rows:
            yield from self._say(rows[_ANSWER], now)
            return
        yield from self._alive(now)
        if _FRESH not in rows:
            yield from self._make_fresh(ask)
            return
        fresh = msgspec.msgpack.decode(rows[_FRESH], type=FreshCiphertext)
        self._set.exclude(set(fresh.failing) - {fresh.left_out})
        self._set.left_out, self._set.doubted = fresh.left_out, fresh.doubted
        # Leaders take the same request under another label: who has answered sends the same share again.
        yield from self._ask_for_shares(msgspec.structs.replace(fresh, asking=fresh.asking + 1), now)

    def _link_lost(self) -> None:
        for exchange in (self._outgoing, self._asked):
            if exchange:
                exchange.link_lost()

    def _send_again(self, now: float) -> Iterator[Command]:
        """What was said while there was no link is said again."""
        self._link_lost()
        yield from self._alive(now)
        if self._asked:
            yield from self._asked.send_due(now)
        yield from self._send_answer(now)

    def _timer(self, name: str, now: float) -> Iterator[Command]:
        if name == _ALIVE:
            yield from self._alive(now)
        elif name == _ANSWER_RESEND:
            yield from self._send_answer(now)
        elif self._asked and name == REQUESTER.resend:
            yield from self._asked.send_due(now)
        elif self._asked and name == REQUESTER.deadline:
            if self._asked.overdue():
                yield from self._exclude(self._asked.silent, now)
            else:
                yield from self._asked.remind(now)

    def _alive(self, now: float) -> Iterator[Command]:
        """Tell the coordinator that its ask is in hand: a receipt that confirms nothing new."""
        if self._ask and self._answer is None:
            sign = PartReceipt(self._ask.opened.term, self._ask.round_no, label_of_ask(self._ask), ())
            yield _to_coordinator(sign)
            yield SetTimer(_ALIVE, now + self._rules.decryption_deadline_s / _SIGNS_A_DEADLINE)

    # --- messages

    def _receive(self, event: Arrived, now: float) -> Iterator[Command]:
        message, sender = event.message, event.topic.sender
        if not isinstance(message, Part | PartReceipt):
            raise RefusedError(f"a {event.topic.kind.name} message is not for the decryptor")
        if event.topic.kind == Kind.SHARE:
            if self._asked is None:
                if isinstance(message, Part):
                    yield REQUESTER.receipt(sender, receipt_of(message))  # lest it is sent again
                raise LateError("nothing is asked at the moment")
            yield from self._share(self._asked, sender, message, now)
        elif sender != COORDINATOR:
            raise RefusedError(f"{sender} is not the coordinator and has nothing decrypted")
        elif isinstance(message, PartReceipt):
            if self._outgoing:
                self._outgoing.confirm(COORDINATOR, message)
                yield from self._send_answer(now)
        else:
            yield from self._part_of_ask(message, now)

    def _share(
        self, asked: ShareCollector, sender: DeviceId, message: Part | PartReceipt, now: float
    ) -> Iterator[Command]:
        yield from asked.receive(sender, message, now)
        if asked.complete and self._ask and self._fresh:
            self._asked, self._busy = None, True
            yield from REQUESTER.stop()
            yield Compute(FinalDecrypt(self._ask, self._fresh.held, asked.shares))

    def _part_of_ask(self, part: Part, now: float) -> Iterator[Command]:
        held = self._incoming
        if held and (part.term, part.round_no) < (held.term, held.number):
            yield _to_coordinator(receipt_of(part))  # lest it is sent again
            raise LateError(f"an ask of round {part.round_no}, which is over")
        if held is None or (part.term, part.round_no) > (held.term, held.number):
            self._incoming = held = self._exchange(part.term, part.round_no)
        if held.taken(COORDINATOR, part):
            yield from self._asked_again(part, now)
        receipt, body = held.take(COORDINATOR, part)
        if body is not None:
            yield from self._asked_for(decode_body(ServerDecAsk, body), part, now)
        yield _to_coordinator(receipt)

    def _asked_again(self, part: Part, now: float) -> Iterator[Command]:
        """The coordinator waits still: an answer that was given up is sent again, once for all parts of the ask."""
        answer = self._outgoing
        of_this_round = answer and (part.term, part.round_no) == (answer.term, answer.number)
        if answer and of_this_round and answer.given_up(COORDINATOR, part.stage):
            answer.send_again(COORDINATOR)
            yield from self._send_answer(now)

    def _asked_for(self, ask: ServerDecAsk, part: Part, now: float) -> Iterator[Command]:
        if (ask.opened.term, ask.round_no, label_of_ask(ask)) != (part.term, part.round_no, part.stage):
            raise RefusedError("an ask that says another term, round or stage than its parts")
        latest = self._next or self._ask
        if latest and _order(ask) <= _order(latest):
            if _order(ask) == _order(latest) and self._answer is not None:
                yield from self._say(self._answer, now)  # the coordinator waits for it still
            return
        if self._busy:
            self._next = ask
        else:
            yield from self._accept(ask, now)

    # --- decrypting

    def _accept(self, ask: ServerDecAsk, now: float) -> Iterator[Command]:
        yield Persist((DeleteTable(TABLE), Put(TABLE, _ASK, encode_body(ask))))
        yield from REQUESTER.stop()
        self._take_up(ask)
        yield DecryptionAsked(round_no=ask.round_no, stage=ask.stage, leaders=len(ask.active))
        yield from self._alive(now)
        yield from self._make_fresh(ask)

    def _take_up(self, ask: ServerDecAsk) -> ServerDecAsk:
        self._ask, self._asking = ask, 0
        self._set = ActiveSet(ask.active, ask.opened.threshold)
        self._fresh = self._asked = self._answer = None
        self._outgoing = self._exchange(ask.opened.term, ask.round_no)
        return ask

    def _make_fresh(self, ask: ServerDecAsk) -> Iterator[Command]:
        self._busy = True
        yield Compute(ServerDecrypt(ask, self._set.active))

    def _computed(self, event: ServerDecrypted | FinalDecrypted | JobFailed, now: float) -> Iterator[Command]:
        if isinstance(event, ServerDecrypted):
            yield from self._ask_for_shares(self._fresh_from(event), now)
        elif isinstance(event, FinalDecrypted):
            failing = tuple(sorted(self._set.failing))
            yield from self._conclude(ServerDecAnswer(event.values, self._set.active, failing), now)
        elif event.culprits:
            yield ShareRefused(reason=event.reason)
            yield from self._exclude(event.culprits, now)
        elif event.suspects and self._ask and self._set.doubt():
            yield WrongShare(among=event.suspects, left_out=self._set.left_out)
            self._fresh = self._asked = None
            yield from self._make_fresh(self._ask)
        else:
            yield from self._give_up(event.reason, now)

    def _fresh_from(self, event: ServerDecrypted) -> FreshCiphertext:
        return FreshCiphertext(
            active=self._set.active,
            failing=tuple(sorted(self._set.failing)),
            asking=self._asking + 1,
            request=event.request,
            held=event.held,
            left_out=self._set.left_out,
            doubted=self._set.doubted,
        )

    def _ask_for_shares(self, fresh: FreshCiphertext, now: float) -> Iterator[Command]:
        ask = self._ask
        if ask is None:
            return
        self._fresh, self._asking = fresh, fresh.asking
        yield Persist((Put(TABLE, _FRESH, msgspec.msgpack.encode(fresh)),))
        label = f"{label_of_ask(ask)}.{fresh.asking}"
        question = ShareRequest(ask.opened.term, ask.round_no, label, fresh.request, fresh.active)
        self._asked = ShareCollector(REQUESTER, question, self._rules)
        yield from self._asked.begin(now)

    def _exclude(self, leaders: Iterable[str], now: float) -> Iterator[Command]:
        """Go on without these: another set, another ciphertext."""
        self._set.exclude(leaders)
        self._fresh = self._asked = None
        if self._ask and self._set.enough:
            yield from self._make_fresh(self._ask)
        else:
            yield from self._give_up(TOO_FEW, now)

    def _give_up(self, reason: str, now: float) -> Iterator[Command]:
        failing = tuple(sorted(self._set.failing))
        yield DecryptionFailed(reason=reason, failing=tuple(failing))
        yield from self._conclude(ServerDecAnswer(b"", (), failing, reason[:_MAX_REASON]), now)

    # --- answering

    def _conclude(self, answer: ServerDecAnswer, now: float) -> Iterator[Command]:
        if self._ask is None:
            return
        body = encode_body(answer)
        self._fresh = self._asked = None
        self._ask = msgspec.structs.replace(self._ask, public=b"", ciphertext=b"")
        yield Persist((Delete(TABLE, _FRESH), Put(TABLE, _ASK, encode_body(self._ask)), Put(TABLE, _ANSWER, body)))
        yield from REQUESTER.stop()
        yield CancelTimer(_ALIVE)
        yield from self._say(body, now)

    def _say(self, body: bytes, now: float) -> Iterator[Command]:
        self._answer = body
        if self._ask and self._outgoing:
            self._outgoing.send(COORDINATOR, label_of_ask(self._ask), body)
            yield from self._send_answer(now)

    def _send_answer(self, now: float) -> Iterator[Command]:
        if self._outgoing is not None:
            yield from send_due(self._outgoing, _ANSWER_RESEND, lambda _, part: _to_coordinator(part), now)

    def _exchange(self, term: int, round_no: int) -> BodyExchange:
        return BodyExchange(term, round_no, resend_s=self._rules.resend_s, max_bytes=_MAX_ASK_BYTES)


def _order(ask: ServerDecAsk) -> tuple[int, int, int, int]:
    return ask.opened.term, ask.round_no, ask.attempt, ask.turn


def _to_coordinator(message: Part | PartReceipt) -> Publish:
    return Publish(Topic(Kind.SERVERDEC, DECRYPTOR, COORDINATOR), message)
