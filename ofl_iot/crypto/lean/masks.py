"""Key-homomorphic masks: bodies of P bits a parameter whose weighted sum opens with the weighted sum of their keys.

    body     c_i = m_i + round(p/q·(a_r·k_i + e_i)) mod p       p = 2^P, k_i uniform modulo q, e_i Gaussian
    sum      C = Σ w_i·c_i mod p,   K = Σ w_i·k_i mod q
    open     C - round(p/q·(a_r·K mod q)) mod p = Σ w_i·m_i, up to `params.error_limit`

a_r is public: row r of SHAKE-128(key id, round). It is expanded in transformed form, where uniform is uniform, so a
row costs one inverse transform for each prime. A key masks ONE body: resend the same bytes, or draw another key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from ofl_iot.crypto import kernels as ring_kernels
from ofl_iot.crypto import sampling
from ofl_iot.crypto.entropy import Entropy
from ofl_iot.crypto.lean import kernels
from ofl_iot.crypto.lean.params import (
    CONTROLS,
    DEGREE,
    ERROR_SIGMA,
    PRIMES,
    body_bytes,
    check_precision,
    error_limit,
    padded,
    value_limit,
)
from ofl_iot.crypto.ring import Integers, Prime, Residues, shoup
from ofl_iot.errors import CryptoError, WrongShareError

Whole = npt.NDArray[np.int32]

_BATCH: Final = 16
_INVERSE: Final = pow(PRIMES[0], -1, PRIMES[1])


@lru_cache(maxsize=1)
def _tables() -> tuple[Prime, Prime]:
    return Prime.of(PRIMES[0], DEGREE), Prime.of(PRIMES[1], DEGREE)


@dataclass(frozen=True, eq=False)
class MaskKey:
    """A polynomial modulo q by its residues `(2, n)`: the key of one body, or a weighted sum of keys."""

    residues: Residues = field(repr=False)

    @classmethod
    def draw(cls, entropy: Entropy) -> MaskKey:
        """A fresh uniform key. Ternary ones would be read off a sum of few."""
        return cls(np.stack([sampling.uniform(p, DEGREE, entropy) for p in PRIMES]))


@dataclass(frozen=True)
class MaskDomain:
    """What the public polynomials of a round are expanded from."""

    key_id: bytes
    round_no: int

    def seed(self, row: int) -> bytes:
        """The seed of one row."""
        return (
            b"ofl-iot lean masks v1\n" + self.key_id + self.round_no.to_bytes(8, "little") + row.to_bytes(8, "little")
        )

    def rows(self, start: int, count: int) -> tuple[Residues, Residues]:
        """a_r of these rows modulo both primes, transformed."""
        first = np.empty((count, DEGREE), dtype=np.uint32)
        second = np.empty_like(first)
        for number in range(count):
            _expand(self.seed(start + number), first[number], second[number])
        return first, second


def _expand(seed: bytes, first: Residues, second: Residues) -> None:
    stream = hashlib.shake_128(seed)
    words = DEGREE + DEGREE // 8  # six in a hundred are rejected
    made = taken = 0
    while made < DEGREE:
        drawn = np.frombuffer(stream.digest(4 * words)[4 * taken :], dtype="<u4")
        made = int(kernels.expand(drawn, PRIMES[0], PRIMES[1], first, second, made))
        taken, words = words, words + 64


def _masks(domain: MaskDomain, key: MaskKey, count: int, precision: int, entropy: Entropy | None) -> Iterator[Residues]:
    """round(p/q·(a_r·key + e)) for `count` numbers, batch by batch; without entropy there is no e."""
    factors = []
    for prime, residues in zip(_tables(), key.residues, strict=True):
        transformed = residues.reshape(1, DEGREE).copy()
        ring_kernels.ntt_forward(transformed, prime.forward, prime.forward_shoup, prime.value)
        factors.append((transformed[0], shoup(transformed[0], int(prime.value))))
    total = -(-count // DEGREE)
    for start in range(0, total, _BATCH):
        rows = min(_BATCH, total - start)
        public = domain.rows(start, rows)
        for prime, (factor, factor_shoup), stack in zip(_tables(), factors, public, strict=True):
            kernels.multiply_rows(stack, factor, factor_shoup, prime.value)
            ring_kernels.ntt_inverse(
                stack,
                prime.backward,
                prime.backward_shoup,
                prime.value,
                prime.degree_inverse,
                prime.degree_inverse_shoup,
            )
        errors: Integers
        if entropy is None:
            errors = np.zeros((rows, DEGREE), dtype=np.int64)
        else:
            errors = sampling.gaussian((rows, DEGREE), ERROR_SIGMA, entropy)
        out = np.empty((rows, DEGREE), dtype=np.uint32)
        kernels.round_to_bits(public[0], public[1], errors, PRIMES[0], PRIMES[1], _INVERSE, precision, out)
        yield out.reshape(-1)[: count - start * DEGREE]


def mask_body(domain: MaskDomain, key: MaskKey, values: Whole, precision: int, entropy: Entropy) -> bytes:
    """The body of a contribution: quantised values and controls under a mask, P bits each."""
    check_precision(precision)
    if values.ndim != 1 or not np.issubdtype(values.dtype, np.integer):
        raise CryptoError(f"quantised values are one flat vector of integers, got {values.dtype} {values.shape}")
    limit = value_limit(precision)
    if values.size and int(np.abs(values).max()) > limit:
        raise CryptoError(f"a quantised value beyond {limit} would wrap around: clip the update first")
    out = np.zeros(padded(values.size), dtype=np.uint32)
    out[: values.size] = values.astype(np.int32).view(np.uint32)
    at = 0
    for masks in _masks(domain, key, out.size, precision, entropy):
        out[at : at + masks.size] += masks
        at += masks.size
    out &= np.uint32((1 << precision) - 1)
    packed = np.empty(out.size * precision // 64, dtype="<u8")
    ring_kernels.pack_bits(out, precision, packed)
    return packed.tobytes()


def read_body(body: bytes, n_params: int, precision: int) -> Residues:
    """The numbers of a body; refuses another size than the model's."""
    expected = body_bytes(n_params, precision)
    if len(body) != expected:
        raise CryptoError(f"a body of {len(body)} bytes: {n_params} parameters of {precision} bits take {expected}")
    out = np.empty(padded(n_params), dtype=np.uint32)
    ring_kernels.unpack_bits(np.frombuffer(body, dtype="<u8"), precision, out)
    return out


