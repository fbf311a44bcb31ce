"""The joint key of a term without a dealer, and its Shamir shares.

Every member draws s_i and broadcasts b_i = -a·s_i + e_i; the public key is b = Σ b_i under the secret s = Σ s_i that
exists nowhere. For t of n, every member also deals s_i: a random polynomial of degree t - 1 with s_i as its constant
term, modulo each prime of q_dec, evaluated at the receiver's point and sealed to the receiver. A member's key share
is the sum of what it was dealt.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from ofl_iot.crypto import sampling
from ofl_iot.crypto.context import KeyContext, Origin
from ofl_iot.crypto.encryption import PublicKey, common_polynomial
from ofl_iot.crypto.entropy import Entropy
from ofl_iot.crypto.frames import Framed, Kind, Note, check_rows
from ofl_iot.crypto.params import DECRYPTION_LIMBS, ParameterSet
from ofl_iot.crypto.ring import Residues, ring_of
from ofl_iot.errors import CryptoError
from ofl_iot.ids import COORDINATOR, DeviceId

KEY_ROUND = 0
"""Key generation happens before round 1 of a term; its messages say round 0."""


class _NoNote(Note, frozen=True):
    pass


class _DealNote(Note, frozen=True):
    receiver: str


def _all_limbs(params: ParameterSet) -> int:
    return len(params.primes)


@dataclass(frozen=True, eq=False)
class LeaderSecret(Framed):
    """What a member keeps to itself while the key is made; delete it when its key share is stored."""

    kind = Kind.LEADER_SECRET
    note_type = _NoNote

    origin: Origin
    s: Residues = field(repr=False)
    """The member's part of the joint secret, ternary."""
    mask: Residues = field(repr=False)
    """The ternary mask of the relinearisation protocol."""

    @classmethod
    def layout(cls, params: ParameterSet) -> tuple[int, ...]:
        return (_all_limbs(params), _all_limbs(params))

    def body(self) -> tuple[Note, tuple[Residues, ...]]:
        return _NoNote(), (self.s[:, None], self.mask[:, None])

    @classmethod
    def from_body(cls, origin: Origin, note: Note, stacks: tuple[Residues, ...]) -> LeaderSecret:  # noqa: ARG003
        check_rows("leader secret", stacks[0], 1)
        return cls(origin, stacks[0][:, 0].copy(), stacks[1][:, 0].copy())


@dataclass(frozen=True, eq=False)
class KeyContribution(Framed):
    """A member's broadcast b_i."""

    kind = Kind.KEY_CONTRIBUTION
    note_type = _NoNote

    origin: Origin
    b: Residues

    @classmethod
    def layout(cls, params: ParameterSet) -> tuple[int, ...]:
        return (_all_limbs(params),)

    def body(self) -> tuple[Note, tuple[Residues, ...]]:
        return _NoNote(), (self.b[:, None],)

    @classmethod
    def from_body(cls, origin: Origin, note: Note, stacks: tuple[Residues, ...]) -> KeyContribution:  # noqa: ARG003
        check_rows(f"key contribution from {origin.sender}", stacks[0], 1)
        return cls(origin, stacks[0][:, 0].copy())


@dataclass(frozen=True, eq=False)
class KeyDeal(Framed):
    """One member's Shamir share of its s_i for one receiver; travels sealed only."""

    kind = Kind.KEY_DEAL
    note_type = _DealNote

    origin: Origin
    receiver: DeviceId
    values: Residues = field(repr=False)

    @classmethod
    def layout(cls, params: ParameterSet) -> tuple[int, ...]:  # noqa: ARG003
        return (DECRYPTION_LIMBS,)

    def body(self) -> tuple[Note, tuple[Residues, ...]]:
        return _DealNote(self.receiver), (self.values[:, None],)

    @classmethod
    def from_body(cls, origin: Origin, note: Note, stacks: tuple[Residues, ...]) -> KeyDeal:
        assert isinstance(note, _DealNote)  # noqa: S101 - decoded as note_type
        check_rows(f"key deal from {origin.sender}", stacks[0], 1)
        return cls(origin, DeviceId(note.receiver), stacks[0][:, 0].copy())


