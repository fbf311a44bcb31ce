"""Fixed features depend on one image alone, are the same everywhere, and are of length 1."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ofl_iot.errors import ConfigError
from ofl_iot.workloads.base import TrainJob
from ofl_iot.workloads.cnn import Images
from ofl_iot.workloads.wavelet_images import FeatureStore, WaveletWorkload
from ofl_iot.workloads.wavelets import Wavelets, generated_textures

pytest.importorskip("torch")
KNOWN = [[-0.11596, -1.59086, -1.11588], [-0.99999, -0.97706, -0.65865]]
"""The first pixels of two textures."""


@pytest.fixture(scope="module")
def wavelets() -> Wavelets:
    return Wavelets(16, 20)


def made(count: int, seed: int = 0) -> np.ndarray:
    """Bars: every second image has an upright one, the others a lying one."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 60, (count, 1, 16, 20), dtype=np.uint8)
    for number, image in enumerate(pixels):
        place = rng.integers(4, 10)
        image[0, :, place : place + 3] += np.uint8(120 * (number % 2))
        image[0, place : place + 3, :] += np.uint8(120 * (1 - number % 2))
    return pixels


def test_features_are_rows_of_length_1(wavelets: Wavelets) -> None:
    features = wavelets(made(7))
    assert features.shape == (7, 1296)
    assert features.dtype == np.float32
    assert np.allclose(np.linalg.norm(features, axis=1), 1, atol=1e-5)


def test_an_image_has_the_same_features_whoever_stands_beside_it(wavelets: Wavelets) -> None:
    images = made(6)
    together = wavelets(images)
    assert np.allclose(together[4], wavelets(images[4:5])[0], atol=1e-5)
    other = images.copy()
    other[:4] = 0
    assert np.allclose(together[4:], wavelets(other)[4:], atol=1e-5)


def test_the_scale_of_pixels_does_not_matter(wavelets: Wavelets) -> None:
    images = made(3)
    assert np.allclose(wavelets(images), wavelets(images[:, 0].astype(np.float32) / 255 - 0.5), atol=1e-4)


def test_a_plain_image_has_features_as_well(wavelets: Wavelets) -> None:
    assert np.isfinite(wavelets(np.zeros((2, 1, 16, 20)))).all()


def test_textures_are_the_same_on_every_machine() -> None:
    textures = generated_textures(2, 16, 16)
    assert textures[0, 0, :3] == pytest.approx(KNOWN[0], abs=1e-5)
    assert textures[1, 5, :3] == pytest.approx(KNOWN[1], abs=1e-5)


def test_images_of_another_size_are_refused(wavelets: Wavelets) -> None:
    with pytest.raises(ConfigError, match=r"\(1, 16, 20\) are expected"):
        wavelets(np.zeros((2, 20, 16)))
    with pytest.raises(ConfigError, match="16 pixels a side"):
        Wavelets(8, 8)


def test_the_layer_gives_the_same_and_learns_nothing(wavelets: Wavelets) -> None:
    import torch

    images = made(3)
    layer = wavelets.layer()
    inputs = torch.from_numpy(images.astype(np.float32)).requires_grad_()
    outputs = layer(inputs)
    assert np.allclose(outputs.numpy(), wavelets(images), atol=1e-5)
    assert not list(layer.parameters())
    assert not outputs.requires_grad


def test_a_store_makes_features_once_and_finds_them_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = made(12)
    images = Images(pixels, np.arange(12) % 2, 0.0, 1.0)
    first = FeatureStore(images, tmp_path)
    some = first.of(np.array([1, 3]))
    assert not list(tmp_path.iterdir())
    whole = first.of(np.arange(12))
    assert np.array_equal(whole[[1, 3]], some)
    assert [path.suffix for path in tmp_path.iterdir()] == [".npy"]
    monkeypatch.setattr(Wavelets, "__call__", lambda *_: pytest.fail("made again"))
    assert np.array_equal(FeatureStore(images, tmp_path).of(np.arange(12)), whole)


def test_a_damaged_file_of_features_is_made_again(tmp_path: Path) -> None:
    images = Images(made(4), np.arange(4) % 2, 0.0, 1.0)
    whole = FeatureStore(images, tmp_path).of(np.arange(4))
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:100])
    assert np.array_equal(FeatureStore(images, tmp_path).of(np.arange(4)), whole)


def test_a_head_tells_bars_apart_that_it_has_not_seen(tmp_path: Path) -> None:
    train, test = (Images(made(60, seed), np.arange(60) % 2, 0.0, 1.0) for seed in (1, 2))
    device = WaveletWorkload("bars", train, FeatureStore(train, tmp_path))
    judge = WaveletWorkload("bars", test, FeatureStore(test, tmp_path))
    job = TrainJob(steps=20, batch_size=60, learning_rate=0.12, momentum=0.9, clip_norm=5.0, sampling_rate=1.0)
    trained = device.train(device.initial(0), job, np.random.default_rng(0))
    assert trained.sampling_rate == 1.0
    assert judge.evaluate(trained.params).accuracy > 0.95
    assert device.digest == judge.digest
