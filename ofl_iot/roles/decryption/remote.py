"""Threshold decryption with an independent decryptor, as the coordinator sees it: ciphertexts out, values back.

    scores entrusted ─▶ values ─▶ weighed ─▶ model entrusted ─▶ values ─▶ finished

The decryptor alone knows the randomness of ServerDec, asks the leaders and sees to those that vanish. It shows that it
is alive while it works; when it is silent for one and a half times `decryption_deadline_s`, the round is abandoned and
the next one tries again.
"""

from __future__ import annotations

from collections.abc import Iterator

from ofl_iot.errors import LateError, RefusedError
from ofl_iot.ids import COORDINATOR, DECRYPTOR, DeviceId
from ofl_iot.protocol.codec import decode_body, encode_body
from ofl_iot.protocol.key_messages import ServerDecAnswer, ServerDecAsk
from ofl_iot.protocol.messages import Part, PartReceipt
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.roles.commands import Command, Publish, SetTimer, Subscribe
from ofl_iot.roles.decryption.requester import (
    DEADLINE,
    MODEL,
    REQUESTER,
    RESEND,
    SCORES,
    TOO_FEW,
    SealedRound,
    label_of,
)
from ofl_iot.roles.events import DecryptionRequested, JobFailed, LeanAsked
from ofl_iot.roles.resend import send_due
from ofl_iot.roles.settings import ProtectionRules
from ofl_iot.roles.transfer import BodyExchange, receipt_of

_HALVES = 2
"""A sign of life comes more than once in half a deadline; it may have come just after the last look."""
SILENT = "the decryptor does not answer: is `ofl decryptor` running?"


def answers_of(server: DeviceId) -> Subscribe:
    """Where the answers to what is to be decrypted come in: the leaders' shares, or what the decryptor made of them."""
    return Subscribe(Kind.SERVERDEC, DECRYPTOR, COORDINATOR) if server == DECRYPTOR else Subscribe(Kind.SHARE)


def confirm(kind: Kind, sender: DeviceId, part: Part) -> Publish:
    """The receipt of a part that nobody waits for, lest it is sent again."""
    receipt = receipt_of(part)
    return to_decryptor(receipt) if kind == Kind.SERVERDEC else REQUESTER.receipt(sender, receipt)


def to_decryptor(message: Part | PartReceipt) -> Publish:
    """From the coordinator to the decryptor."""
    return Publish(Topic(Kind.SERVERDEC, COORDINATOR, DECRYPTOR), message)


class RemoteDecryption:
    """The decryption of one round, in the decryptor's hands."""

    def __init__(self, sealed: SealedRound, rules: ProtectionRules) -> None:
        self._sealed = sealed
        self._rules = rules
        self._active = sealed.candidates()
        self._turn = 0
        self._stage = SCORES
        self._held: object = None
        self._exchange: BodyExchange | None = None
        self._quiet = 0
        """How often in a row half of the deadline passed without a sign of the decryptor."""
        self._reason = ""
        self.failing: set[str] = set()

    @property
    def given_up(self) -> str:
        """Why it cannot go on; empty while it can."""
        return self._reason or ("" if len(self._active) >= self._sealed.key.opened.threshold else TOO_FEW)

    def begin(self) -> Iterator[Command]:
        """Compute the scores on ciphertext."""
        yield self._sealed.score(self._active)

    def requested(self, event: DecryptionRequested | LeanAsked, now: float) -> Iterator[Command]:
        """A ciphertext is ready for the decryptor."""
        sealed = self._sealed
        if isinstance(event, LeanAsked) or event.round_no != sealed.round_no or event.stage != self._stage:
            return
        self._held = event.held
        self._turn += 1
        ask = ServerDecAsk(
            round_no=sealed.round_no,
            attempt=sealed.attempt,
            turn=self._turn,
            stage=self._stage,
            opened=sealed.key.opened,
            public=sealed.key.public,
            active=self._active,
            contributors=event.contributors,
            ciphertext=event.request,
        )
        max_bytes = 8 * sealed.size + (1 << 20)
        self._exchange = BodyExchange(
            sealed.key.opened.term, sealed.round_no, resend_s=self._rules.resend_s, max_bytes=max_bytes
        )
        self._exchange.send(DECRYPTOR, label_of_ask(ask), encode_body(ask))
        self._quiet = 0
        yield from self._wait(now)
        yield from self.send_due(now)

    def receive(self, sender: DeviceId, message: Part | PartReceipt, now: float) -> Iterator[Command]:
        """The decryptor confirms, shows that it is alive, or answers."""
        if sender != DECRYPTOR:
            raise RefusedError(f"{sender} is not the decryptor")
        label = self._sealed.label(self._stage, self._turn)
        if self._exchange is None or message.stage != label:
            if isinstance(message, Part):
                yield to_decryptor(receipt_of(message))  # lest it is sent again
            raise LateError(f"an answer to {message.stage}, not {label}")
        self._quiet = 0
        if isinstance(message, PartReceipt):
            self._exchange.confirm(sender, message)
            yield from self.send_due(now)
            return
        receipt, body = self._exchange.take(sender, message)
        yield to_decryptor(receipt)
        if body is not None:
            yield from self._answered(decode_body(ServerDecAnswer, body))

    def deadline(self, now: float) -> Iterator[Command]:
        """Half of the deadline has passed. After two of them without a sign all is told again, after three given up."""
        if self._exchange is None:
            return
        self._quiet += 1
        if self._quiet > _HALVES:
            self._reason = SILENT
            return
        if self._quiet > 1:
            self._exchange.send_again(DECRYPTOR)  # it may have restarted and lost what it confirmed
            yield from self.send_due(now)
        yield from self._wait(now)

    def failed(self, event: JobFailed) -> Iterator[Command]:
        """Nothing that leaders send is read here."""
        self._reason = event.reason
        yield from ()

    def link_lost(self) -> None:
        """What was under way may be lost."""
        if self._exchange:
            self._exchange.link_lost()

    def send_due(self, now: float) -> Iterator[Command]:
        """Send what was not confirmed."""
        if self._exchange is None:
            return
        yield from send_due(self._exchange, RESEND, lambda _, part: to_decryptor(part), now)

    def _wait(self, now: float) -> Iterator[Command]:
        yield SetTimer(DEADLINE, now + self._rules.decryption_deadline_s / 2)

    def _answered(self, answer: ServerDecAnswer) -> Iterator[Command]:
        self._exchange = None
        yield from REQUESTER.stop()
        self.failing |= set(answer.failing) & set(self._active)
        self._active = tuple(leader for leader in self._active if leader not in answer.failing)
        if not answer.values:
            self._reason = f"the decryptor: {answer.reason or 'no values'}"
        elif self._stage == SCORES:
            self._stage = MODEL
            yield self._sealed.weigh(self._held, answer.decrypted_by, {}, answer.values)
        else:
            yield self._sealed.finish(self._held, {}, answer.values)


def label_of_ask(ask: ServerDecAsk) -> str:
    """How the parts of an ask and of its answer are named."""
    return label_of(ask.stage, ask.attempt, ask.turn)
