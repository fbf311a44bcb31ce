"""Noise that protects somebody."""

from __future__ import annotations

import numpy as np
import pytest

from ofl_iot.errors import ConfigError
from ofl_iot.privacy.noise import ENTROPY_BYTES, noise_generator


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
