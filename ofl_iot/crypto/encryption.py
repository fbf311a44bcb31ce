"""Enc and Eval: models in the coefficients of ciphertexts, sums and weighted sums of them.

Coefficient packing: parameter j of row r is coefficient j of the r-th plaintext polynomial, so a ciphertext holds N
parameters. Enc(m) = (v·b + e0 + m, v·a + e1) under the joint public key (b, a) with b = -a·s + e.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ofl_iot.crypto import kernels, sampling
from ofl_iot.crypto.context import KeyContext, Origin
from ofl_iot.crypto.entropy import Entropy
from ofl_iot.crypto.frames import Framed, Kind, Note, check_rows
from ofl_iot.crypto.params import ParameterSet
from ofl_iot.crypto.ring import Integers, Residues, ring_of, shoup
from ofl_iot.errors import CryptoError
from ofl_iot.ids import COORDINATOR

Values = npt.NDArray[np.float32] | npt.NDArray[np.float64]

_BATCH = 16
"""Rows worked on at once: small enough for the processor's cache."""


class _KeyNote(Note, frozen=True):
    pass


@dataclass(frozen=True, eq=False)
class PublicKey(Framed):
    """The joint public key (b, a); `a` follows from the key context."""

    kind = Kind.PUBLIC_KEY
    note_type = _KeyNote

    origin: Origin
    b: Residues
    """`(limbs of Q, N)`."""

    @property
    def context(self) -> KeyContext:
        """What the key belongs to."""
        return self.origin.context

    @classmethod
    def layout(cls, params: ParameterSet) -> tuple[int, ...]:
        return (len(params.primes),)

    def body(self) -> tuple[Note, tuple[Residues, ...]]:
        return _KeyNote(), (self.b[:, None, :],)

    @classmethod
    def from_body(cls, origin: Origin, note: Note, stacks: tuple[Residues, ...]) -> PublicKey:  # noqa: ARG003
        check_rows("public key", stacks[0], 1)
        return cls(origin, np.ascontiguousarray(stacks[0][:, 0]))


class _ModelNote(Note, frozen=True):
    n_params: int
    scale_bits: int


@dataclass(frozen=True, eq=False)
class EncryptedModel(Framed):
    """A model under the joint key: fresh from a leader, or a weighted sum of such."""

    kind = Kind.MODEL
    note_type = _ModelNote

    origin: Origin
    n_params: int
    scale_bits: int
    """A parameter x is held as x·2^scale_bits."""
    c0: Residues
    c1: Residues

    @property
    def context(self) -> KeyContext:
        """The key it is encrypted under."""
        return self.origin.context

    @classmethod
    def layout(cls, params: ParameterSet) -> tuple[int, ...]:
        return (len(params.primes), len(params.primes))

    def body(self) -> tuple[Note, tuple[Residues, ...]]:
        return _ModelNote(self.n_params, self.scale_bits), (self.c0, self.c1)

    @classmethod
    def from_body(cls, origin: Origin, note: Note, stacks: tuple[Residues, ...]) -> EncryptedModel:
        assert isinstance(note, _ModelNote)  # noqa: S101 - decoded as note_type
        params = origin.context.params
        check_rows(f"model from {origin.sender}", stacks[0], params.rows(note.n_params))
        if note.scale_bits not in (params.scale_bits, params.scale_bits + params.weight_bits):
            raise CryptoError(f"model from {origin.sender}: scale 2^{note.scale_bits} is neither fresh nor weighted")
        return cls(origin, note.n_params, note.scale_bits, *stacks)


def common_polynomial(context: KeyContext, purpose: str, rows: int = 1, limbs: int | None = None) -> Residues:
    """Public uniform polynomials that all members derive alike from the key's id: `(limbs, rows, N)`."""
    params = context.params
    seed = b"ofl-iot common v1 " + context.key_id + purpose.encode()
    chain = params.primes[:limbs]
    return np.stack(
        [sampling.uniform_from_seed(seed, p, rows * params.degree).reshape(rows, params.degree) for p in chain]
    )


def encode(params: ParameterSet, values: Values, sender: str = "this model") -> Integers:
    """round(x·2^scale_bits) as rows of N integers, zero-padded; refuses values out of range."""
    if values.ndim != 1:
        raise CryptoError(f"{sender}: a model is one flat vector, got shape {values.shape}")
    inside = np.abs(values) <= params.bound  # false for nan
    if not inside.all():
        at = int(np.argmin(inside))
        raise CryptoError(
            f"{sender}: parameter {at} is {float(values[at]):g}; only finite values up to {params.bound:g} can be "
            "encrypted: clip the model or lower the learning rate"
        )
    out = np.zeros(params.rows(values.size) * params.degree, dtype=np.int64)
    out[: values.size] = np.rint(values.astype(np.float64) * params.scale)
    return out.reshape(-1, params.degree)