@dataclass(frozen=True, eq=False)
class KeyShare(Framed):
    """A member's share of the joint secret modulo q_dec; `origin.sender` is its owner."""

    kind = Kind.KEY_SHARE
    note_type = _NoNote

    origin: Origin
    values: Residues = field(repr=False)

    @property
    def context(self) -> KeyContext:
        """What the share belongs to."""
        return self.origin.context

    @property
    def owner(self) -> DeviceId:
        """The member that holds it."""
        return self.origin.sender

    @classmethod
    def layout(cls, params: ParameterSet) -> tuple[int, ...]:  # noqa: ARG003
        return (DECRYPTION_LIMBS,)

    def body(self) -> tuple[Note, tuple[Residues, ...]]:
        return _NoNote(), (self.values[:, None],)

    @classmethod
    def from_body(cls, origin: Origin, note: Note, stacks: tuple[Residues, ...]) -> KeyShare:  # noqa: ARG003
        check_rows("key share", stacks[0], 1)
        return cls(origin, stacks[0][:, 0].copy())


def generate_secret(context: KeyContext, me: DeviceId, entropy: Entropy) -> LeaderSecret:
    """Draw a member's ternary secret and mask."""
    context.point_of(me)
    ring = ring_of(context.params)
    s, mask = (
        ring.from_integers(sampling.ternary((1, ring.degree), entropy), len(ring.moduli))[:, 0] for _ in range(2)
    )
    return LeaderSecret(Origin(context, KEY_ROUND, me), s, mask)


def generate_share(secret: LeaderSecret, entropy: Entropy) -> KeyContribution:
    """The member's part of the public key: b_i = -a·s_i + e_i."""
    context = secret.origin.context
    ring = ring_of(context.params)
    a = common_polynomial(context, "a")[:, 0]
    e = ring.from_integers(sampling.centred_binomial((1, ring.degree), entropy), len(ring.moduli))[:, 0]
    return KeyContribution(secret.origin, ring.subtract(e, ring.multiply(a, secret.s)))


def combine_shares(context: KeyContext, contributions: Iterable[KeyContribution]) -> PublicKey:
    """The joint public key b = Σ b_i; every member must have contributed exactly once."""
    ring = ring_of(context.params)
    ordered = in_member_order(context, list(contributions))
    b = ordered[0].b
    for contribution in ordered[1:]:
        b = ring.add(b, contribution.b)
    return PublicKey(Origin(context, KEY_ROUND, COORDINATOR), b)


def generate_deals(secret: LeaderSecret, entropy: Entropy) -> dict[DeviceId, KeyDeal]:
    """Shamir shares of s_i for every member (also for oneself), modulo each prime of q_dec."""
    context = secret.origin.context
    ring = ring_of(context.params)
    shares = {member: np.empty((DECRYPTION_LIMBS, ring.degree), dtype=np.uint32) for member in context.members}
    for limb, p in enumerate(ring.moduli[:DECRYPTION_LIMBS]):
        modulus = np.uint64(p)
        coefficients = [sampling.uniform(p, ring.degree, entropy) for _ in range(context.threshold - 1)]
        for member, share in shares.items():
            point = np.uint64(context.point_of(member))
            value = np.zeros(ring.degree, dtype=np.uint64)
            for coefficient in (*coefficients, secret.s[limb]):
                value = (value * point + coefficient) % modulus
            share[limb] = value
    return {member: KeyDeal(secret.origin, member, share) for member, share in shares.items()}


def combine_deals(context: KeyContext, me: DeviceId, deals: Iterable[KeyDeal]) -> KeyShare:
    """A member's key share: the sum of what every member dealt it."""
    ring = ring_of(context.params)
    ordered = in_member_order(context, list(deals))
    for deal in ordered:
        if deal.receiver != me:
            raise CryptoError(f"key deal from {deal.origin.sender}: made for {deal.receiver}, not for {me}")
    values = ordered[0].values
    for deal in ordered[1:]:
        values = ring.add(values, deal.values)
    return KeyShare(Origin(context, KEY_ROUND, me), values)


AnyFramed = TypeVar("AnyFramed", bound=Framed)


def in_member_order(context: KeyContext, received: Sequence[AnyFramed]) -> list[AnyFramed]:
    """Exactly one object of every member, in the members' order."""
    by_sender: dict[DeviceId, AnyFramed] = {}
    for item in received:
        sender = item.origin.sender
        title = f"{item.kind.words} from {sender}"
        context.point_of(sender)
        if item.origin.context != context:
            raise CryptoError(f"{title}: made for another key than that of term {context.term}")
        if sender in by_sender:
            raise CryptoError(f"{title}: came twice")
        by_sender[sender] = item
    missing = [member for member in context.members if member not in by_sender]
    if missing:
        raise CryptoError(f"key generation lacks {', '.join(missing)}: start again without them")
    return [by_sender[member] for member in context.members]
