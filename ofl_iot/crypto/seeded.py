"""Uploads of half the size: only one half of each ciphertext travels.

A leader draws a key κ for this upload alone and encrypts under it with a public, seed-expanded `a` of the round:

    c0 = -a·κ + e + m                       (the other half is `a`, which everybody expands)
    κ* = Enc(P·g_d·κ) under the joint key   (one switching key an upload, digits d of two primes each)

The coordinator turns it into an ordinary ciphertext: (c0, 0) + Σ_d [a]_d·κ*_d / P. It scores and sums exactly what it
converted, so a wrong switching key spoils only its sender's own model, in sight of the scores. Use it with the `seeded`
parameter set; below about 300,000 parameters the switching key outweighs what is saved.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ofl_iot.crypto import kernels, sampling
from ofl_iot.crypto.context import KeyContext, Origin
from ofl_iot.crypto.encryption import EncryptedModel, PublicKey, Values, common_polynomial, encode, encrypt_rows
from ofl_iot.crypto.entropy import Entropy
from ofl_iot.crypto.frames import Framed, Kind, Note, check_rows
from ofl_iot.crypto.params import ParameterSet
from ofl_iot.crypto.ring import Residues, Ring, Small, ring_of, shoup_number
from ofl_iot.errors import ConfigError, CryptoError


class _ModelNote(Note, frozen=True):
    n_params: int


class _NoNote(Note, frozen=True):
    pass


@dataclass(frozen=True, eq=False)
class SeededModel(Framed):
    """A model under a leader's upload key: the half that travels."""

    kind = Kind.SEEDED_MODEL
    note_type = _ModelNote

    origin: Origin
    n_params: int
    c0: Residues

    @classmethod
    def layout(cls, params: ParameterSet) -> tuple[int, ...]:
        return (len(params.primes),)

    def body(self) -> tuple[Note, tuple[Residues, ...]]:
        return _ModelNote(self.n_params), (self.c0,)

    @classmethod
    def from_body(cls, origin: Origin, note: Note, stacks: tuple[Residues, ...]) -> SeededModel:
        assert isinstance(note, _ModelNote)  # noqa: S101 - decoded as note_type
        check_rows(f"seeded model from {origin.sender}", stacks[0], origin.context.params.rows(note.n_params))
        return cls(origin, note.n_params, stacks[0])


@dataclass(frozen=True, eq=False)
class SwitchingKey(Framed):
    """An upload key under the joint key; rows are gadget digits."""

    kind = Kind.SWITCHING_KEY
    note_type = _NoNote

    origin: Origin
    k0: Residues
    k1: Residues

    @classmethod
    def layout(cls, params: ParameterSet) -> tuple[int, ...]:
        return (len(params.primes + params.special_primes),)

    def body(self) -> tuple[Note, tuple[Residues, ...]]:
        return _NoNote(), (np.concatenate([self.k0, self.k1], axis=1),)

    @classmethod
    def from_body(cls, origin: Origin, note: Note, stacks: tuple[Residues, ...]) -> SwitchingKey:  # noqa: ARG003
        digits = digits_of(origin.context.params)
        check_rows(f"switching key from {origin.sender}", stacks[0], 2 * digits)
        return cls(origin, stacks[0][:, :digits].copy(), stacks[0][:, digits:].copy())


@dataclass(frozen=True, eq=False)
class RoundExpansion:
    """The round's public `a`, cut into digits: computed once, used for every leader's upload."""

    context: KeyContext
    round_no: int
    digits: tuple[Residues, ...]
    """Each digit as a stack `(limbs of Q·P, rows, N)`."""


def digits_of(params: ParameterSet) -> int:
    """Gadget digits: two primes of Q each."""
    if len(params.special_primes) != 2 or len(params.primes) % 2:
        raise ConfigError(
            f"parameter set {params.name!r} has no keys to switch with: use 'seeded' for half-size uploads"
        )
    return len(params.primes) // 2


