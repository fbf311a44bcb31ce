"""A sum of which nobody sees the terms: vectors hidden in samples of Ring-LWE, the secrets shared out (Shamir).

A device hides x as h = a·s + e + x modulo p, with public polynomials `a` and its own secret s. The sum of all h is
a·Σs + Σ(e + x), so whoever learns Σs, and nothing else of the secrets, learns the sum. Σs is put together from the
devices' sums of the shares they were dealt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

from ofl_iot.crypto import kernels
from ofl_iot.crypto.ring import Prime
from ofl_iot.errors import RefusedError

MODULUS = 1_073_692_673
"""p: a prime below 2^30 that is 1 modulo 2·DEGREE."""
DEGREE = 2048
"""Coefficients of a polynomial; with a ternary secret the security standard allows 54 bits of modulus at 128 bits."""
LWE_DEVIATION = 3.2

Residues = npt.NDArray[np.int64]


@cache
def _tables() -> Prime:
    return Prime.of(MODULUS, DEGREE)


def random_secret(rng: np.random.Generator) -> Residues:
    """A ternary polynomial, modulo p."""
    return rng.integers(-1, 2, DEGREE) % MODULUS


def masks(secret: Residues, count: int, public: np.random.Generator) -> Residues:
    """The first `count` coefficients of a_1·s, a_2·s, …; whoever has the same public generator has the same a.

    The a are drawn in transformed form, which is as uniform as they are.
    """
    tables = _tables()
    transformed = secret.astype(np.uint32)[None]
    kernels.ntt_forward(transformed, tables.forward, tables.forward_shoup, tables.value)
    rows = -(-count // DEGREE)
    product = public.integers(0, MODULUS, (rows, DEGREE)) * transformed.astype(np.int64) % MODULUS
    coefficients = product.astype(np.uint32)
    kernels.ntt_inverse(
        coefficients,
        tables.backward,
        tables.backward_shoup,
        tables.value,
        tables.degree_inverse,
        tables.degree_inverse_shoup,
    )
    return coefficients.astype(np.int64).ravel()[:count]


def centred(residues: Residues) -> Residues:
    """Signed integers in (-p/2, p/2]."""
    reduced = residues % MODULUS
    return np.where(reduced > MODULUS // 2, reduced - MODULUS, reduced)


def deal_shares(secret: Residues, places: Sequence[int], threshold: int, rng: np.random.Generator) -> list[Residues]:
    """The values at `places` (not 0) of random polynomials of degree threshold - 1 that are `secret` at 0."""
    if not 1 <= threshold <= len(places) or 0 in places:
        raise RefusedError(f"a threshold of {threshold} for {len(places)} shares")
    coefficients = rng.integers(0, MODULUS, (threshold, len(secret)))
    coefficients[0] = secret
    shares = []
    for place in places:
        value = coefficients[-1]
        for lower in coefficients[-2::-1]:
            value = (value * place + lower) % MODULUS
        shares.append(value)
    return shares


def join_shares(shares: Mapping[int, Residues]) -> Residues:
    """The secret from shares by their places: Lagrange's interpolation at 0."""
    secret = np.zeros(len(next(iter(shares.values()))), np.int64)
    for place, share in shares.items():
        weight = 1
        for other in shares:
            if other != place:
                weight = weight * other * pow(other - place, -1, MODULUS) % MODULUS
        secret = (secret + share * weight) % MODULUS
    return secret
