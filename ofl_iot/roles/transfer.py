"""Bodies to and from several peers, in parts, each until it is confirmed: key generation and decryption stand on it."""

from __future__ import annotations

from ofl_iot.errors import DecodeError, LateError
from ofl_iot.protocol.messages import Part, PartReceipt
from ofl_iot.protocol.parts import BodyJoiner, split_body
from ofl_iot.roles.part_sender import PartSender

PATIENCE = 32
"""A body not confirmed after so many times `resend_s` is given up: its receiver has gone or does not want it."""


class BodyExchange:
    """One conversation, known by its term and number; parts of any other are refused."""

    def __init__(self, term: int, number: int, *, resend_s: float, max_bytes: int) -> None:
        self.term = term
        self.number = number
        self.resend_s = resend_s
        self._max_bytes = max_bytes
        self._senders: dict[tuple[str, str], PartSender] = {}
        self._joiners: dict[tuple[str, str], BodyJoiner] = {}
        self._received: dict[tuple[str, str], bytes] = {}
        """Digests of whole bodies."""
        self._until: dict[tuple[str, str], float] = {}
        self._given_up: set[tuple[str, str]] = set()

    def send(self, peer: str, stage: str, body: bytes) -> None:
        """Begin to send a body; `due` says what to publish when."""
        parts = split_body(body, self.term, self.number, stage)
        self._senders[peer, stage] = PartSender(parts, resend_s=self.resend_s)
        self._restart_deadline((peer, stage))

    def send_only(self, stage: str) -> None:
        """Give the sending of all other stages up: what they carry is void."""
        self._senders = {key: sender for key, sender in self._senders.items() if key[1] == stage}

    def send_again(self, peer: str) -> None:
        """Send everything to a peer again: it may have lost what it confirmed."""
        for key, sender in self._senders.items():
            if key[0] == peer:
                sender.restart()
                self._restart_deadline(key)

    def _restart_deadline(self, key: tuple[str, str]) -> None:
        self._until.pop(key, None)
        self._given_up.discard(key)

    def due(self, now: float) -> list[tuple[str, Part]]:
        """Peers and parts to send now."""
        for key, sender in self._senders.items():
            if now > self._until.setdefault(key, now + PATIENCE * self.resend_s) and not sender.done:
                self._given_up.add(key)
        return [(key[0], part) for key, sender in self._hoped_for() for part in sender.due(now)]

    @property
    def pending(self) -> bool:
        """Whether anything still waits for its confirmation."""
        return any(not sender.done for _, sender in self._hoped_for())

    def _hoped_for(self) -> list[tuple[tuple[str, str], PartSender]]:
        return [(key, sender) for key, sender in self._senders.items() if key not in self._given_up]

    def given_up(self, peer: str, stage: str) -> bool:
        """Whether a body was sent too often without being confirmed."""
        return (peer, stage) in self._given_up

    def link_lost(self) -> None:
        """What was under way may be lost."""
        for sender in self._senders.values():
            sender.link_lost()

    def confirm(self, peer: str, receipt: PartReceipt) -> None:
        """A peer holds these parts."""
        sender = self._senders.get((peer, receipt.stage))
        if sender and (receipt.term, receipt.round_no) == (self.term, self.number):
            sender.confirm(receipt.parts)

    def heard_of(self, peer: str) -> bool:
        """Whether any part of a body came from a peer."""
        return any(key[0] == peer for held in (self._joiners, self._received) for key in held)

    def taken(self, peer: str, part: Part) -> bool:
        """Whether the body that a part belongs to is here already."""
        return self._received.get((peer, part.stage)) == part.digest

    def take(self, peer: str, part: Part) -> tuple[PartReceipt, bytes | None]:
        """Take a part; the receipt to answer with, and the body when this part completed it.

        A peer that began anew may send another body for the same stage: the later one counts.
        """
        if (part.term, part.round_no) != (self.term, self.number):
            raise LateError(f"a part of exchange {part.term}.{part.round_no}, not {self.term}.{self.number}")
        receipt = receipt_of(part)
        key = (peer, part.stage)
        if self.taken(peer, part):
            return receipt, None
        joiner = self._joiners.get(key)
        if joiner is None or joiner.digest != part.digest:
            joiner = self._joiners[key] = BodyJoiner.expecting(part, self._max_bytes)
        try:
            body = joiner.add(part)
        except DecodeError:
            del self._joiners[key]
            raise
        if body is not None:
            del self._joiners[key]
            self._received[key] = part.digest
        return receipt, body


def receipt_of(part: Part) -> PartReceipt:
    """The confirmation of one part."""
    return PartReceipt(part.term, part.round_no, part.stage, (part.part,))
