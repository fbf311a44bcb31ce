"""The joint relinearisation key for u = s·conj(s), made in two broadcast rounds (after Mouchet et al., 2021).

With the gadget g_j = 1 modulo prime j and 0 modulo the others, and public a_j:

    round 1   h0_ij = -w_i·a_j + conj(s_i)·g_j + e      h1_ij = s_i·a_j + e'      H = Σ h
    round 2   k_ij  = s_i·H0_j + (w_i - s_i)·H1_j + e''
    key       (Σ k_ij, H1_j), for which  key0 + key1·s = u·g_j + noise

A member must form H itself from the others' broadcasts, or trust whoever formed it: with a chosen H, round 2 would
give s_i away. Round 2 names the digest of the H it used, so a split view does not go unnoticed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ofl_iot.crypto import kernels, sampling
from ofl_iot.crypto.context import KeyContext, Origin
from ofl_iot.crypto.encryption import common_polynomial
from ofl_iot.crypto.entropy import Entropy
from ofl_iot.crypto.frames import Framed, Kind, Note, check_rows
from ofl_iot.crypto.keygen import KEY_ROUND, LeaderSecret, in_member_order
from ofl_iot.crypto.params import ParameterSet
from ofl_iot.crypto.ring import Residues, Ring, conjugate, ring_of
from ofl_iot.errors import CryptoError
from ofl_iot.ids import COORDINATOR


class _NoNote(Note, frozen=True):
    pass


class _CompletionNote(Note, frozen=True):
    first_digest: bytes


@dataclass(frozen=True, eq=False)
class RelinContribution(Framed):
    """A member's broadcast of round 1; rows are gadget digits."""

    kind = Kind.RELIN_CONTRIBUTION
    note_type = _NoNote

    origin: Origin
    h0: Residues
    h1: Residues

    @classmethod
    def layout(cls, params: ParameterSet) -> tuple[int, ...]:
        return (len(params.primes), len(params.primes))

    def body(self) -> tuple[Note, tuple[Residues, ...]]:
        return _NoNote(), (self.h0, self.h1)

    @classmethod
    def from_body(cls, origin: Origin, note: Note, stacks: tuple[Residues, ...]) -> RelinContribution:  # noqa: ARG003
        check_rows(f"relin contribution from {origin.sender}", stacks[0], len(origin.context.params.primes))
        return cls(origin, *stacks)

    @property
    def digest(self) -> bytes:
        """16 bytes that name this content."""
        return hashlib.sha256(self.h0.tobytes() + self.h1.tobytes()).digest()[:16]


@dataclass(frozen=True, eq=False)
class RelinFirst(RelinContribution):
    """The sum H of round 1."""

    kind = Kind.RELIN_FIRST


@dataclass(frozen=True, eq=False)
class RelinKey(RelinContribution):
    """The relinearisation key; `h0` and `h1` are its two halves."""

    kind = Kind.RELIN_KEY


@dataclass(frozen=True, eq=False)
class RelinCompletion(Framed):
    """A member's broadcast of round 2."""

    kind = Kind.RELIN_COMPLETION
    note_type = _CompletionNote

    origin: Origin
    first_digest: bytes
    k: Residues

    @classmethod
    def layout(cls, params: ParameterSet) -> tuple[int, ...]:
        return (len(params.primes),)

    def body(self) -> tuple[Note, tuple[Residues, ...]]:
        return _CompletionNote(self.first_digest), (self.k,)

    @classmethod
    def from_body(cls, origin: Origin, note: Note, stacks: tuple[Residues, ...]) -> RelinCompletion:
        assert isinstance(note, _CompletionNote)  # noqa: S101 - decoded as note_type
        check_rows(f"relin completion from {origin.sender}", stacks[0], len(origin.context.params.primes))
        return cls(origin, note.first_digest, stacks[0])


def _errors(ring: Ring, digits: int, entropy: Entropy) -> Residues:
    return ring.from_integers(sampling.centred_binomial((digits, ring.degree), entropy), digits)


def generate_share(secret: LeaderSecret, entropy: Entropy) -> RelinContribution:
    """Round 1 of one member."""
    context = secret.origin.context
    ring = ring_of(context.params)
    digits = len(context.params.primes)
    a = common_polynomial(context, "relin", digits)[:digits]
    s, mask = secret.s[:digits, None], secret.mask[:digits, None]
    h0 = ring.subtract(_errors(ring, digits, entropy), ring.multiply(a, mask))
    for digit in range(digits):  # conj(s)·g_j touches limb j of digit j only
        p = np.uint64(ring.moduli[digit])
        h0[digit, digit] = (h0[digit, digit].astype(np.uint64) + conjugate(secret.s[digit])) % p
    h1 = ring.add(_errors(ring, digits, entropy), ring.multiply(a, s))
    return RelinContribution(secret.origin, h0, h1)


def combine_shares(context: KeyContext, contributions: Iterable[RelinContribution]) -> RelinFirst:
    """H = Σ h over all members."""
    ring = ring_of(context.params)
    ordered = in_member_order(context, list(contributions))
    h0, h1 = ordered[0].h0, ordered[0].h1
    for contribution in ordered[1:]:
        h0, h1 = ring.add(h0, contribution.h0), ring.add(h1, contribution.h1)
    return RelinFirst(Origin(context, KEY_ROUND, COORDINATOR), h0, h1)


def complete_share(secret: LeaderSecret, first: RelinFirst, entropy: Entropy) -> RelinCompletion:
    """Round 2 of one member."""
    context = secret.origin.context
    if first.origin.context != context:
        raise CryptoError(f"the first round of the relinearisation key belongs to another key than term {context.term}")
    ring = ring_of(context.params)
    digits = len(context.params.primes)
    s, mask = secret.s[:digits, None], secret.mask[:digits, None]
    k = ring.add(ring.multiply(first.h0, s), ring.multiply(first.h1, ring.subtract(mask, s)))
    return RelinCompletion(secret.origin, first.digest, ring.add(k, _errors(ring, digits, entropy)))


def combine_completions(first: RelinFirst, completions: Iterable[RelinCompletion]) -> RelinKey:
    """The joint relinearisation key (Σ k, H1)."""
    context = first.origin.context
    ring = ring_of(context.params)
    ordered = in_member_order(context, list(completions))
    digest = first.digest
    for completion in ordered:
        if completion.first_digest != digest:
            raise CryptoError(f"relin completion from {completion.origin.sender}: it saw another first round")
    k = ordered[0].k
    for completion in ordered[1:]:
        k = ring.add(k, completion.k)
    return RelinKey(first.origin, k, first.h1)


def relinearise(key: RelinKey, a11: Residues) -> tuple[Residues, Residues]:
    """Polynomials `(limbs, N)` with x0 + x1·s = a11·u + noise: Σ over digits of [a11]_j · key_j."""
    ring = ring_of(key.origin.context.params)
    x0, x1 = np.zeros_like(a11), np.zeros_like(a11)
    for digit in range(len(a11)):
        coefficients = a11[digit : digit + 1].copy()
        ring.untransform(coefficients, digit)
        lifted = np.empty((len(a11), 1, ring.degree), dtype=np.uint32)
        for limb in range(len(a11)):
            kernels.lift_centred(coefficients, ring.primes[digit].value, ring.primes[limb].value, lifted[limb])
            ring.transform(lifted[limb], limb)
        x0 = ring.add(x0, ring.multiply(lifted[:, 0], key.h0[:, digit]))
        x1 = ring.add(x1, ring.multiply(lifted[:, 0], key.h1[:, digit]))
    return x0, x1