def encrypt_seeded(
    key: PublicKey, values: Values, origin: Origin, entropy: Entropy
) -> tuple[SeededModel, SwitchingKey]:
    """Encrypt a model under a fresh upload key; send both results."""
    params = key.context.params
    digits_of(params)
    ring = ring_of(params)
    limbs = len(params.primes)
    message = encode(params, values, f"model of {origin.sender}")
    a = _round_polynomial(key.context, origin.round_no, len(message))
    upload_key = sampling.ternary((1, params.degree), entropy)
    c0 = ring.from_integers(message + sampling.centred_binomial(message.shape, entropy), limbs)
    ring.multiply_add(a, ring.from_integers(-upload_key, limbs)[:, 0], c0)
    return SeededModel(origin, values.size, c0), _switching_key(key, upload_key, origin, entropy)


def _round_polynomial(context: KeyContext, round_no: int, rows: int) -> Residues:
    return common_polynomial(context, f"round {round_no}", rows, len(context.params.primes))


def _switching_key(key: PublicKey, upload_key: Small, origin: Origin, entropy: Entropy) -> SwitchingKey:
    params = key.context.params
    ring = ring_of(params)
    digits = digits_of(params)
    zeros = np.zeros((digits, params.degree), dtype=np.int64)
    k0, k1 = encrypt_rows(key, zeros, len(ring.moduli), entropy)
    for limb, p in enumerate(params.primes):  # P·g_d·κ touches the two limbs of digit d only
        carried = ring.limb_of(upload_key, limb)
        factor = params.special_modulus % p
        row = slice(limb // 2, limb // 2 + 1)
        kernels.scale_add(carried, np.uint32(factor), shoup_number(factor, p), np.uint32(p), k0[limb, row])
    return SwitchingKey(origin, k0, k1)


def expand_round(context: KeyContext, round_no: int, n_params: int) -> RoundExpansion:
    """Cut the round's `a` into digits modulo every prime of Q·P."""
    params = context.params
    ring = ring_of(params)
    a = _round_polynomial(context, round_no, params.rows(n_params))
    digits = []
    for digit in range(digits_of(params)):
        pair = (2 * digit, 2 * digit + 1)
        value = ring.join(a[pair[0]], a[pair[1]], pair)
        stack = np.empty((len(ring.moduli), *a.shape[1:]), dtype=np.uint32)
        for limb in range(len(ring.moduli)):
            stack[limb] = a[limb] if limb in pair else ring.limb_of(value, limb)
        digits.append(stack)
    return RoundExpansion(context, round_no, tuple(digits))


def convert(expansion: RoundExpansion, model: SeededModel, switching: SwitchingKey) -> EncryptedModel:
    """The same model under the joint key: (c0, 0) + Σ_d [a]_d·κ*_d / P."""
    origin = model.origin
    title = f"seeded model from {origin.sender}"
    if switching.origin != origin:
        raise CryptoError(f"{title}: its switching key comes from {switching.origin.sender} or another round")
    if (origin.context, origin.round_no) != (expansion.context, expansion.round_no):
        raise CryptoError(f"{title}: of round {origin.round_no}, this is round {expansion.round_no}")
    if model.c0.shape[1] != expansion.digits[0].shape[1]:
        raise CryptoError(f"{title}: {model.n_params} parameters are not what the round is about")
    ring = ring_of(expansion.context.params)
    c0 = _switched(ring, expansion, switching.k0)
    ring.scale_add(model.c0, 1, c0)
    c1 = _switched(ring, expansion, switching.k1)
    return EncryptedModel(origin, model.n_params, expansion.context.params.scale_bits, c0, c1)


def _switched(ring: Ring, expansion: RoundExpansion, half: Residues) -> Residues:
    """Σ_d [a]_d·half_d, divided by P and rounded: a stack modulo Q."""
    params = expansion.context.params
    total = np.zeros_like(expansion.digits[0])
    for digit, stack in enumerate(expansion.digits):
        ring.multiply_add(stack, np.ascontiguousarray(half[:, digit]), total)
    limbs = len(params.primes)
    rest = ring.join(total[limbs], total[limbs + 1], (limbs, limbs + 1))
    for limb, p in enumerate(params.primes):
        inverse = pow(params.special_modulus, -1, p)
        kernels.subtract_scale(
            total[limb], ring.limb_of(rest, limb), np.uint32(inverse), shoup_number(inverse, p), np.uint32(p)
        )
    return total[:limbs]
