"""A circle of leaders in a lean round: enrolled, so that what they state is signed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec
import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding

from ofl_iot.crypto.entropy import SeededEntropy
from ofl_iot.crypto.lean.quantiser import first_bounds
from ofl_iot.identity.certificates import LIFETIME_S, Request, Validity, read
from ofl_iot.identity.enrolment import Enrolment, SealingTrust
from ofl_iot.identity.names import Bearer
from ofl_iot.ids import COORDINATOR, DeviceId
from ofl_iot.jobs.leader_crypto import LeaderCrypto, sealing_key_of
from ofl_iot.jobs.toolbox import run_job
from ofl_iot.protocol.codec import decode_body, encode_body
from ofl_iot.protocol.lean import LeanAnswer
from ofl_iot.protocol.messages import Part
from ofl_iot.protocol.parts import split_body
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.roles.commands import Command
from ofl_iot.roles.decryption.lean import LeanDecryption
from ofl_iot.roles.events import (
    Arrived,
    ContributionProtected,
    Event,
    LeanAnswered,
    LeanAsked,
    OpenBody,
    RoundAggregated,
    Started,
)
from ofl_iot.roles.job_kinds.keys import AnswerLean, BeginKeys, FinishKeys, MakeSealingKey
from ofl_iot.roles.job_kinds.lean import LeanRound
from ofl_iot.roles.job_kinds.rounds import Contributed, LeanGround, ProtectContribution
from ofl_iot.roles.leader.pin import Pin
from tests.identity.certs import ENTROPY, NOW, authority, key
from tests.roles.circle import FEDERATION, RULES, SIZE, Circle, Office, names, updates_of

LEAN = msgspec.structs.replace(RULES, params="lean")
BOUNDS = first_bounds(SIZE)
BASE = np.linspace(-1, 1, SIZE).astype(np.float32)
UNIT = 2.0**-13
"""One step of the quantiser under the first bounds."""


class LeanOffice(Office):
    """The coordinator as far as keys and lean rounds go."""

    def _decide(self, event: Event, now: float) -> Iterator[Command]:
        if isinstance(event, LeanAsked):
            assert self.decryption is not None
            yield from self.decryption.requested(event, now)
        else:
            yield from super()._decide(event, now)


def enrolment(name: str, number: int) -> Enrolment:
    private = X25519PrivateKey.from_private_bytes(bytes([number + 1]) * 32)
    bearer = Bearer(FEDERATION, DeviceId(name), private.public_key().public_bytes_raw())
    signer = authority(0, FEDERATION)
    certificate = signer.issue(Request(bearer, key(number).public_key()), Validity.beginning(NOW, LIFETIME_S), ENTROPY)
    der = certificate.public_bytes(Encoding.DER)
    return Enrolment(read(certificate), der, signer.certificate, private.private_bytes_raw(), signing_key=key(number))


@dataclass
class LeanCircle(Circle):
    """Leaders that contribute to lean rounds; `enrolled` ones sign."""

    enrolled: bool = True
    rules: object = LEAN
    uploads: dict[tuple[str, int], bytes] = field(default_factory=dict)
    pins: dict[str, Pin] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.office = LeanOffice(self.rules)
        for number, name in enumerate(self.leaders):
            if self.enrolled:
                self._enrol(name, enrolment(name, number), number)
        assert self.make_key(term=2)

    def restart(self, name: str) -> None:
        if name != COORDINATOR:
            super().restart(name)
            return
        self.timers[name] = {}
        self.office = LeanOffice(self.rules)
        self.give(name, Started(self.stores[name].load()))

    def _enrol(self, name: DeviceId, mine: Enrolment, seed: int) -> None:
        trust = SealingTrust(lambda: mine, lambda: NOW)
        crypto = LeaderCrypto(FEDERATION, self.rules, SeededEntropy(500 + seed), trust)
        self.tools[name] = {
            **self.tools[name],
            MakeSealingKey: crypto.make_sealing_key,
            BeginKeys: crypto.begin_keys,
            FinishKeys: crypto.finish_keys,
            ProtectContribution: crypto.protect,
            AnswerLean: crypto.lean.answer,
        }
        self.give(name, sealing_key_of(mine))

    def give(self, name: str, event: Event) -> list[Command]:
        """What is signed for is pinned before the signature leaves, as the leader's machine does."""
        if isinstance(event, LeanAnswered) and event.stage == "vouch":
            material = self.keepers[name].material
            assert material is not None
            if name not in self.pins or not self.pins[name].binds(material):
                self.pins[name] = Pin(event.key_id, event.vector)
            self.bodies[name].pin = self.pins[name].vector
        return super().give(name, event)

    def contribute(
        self, name: str, update: np.ndarray, round_no: int = 1, *, bounds: bytes = BOUNDS, base: np.ndarray = BASE
    ) -> Contributed:
        """One leader's upload; from now on it has an open contribution."""
        keeper, bodies = self.keepers[name], self.bodies[name]
        material = keeper.material
        assert material is not None
        pin = self.pins.get(name)
        pinned = pin.vector if pin and pin.binds(material) else ()
        ground = LeanGround(base, bounds, 0, keeper.sealing_private, pinned)
        made = run_job(self.tools[name], ProtectContribution(round_no, update, DeviceId(name), material, ground))
        assert isinstance(made, ContributionProtected), made
        bodies.open_body = OpenBody(round_no, material.key_id, SIZE, made.header, update, bounds)
        return Contributed(name, made.payload, 10, 1, 1)

    def uploaded(self, updates: dict[str, np.ndarray], round_no: int = 1) -> tuple[Contributed, ...]:
        return tuple(self.contribute(name, update, round_no) for name, update in updates.items())

    def lean_round(
        self, contributions: tuple[Contributed, ...], round_no: int = 1, *, wait_s: float = 300.0, attempt: int = 0
    ) -> RoundAggregated | None:
        """From the uploads to the opened sum."""
        office = self.office
        office.result, office.failures = None, []
        joint = office.maker.key
        assert joint is not None
        lean = LeanRound(joint, round_no, attempt, contributions, BASE, BOUNDS)
        sealed = self.sealed(contributions, round_no, attempt=attempt)
        decryption = office.decryption = LeanDecryption(sealed, lean, self.rules)
        self.carry_out(COORDINATOR, list(decryption.begin()))
        self.wait(wait_s, lambda: office.result is not None or bool(decryption.given_up))
        return office.result

    # --- a dishonest coordinator

    def asks(self, name: str, stage: str) -> list[bytes]:
        """The requests of a stage that a leader was sent, whole."""
        return [
            message.body
            for sender, topic, message in self.sent
            if (sender, topic.kind, topic.receiver) == (COORDINATOR, Kind.DECRYPT, name)
            and isinstance(message, Part)
            and message.stage.startswith(stage)
            and message.parts == 1
        ]

    def ask(self, name: str, stage: str, body: object, round_no: int = 1) -> LeanAnswer | None:
        """Ask a leader with a made-up request; its answer, or None if there is none."""
        label = f"{stage}.9.{len(self.sent)}"
        before = len(self.sent)
        request = body if isinstance(body, bytes) else encode_body(body)  # type: ignore[arg-type]
        for part in split_body(request, 2, round_no, label):
            self.give(name, Arrived(Topic(Kind.DECRYPT, COORDINATOR, DeviceId(name)), part))
        while self._post:
            target, event = self._post.pop(0)
            if target == name:
                self.give(target, event)
        sent = [
            message
            for sender, topic, message in self.sent[before:]
            if sender == name and topic.kind is Kind.SHARE and getattr(message, "stage", "") == label
        ]
        bodies = [message.body for message in sent if hasattr(message, "body")]
        return decode_body(LeanAnswer, b"".join(bodies)) if bodies else None

    def reasons(self, phrase: str) -> list[str]:
        return [str(told.fields()["reason"]) for _, told in self.told if told.phrase == phrase]


def lean_updates(count: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Updates that the quantiser represents exactly."""
    return {
        name: (np.rint(update / UNIT) * UNIT).astype(np.float32)
        for name, update in updates_of(names(count), seed).items()
    }
