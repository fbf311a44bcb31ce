"""Distributions of secrets and noise, and where their randomness comes from."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from ofl_iot.crypto import sampling
from ofl_iot.crypto.entropy import SeededEntropy, SystemEntropy
from ofl_iot.crypto.params import MAIN
from ofl_iot.errors import CryptoError


def test_secrets_are_uniform_ternary(entropy: SeededEntropy) -> None:
    drawn = sampling.ternary((30, 1000), entropy)
    assert stats.chisquare([(drawn == value).sum() for value in (-1, 0, 1)]).pvalue > 0.001


def test_errors_are_a_difference_of_two_binomials(entropy: SeededEntropy) -> None:
    drawn = sampling.centred_binomial((100_001,), entropy).astype(int) + 21
    middle = slice(12, 31)
    counts = np.bincount(drawn, minlength=43)
    expected = stats.binom(42, 0.5).pmf(np.arange(43)) * drawn.size
    assert (
        stats.chisquare(counts[middle], expected[middle] * counts[middle].sum() / expected[middle].sum()).pvalue > 0.001
    )
    assert drawn.std() == pytest.approx((21 / 2) ** 0.5, rel=0.01)


@pytest.mark.parametrize("bits", [1.6, 24.6, 30.5, 45.0, 56.0])
def test_noise_is_gaussian_and_fills_its_low_bits(bits: float, entropy: SeededEntropy) -> None:
    drawn = sampling.gaussian((100_001,), 2.0**bits, entropy)
    smeared = drawn + np.random.default_rng(0).uniform(-0.5, 0.5, drawn.size)
    deviation = np.hypot(2.0**bits, 12**-0.5)
    assert stats.kstest(smeared / deviation, "norm").pvalue > 0.001
    pairs = smeared[:-1].reshape(-1, 2) / deviation
    assert abs(np.corrcoef(pairs[:, 0] ** 2, pairs[:, 1] ** 2)[0, 1]) < 0.02
    if bits > 5:
        assert stats.chisquare(np.bincount(drawn & 15, minlength=16)).pvalue > 0.001


def test_noise_beyond_64_bits_is_refused(entropy: SeededEntropy) -> None:
    for wrong in (0.0, 2.0**60, float("nan"), float("inf")):
        with pytest.raises(CryptoError, match="cannot be sampled"):
            sampling.gaussian((2,), wrong, entropy)


@given(st.integers(0, 2**20))
@settings(max_examples=10, deadline=None)
def test_public_polynomials_are_the_same_for_everyone(seed: int) -> None:
    tag = seed.to_bytes(4, "little")
    p = MAIN.primes[3]
    once, again = (sampling.uniform_from_seed(tag, p, 5000) for _ in range(2))
    assert (once == again).all()
    assert once.max() < p
    assert (once != sampling.uniform_from_seed(tag + b"x", p, 5000)).mean() > 0.99


def test_a_public_polynomial_never_changes_between_versions() -> None:
    """A golden value: leaders of different versions must derive the same `a`."""
    assert sampling.uniform_from_seed(b"golden", MAIN.primes[0], 4).tolist() == [8258654, 4120068, 4262961, 10623393]


def test_uniform_residues_are_uniform(entropy: SeededEntropy) -> None:
    p = MAIN.primes[0]
    drawn = sampling.uniform(p, 50_000, entropy)
    assert stats.kstest(drawn / p, "uniform").pvalue > 0.001


def test_rejection_goes_on_until_enough_is_drawn() -> None:
    """A prime just above a power of two throws half of the words away."""
    drawn = sampling.uniform(8257537 + 131072, 1000, SeededEntropy(3))
    assert drawn.size == 1000


def test_system_entropy_never_repeats() -> None:
    assert SystemEntropy().random_bytes(32) != SystemEntropy().random_bytes(32)


def test_seeded_entropy_repeats_for_tests() -> None:
    assert SeededEntropy(5).random_bytes(100) == SeededEntropy(5).random_bytes(100)
    assert SeededEntropy(5).random_bytes(100) != SeededEntropy(6).random_bytes(100)
