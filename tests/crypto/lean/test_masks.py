"""Masks: a weighted sum of bodies opens with the weighted sum of their keys, and with nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofl_iot.crypto.entropy import SeededEntropy
from ofl_iot.crypto.lean import masks
from ofl_iot.crypto.lean.masks import MaskDomain, MaskKey
from ofl_iot.crypto.lean.params import (
    CONTROLS,
    DEGREE,
    MODULUS,
    PRECISIONS,
    PRIMES,
    body_bytes,
    error_limit,
    padded,
    value_limit,
)
from ofl_iot.errors import CryptoError, WrongShareError

DOMAIN = MaskDomain(bytes(range(16)), 7)
WEIGHTS = st.lists(st.integers(1, 16), min_size=2, max_size=4)


def bodies_of(values: list[np.ndarray], precision: int, entropy: SeededEntropy) -> tuple[list[bytes], list[MaskKey]]:
    keys = [MaskKey.draw(entropy) for _ in values]
    bodies = [masks.mask_body(DOMAIN, key, each, precision, entropy) for key, each in zip(keys, values, strict=True)]
    return bodies, keys


@settings(max_examples=15)
@given(st.sampled_from(PRECISIONS), WEIGHTS, st.integers(1, 5000), st.integers(0, 2**32))
def test_a_weighted_sum_opens_within_the_stated_error(precision, weights, size, seed) -> None:
    limit = value_limit(precision)
    values = [np.random.default_rng(seed + i).integers(-limit, limit + 1, size, np.int32) for i in range(len(weights))]
    bodies, keys = bodies_of(values, precision, SeededEntropy(seed))
    total = masks.sum_bodies(DOMAIN, bodies, weights, size, precision)
    opened = masks.open_sum(total, masks.weighted_keys(keys, weights))
    true = sum(w * v.astype(np.int64) for w, v in zip(weights, values, strict=True))
    error = (opened - true + (1 << (precision - 1))) % (1 << precision) - (1 << (precision - 1))
    assert np.abs(error).max() <= error_limit(sum(weights), precision)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("sign", [-1, 1])
def test_a_sum_with_every_value_at_the_rail_keeps_its_sign(precision, sign) -> None:
    """At -2^(b-1) almost half came out with the wrong sign (attacks/marg.py)."""
    weights = [16, 16, 16, 16]
    values = [np.full(4096, sign * value_limit(precision), np.int32)] * 4
    bodies, keys = bodies_of(values, precision, SeededEntropy(1))
    key = masks.weighted_keys(keys, weights)
    opened = masks.open_sum(masks.sum_bodies(DOMAIN, bodies, weights, 4096, precision), key)
    assert (np.sign(opened) == sign).all()


def test_a_mask_is_the_rounded_product_of_the_public_row_and_the_key() -> None:
    """Against schoolbook arithmetic: the transforms, the residues and the rounding are what the formula says."""
    precision, entropy = 20, SeededEntropy(3)
    key = MaskKey.draw(entropy)
    first, second = DOMAIN.rows(0, 1)
    tables = masks._tables()
    products = []
    for prime, row, residues in zip(tables, (first, second), key.residues, strict=True):
        coefficients = row.copy()
        masks.ring_kernels.ntt_inverse(
            coefficients, prime.backward, prime.backward_shoup, prime.value, prime.degree_inverse,
            prime.degree_inverse_shoup,
        )  # fmt: skip
        a, k, p = coefficients[0].astype(np.int64), residues.astype(np.int64), int(prime.value)
        full = np.array([int(v) for v in np.convolve(a.astype(object), k.astype(object))] + [0], dtype=object)
        products.append((full[:DEGREE] - full[DEGREE:]) % p)
    inverse = pow(PRIMES[0], -1, PRIMES[1])
    x = [a + PRIMES[0] * ((b - a) * inverse % PRIMES[1]) for a, b in zip(*products, strict=True)]
    expected = [((v << (precision + 1)) + MODULUS) // (2 * MODULUS) % (1 << precision) for v in x]
    assert next(masks._masks(DOMAIN, key, DEGREE, precision, None)).tolist() == expected


def test_public_rows_are_the_same_everywhere_and_differ_by_key_round_and_row() -> None:
    first, second = DOMAIN.rows(0, 1)
    assert first[0, :4].tolist() == [6263, 7237, 7374, 8055]
    assert second[0, :4].tolist() == [18863, 11386, 10495, 12667]
    others = [MaskDomain(bytes(16), 7).rows(0, 1), MaskDomain(bytes(range(16)), 8).rows(0, 1), DOMAIN.rows(1, 1)]
    assert all((other[0] != first).any() for other in others)
    assert (DOMAIN.rows(0, 3)[1][0] == second[0]).all()


def test_residues_of_public_rows_are_uniform_and_independent() -> None:
    first, second = DOMAIN.rows(0, 32)
    x, y = first.ravel() / PRIMES[0], second.ravel() / PRIMES[1]
    assert first.max() < PRIMES[0]
    assert second.max() < PRIMES[1]
    assert abs(np.corrcoef(x, y)[0, 1]) < 0.02
    assert abs(x.mean() - 0.5) < 0.01
    assert abs(y.std() - 12**-0.5) < 0.01


def test_a_body_looks_uniform() -> None:
    (body,), _ = bodies_of([np.zeros(100_000, np.int32)], 20, SeededEntropy(5))
    top = masks.read_body(body, 100_000, 20) >> 12
    counts = np.bincount(top, minlength=256)
    expected = top.size / 256
    assert ((counts - expected) ** 2 / expected).sum() < 255 + 8 * (2 * 255) ** 0.5


def test_a_wrong_key_does_not_open() -> None:
    values = [np.arange(-50, 50, dtype=np.int32)] * 2
    bodies, keys = bodies_of(values, 20, SeededEntropy(6))
    total = masks.sum_bodies(DOMAIN, bodies, [1, 1], 100, 20)
    right = masks.weighted_keys(keys, [1, 1])
    wrong = MaskKey(right.residues.copy())
    wrong.residues[0, 17] = (wrong.residues[0, 17] + 1) % PRIMES[0]
    masks.open_sum(total, right)
    with pytest.raises(WrongShareError, match="do not open the sum"):
        masks.open_sum(total, wrong)


def test_what_would_wrap_or_does_not_fit_is_refused() -> None:
    key, entropy = MaskKey.draw(SeededEntropy(1)), SeededEntropy(2)
    with pytest.raises(CryptoError, match="wrap around"):
        masks.mask_body(DOMAIN, key, np.array([value_limit(20) + 1], np.int32), 20, entropy)
    with pytest.raises(CryptoError, match="bits a parameter"):
        masks.mask_body(DOMAIN, key, np.array([1], np.int32), 19, entropy)
    body = masks.mask_body(DOMAIN, key, np.array([1], np.int32), 20, entropy)
    assert len(body) == body_bytes(1, 20) == padded(1) * 20 // 8
    for bad in (body[:-1], body + b"\0", b""):
        with pytest.raises(CryptoError, match="bytes"):
            masks.read_body(bad, 1, 20)
    assert padded(64) == 64 + CONTROLS
