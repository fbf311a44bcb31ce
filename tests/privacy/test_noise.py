"""Noise that protects somebody."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ofl_iot.errors import ConfigError
from ofl_iot.privacy.noise import _CHUNK, ENTROPY_BYTES, CipherNoise, noise_generator


def test_two_generators_never_agree():
    first, second = (noise_generator().random(8) for _ in range(2))
    assert not np.isin(first, second).any()


def test_the_same_entropy_gives_the_same_noise_and_each_byte_of_it_counts():
    base = bytes(range(ENTROPY_BYTES))
    draws = noise_generator(base).random(4)
    np.testing.assert_array_equal(noise_generator(base).random(4), draws)
    for place in range(ENTROPY_BYTES):
        changed = base[:place] + bytes([base[place] ^ 1]) + base[place + 1 :]
        assert not np.array_equal(noise_generator(changed).random(4), draws)


def test_too_little_entropy_is_refused():
    with pytest.raises(ConfigError, match="32"):
        noise_generator(b"short")


def drawn(count: int, deviation: float = 1.0, **options: Any) -> npt.NDArray[np.float32]:
    """So many samples of noise under a fixed key."""
    total = np.zeros(count, np.float32)
    CipherNoise(bytes(range(ENTROPY_BYTES)), **options).add_to(total, deviation)
    return total


@pytest.mark.parametrize("algorithm", ["aes", "chacha20"])
def test_noise_of_the_cipher_is_gaussian(algorithm: Any):
    samples = np.sort(drawn(200_001, 2.0, algorithm=algorithm).astype(np.float64)) / 2.0
    assert abs(samples.mean()) < 0.01
    assert abs(samples.std() - 1) < 0.01
    cumulative = 0.5 * (1 + np.array([math.erf(value / math.sqrt(2)) for value in samples]))
    gap = np.abs(cumulative - (np.arange(len(samples)) + 0.5) / len(samples)).max()
    assert gap < 1.63 / math.sqrt(len(samples)), "the Kolmogorov-Smirnov test at one per cent"
    assert 4 < samples[-1] < 6.8
    assert -6.8 < samples[0] < -4


def test_samples_do_not_depend_on_their_neighbours():
    samples = drawn(1 << 17).astype(np.float64)
    for apart in (1, 2, _CHUNK // 2, _CHUNK):  # the pairs of Box-Muller lie half a chunk apart
        both = (
            np.corrcoef(samples[:-apart], samples[apart:])[0, 1],
            np.corrcoef(samples[:-apart] ** 2, samples[apart:] ** 2)[0, 1],
        )
        assert np.abs(both).max() < 0.02


def test_noise_repeats_under_one_key_and_never_otherwise():
    np.testing.assert_array_equal(drawn(100), drawn(100))
    fresh, again = np.zeros(64, np.float32), np.zeros(64, np.float32)
    CipherNoise().add_to(fresh, 1.0)
    CipherNoise().add_to(again, 1.0)
    assert (fresh != again).mean() > 0.9
    seeded = [np.zeros(64, np.float32) for _ in range(2)]
    for each in seeded:
        CipherNoise.seeded(np.random.default_rng(5)).add_to(each, 1.0)
    np.testing.assert_array_equal(*seeded)


def test_a_stream_goes_on_and_adds_to_what_is_there():
    noise = CipherNoise(bytes(ENTROPY_BYTES))
    first, second = np.full(10, 100, np.float32), np.full(10, 100, np.float32)
    noise.add_to(first, 1.0)
    noise.add_to(second, 1.0)
    assert not np.isin(first, second).any()
    assert np.abs(np.concatenate([first, second]) - 100).max() < 7


@pytest.mark.parametrize("count", [0, 1, 2, 3, _CHUNK - 1, _CHUNK, _CHUNK + 1])
def test_every_value_gets_noise_whatever_their_number(count: int):
    assert np.count_nonzero(drawn(count)) == count


def test_what_cannot_carry_noise_is_refused():
    for total in (np.zeros((2, 2), np.float32), np.zeros(4)):
        with pytest.raises(ConfigError, match="flat float32"):
            CipherNoise().add_to(total, 1.0)  # type: ignore[arg-type]
    for deviation in (-1.0, math.inf, math.nan):
        with pytest.raises(ConfigError, match="deviation"):
            CipherNoise().add_to(np.zeros(4, np.float32), deviation)
    with pytest.raises(ConfigError, match="32"):
        CipherNoise(b"short")
    with pytest.raises(ConfigError, match="cipher"):
        CipherNoise(algorithm="rot13")  # type: ignore[arg-type]


def test_the_key_is_replaced_before_a_counter_overflows(monkeypatch: pytest.MonkeyPatch):
    without = drawn(4 * _CHUNK)
    monkeypatch.setattr("ofl_iot.privacy.noise._REKEY_BYTES", 4 * _CHUNK)
    replaced = drawn(4 * _CHUNK)
    np.testing.assert_array_equal(replaced[:_CHUNK], without[:_CHUNK])
    assert len(np.unique(replaced.reshape(4, _CHUNK), axis=0)) == 4
    assert not np.array_equal(replaced[_CHUNK:], without[_CHUNK:])