def encrypt(key: PublicKey, values: Values, origin: Origin, entropy: Entropy) -> EncryptedModel:
    """Enc of a whole model: ceil(n/N) ciphertexts."""
    params = key.context.params
    message = encode(params, values, f"model of {origin.sender}")
    c0, c1 = encrypt_rows(key, message, len(params.primes), entropy)
    return EncryptedModel(origin, values.size, params.scale_bits, c0, c1)


def encrypt_rows(key: PublicKey, message: Integers, limbs: int, entropy: Entropy) -> tuple[Residues, Residues]:
    """Enc of integer rows `(rows, N)`: (v·b + e0 + m, v·a + e1), as two stacks."""
    ring = ring_of(key.context.params)
    a = common_polynomial(key.context, "a")[:, 0]
    rows = len(message)
    c0 = np.empty((limbs, rows, ring.degree), dtype=np.uint32)
    c1 = np.empty_like(c0)
    tables = [
        (np.uint32(p), key.b[limb], shoup(key.b[limb], p), a[limb], shoup(a[limb], p))
        for limb, p in enumerate(ring.moduli[:limbs])
    ]
    for start in range(0, rows, _BATCH):
        batch = slice(start, min(rows, start + _BATCH))
        shape = (batch.stop - start, ring.degree)
        mask = sampling.ternary(shape, entropy)
        first = message[batch] + sampling.centred_binomial(shape, entropy)
        second = sampling.centred_binomial(shape, entropy)
        for limb, (p, b, b_shoup, a_limb, a_shoup) in enumerate(tables):
            v = ring.limb_of(mask, limb)
            ring.limb_into(first, limb, c0[limb, batch])
            ring.limb_into(second, limb, c1[limb, batch])
            kernels.multiply_add(v, b, b_shoup, p, c0[limb, batch])
            kernels.multiply_add(v, a_limb, a_shoup, p, c1[limb, batch])
    return c0, c1


def encrypt_zero(key: PublicKey, rows: int, entropy: Entropy) -> tuple[Residues, Residues]:
    """Fresh Enc(0), which re-randomises whatever it is added to."""
    params = key.context.params
    return encrypt_rows(key, np.zeros((rows, params.degree), dtype=np.int64), len(params.primes), entropy)


def add(first: EncryptedModel, second: EncryptedModel) -> EncryptedModel:
    """Eval, addition: the sum of two models (which must stay within the bound)."""
    _check_alike(first, second)
    ring = ring_of(first.context.params)
    c0, c1 = first.c0.copy(), first.c1.copy()
    ring.scale_add(second.c0, 1, c0)
    ring.scale_add(second.c1, 1, c1)
    return replace(first, c0=c0, c1=c1)


def weighted_sum(models: Sequence[EncryptedModel], weights: Sequence[float]) -> EncryptedModel:
    """Eval, Σ w_i·θ_i with |w_1| + … <= 1 (line 14 of Algorithm 4): integers round(w·2^weight_bits) fill Q."""
    if not models or len(models) != len(weights):
        raise CryptoError(f"a weighted sum of {len(models)} models needs as many weights, got {len(weights)}")
    total = float(np.sum(np.abs(weights)))
    if not total <= 1 + 1e-9:  # also refuses nan
        raise CryptoError(f"weights whose absolute values sum to {total:g} can overflow: they must sum to at most 1")
    first = models[0]
    params = first.context.params
    ring = ring_of(params)
    c0, c1 = np.zeros_like(first.c0), np.zeros_like(first.c1)
    for model, weight in zip(models, weights, strict=True):
        _check_alike(first, model)
        if model.scale_bits != params.scale_bits:
            raise CryptoError(f"model from {model.origin.sender}: only fresh models can be weighted")
        number = round(float(weight) * 2.0**params.weight_bits)
        ring.scale_add(model.c0, number, c0)
        ring.scale_add(model.c1, number, c1)
    origin = replace(first.origin, sender=COORDINATOR)
    return EncryptedModel(origin, first.n_params, params.scale_bits + params.weight_bits, c0, c1)


def _check_alike(first: EncryptedModel, other: EncryptedModel) -> None:
    title = f"model from {other.origin.sender}"
    if other.context != first.context:
        raise CryptoError(f"{title}: encrypted under another key than that of {first.origin.sender}")
    if other.origin.round_no != first.origin.round_no:
        raise CryptoError(f"{title}: of round {other.origin.round_no}, not {first.origin.round_no}")
    if (other.n_params, other.scale_bits) != (first.n_params, first.scale_bits):
        raise CryptoError(
            f"{title}: {other.n_params} parameters at 2^{other.scale_bits}, not like {first.origin.sender}"
        )
