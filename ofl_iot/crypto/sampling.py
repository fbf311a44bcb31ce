"""The distributions of secrets and noise, made of uniform bytes; public polynomials are expanded from a seed."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Final

import numpy as np

from ofl_iot.crypto import sampling_kernels as kernels
from ofl_iot.crypto.entropy import Entropy
from ofl_iot.crypto.ring import Integers, Residues, Small
from ofl_iot.errors import CryptoError

_FULL_BITS: Final = 32
"""Deviations up to 2^32 have every low bit filled by the sampler's 40 random bits."""


def ternary(shape: tuple[int, ...], entropy: Entropy) -> Small:
    """Uniform -1, 0, 1: secrets and the mask v of Enc."""
    out = np.empty(math.prod(shape), dtype=np.int8)
    made = 0
    while made < out.size:
        octets = (out.size - made) // 4 + 16
        made += kernels.ternary(np.frombuffer(entropy.random_bytes(octets), dtype=np.uint8), out[made:])
    return out.reshape(shape)


def centred_binomial(shape: tuple[int, ...], entropy: Entropy) -> Small:
    """Encryption errors: difference of two binomials of 21 coins, deviation sqrt(21/2) = 3.24."""
    out = np.empty(math.prod(shape), dtype=np.int8)
    words = np.frombuffer(entropy.random_bytes(16 * -(-out.size // 3)), dtype=np.uint64)
    kernels.centred_binomial(words, out)
    return out.reshape(shape)


def gaussian(shape: tuple[int, ...], sigma: float, entropy: Entropy) -> Integers:
    """Wide rounded Gaussian noise for flooding and smudging.

    Beyond 2^32 the float's low bits would be zero, and a noise that is a multiple of 2^k hides nothing of the low k
    bits: there the Gaussian is drawn 2^k times narrower and the low k bits are uniform.
    """
    if not 0 < sigma < 2.0**57:
        raise CryptoError(f"noise of deviation {sigma:g} cannot be sampled in 64 bits")
    low_bits = max(0, math.ceil(math.log2(sigma)) - _FULL_BITS)
    pairs = -(-math.prod(shape) // 2)
    out = np.empty(2 * pairs, dtype=np.int64)
    words = np.frombuffer(entropy.random_bytes(8 * pairs), dtype=np.uint64)
    more = np.frombuffer(entropy.random_bytes(2 * pairs), dtype=np.uint16)
    kernels.gaussian(words, more, math.ldexp(sigma, -low_bits), out)
    if low_bits:
        fill = np.frombuffer(entropy.random_bytes(8 * out.size), dtype=np.uint64) >> np.uint64(64 - low_bits)
        out = (out << low_bits) + fill.astype(np.int64)
    return out[: math.prod(shape)].reshape(shape)


def uniform(p: int, count: int, entropy: Entropy) -> Residues:
    """Uniform residues modulo p by rejection: coefficients of Shamir polynomials."""
    return _rejected(p, count, entropy.random_bytes)


def uniform_from_seed(seed: bytes, p: int, count: int) -> Residues:
    """Public uniform residues modulo p, the same for everyone who knows the seed: SHAKE-128(seed, p)."""
    stream = hashlib.shake_128(seed + p.to_bytes(8, "little"))
    taken = 0

    def next_bytes(wanted: int) -> bytes:
        nonlocal taken
        taken += wanted
        return stream.digest(taken)[-wanted:]

    return _rejected(p, count, next_bytes)


def _rejected(p: int, count: int, next_bytes: Callable[[int], bytes]) -> Residues:
    bits = p.bit_length()
    kept: list[Residues] = []
    missing = count
    while missing > 0:
        wanted = math.ceil(1.01 * missing * (1 << bits) / p) + 64
        words = np.frombuffer(next_bytes(4 * wanted), dtype="<u4") & np.uint32((1 << bits) - 1)
        kept.append(words[words < p][:missing])
        missing -= kept[-1].size
    return np.concatenate(kept).astype(np.uint32)
