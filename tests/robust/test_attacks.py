"""The attacks do what their names say."""

from __future__ import annotations

import numpy as np
import pytest

from ofl_iot.robust.scores import high_band_energy
from ofl_research import attacks

UPDATE = np.random.default_rng(0).normal(size=5000).astype(np.float32)


def test_flipped_labels_flip_back() -> None:
    labels = np.arange(10)
    flipped = attacks.flip_labels(labels, 10)
    assert (flipped != labels).all()
    np.testing.assert_array_equal(attacks.flip_labels(flipped, 10), labels)


def test_the_backdoor_stamps_half_and_leaves_the_original_alone() -> None:
    images, labels = np.zeros((10, 8, 8), dtype=np.float32), np.full(10, 7)
    poisoned, taught = attacks.plant_backdoor(images, labels, target=0)
    assert (taught == 0).sum() == 5
    assert (poisoned.max(axis=(1, 2)) > 0).sum() == 5
    assert images.max() == 0.0


@pytest.mark.parametrize("strength", [1.0, 3.0])
def test_a_sign_flip_points_the_other_way(strength: float) -> None:
    np.testing.assert_allclose(attacks.flip_sign(UPDATE, strength), -strength * UPDATE)
    np.testing.assert_allclose(attacks.boost(UPDATE, strength), strength * UPDATE)


def test_gaussian_noise_has_the_asked_norm_and_no_direction() -> None:
    noise = attacks.gaussian(UPDATE, 5.0, np.random.default_rng(1))
    assert np.linalg.norm(noise) == pytest.approx(5.0 * np.linalg.norm(UPDATE), rel=0.05)
    assert abs(noise @ UPDATE) < 0.1 * np.linalg.norm(noise) * np.linalg.norm(UPDATE)


def test_the_alternating_pattern_lives_in_the_high_band() -> None:
    poisoned = attacks.alternate(UPDATE, 3.0)
    assert high_band_energy(poisoned) > 0.8 * float(poisoned @ poisoned)