@dataclass(frozen=True, eq=False)
class MaskedSum:
    """C = Σ w_i·c_i modulo 2^P, with what is needed to open it."""

    domain: MaskDomain
    n_params: int
    precision: int
    total_weight: int
    numbers: Residues = field(repr=False)


def sum_bodies(
    domain: MaskDomain, bodies: Sequence[bytes], weights: Sequence[int], n_params: int, precision: int
) -> MaskedSum:
    """The weighted sum of bodies, still masked."""
    if len(bodies) != len(weights):
        raise CryptoError(f"{len(bodies)} bodies and {len(weights)} weights")
    total = np.zeros(padded(n_params), dtype=np.uint32)
    for body, weight in zip(bodies, weights, strict=True):
        total += np.uint32(weight) * read_body(body, n_params, precision)
    total &= np.uint32((1 << precision) - 1)
    return MaskedSum(domain, n_params, precision, sum(weights), total)


def open_sum(masked: MaskedSum, key: MaskKey) -> Whole:
    """Σ w_i·m_i, once K = Σ w_i·k_i is known; WrongShareError if the controls do not open to zero."""
    precision = masked.precision
    opened = masked.numbers.copy()
    at = 0
    for masks in _masks(masked.domain, key, opened.size, precision, None):
        opened[at : at + masks.size] -= masks
        at += masks.size
    opened &= np.uint32((1 << precision) - 1)
    signed = opened.astype(np.int32)
    signed[signed >= 1 << (precision - 1)] -= 1 << precision
    controls = signed[masked.n_params : masked.n_params + CONTROLS]
    if int(np.abs(controls).max()) > error_limit(masked.total_weight, precision):
        raise WrongShareError(
            f"round {masked.domain.round_no}: the answers do not open the sum: one of them is wrong, or a contributor "
            "shared another key than its body's",
            (),
        )
    out: Whole = signed[: masked.n_params]
    return out


def weighted_keys(keys: Sequence[MaskKey], weights: Sequence[int]) -> MaskKey:
    """K = Σ w_i·k_i modulo both primes, where the keys themselves are known."""
    out = np.zeros((len(PRIMES), DEGREE), dtype=np.uint64)
    for key, weight in zip(keys, weights, strict=True):
        out += np.uint64(weight) * key.residues
    moduli = np.array(PRIMES, dtype=np.uint64)[:, None]
    return MaskKey((out % moduli).astype(np.uint32))
