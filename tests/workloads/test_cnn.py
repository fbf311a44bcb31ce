"""The gradients equal those of torch.func, each image's influence is bounded, and bad input is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofl_iot.errors import ConfigError
from ofl_iot.workloads import with_torch
from ofl_iot.workloads.base import TrainJob
from ofl_iot.workloads.cnn import ConvNet, Images, _sum_gradients
from ofl_iot.workloads.flat_net import layers_of

torch = pytest.importorskip("torch")

SEEDS = st.integers(0, 10_000)
NETS = st.sampled_from([ConvNet(1, 8, 3, 6), ConvNet(3, 9, 4, 5), ConvNet(2, 5, 3, 7)])


def images_for(net: ConvNet, count: int, seed: int) -> Images:
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (count, net.channels, net.side, net.side), dtype=np.uint8)
    return Images(pixels, rng.integers(0, net.classes, count), 127.5, 74.0)


def gradients_one_by_one(net: ConvNet, params: np.ndarray, images: Images) -> Any:
    """The gradient of every image's loss on its own, by torch.func: one row an image."""

    def loss(vector: Any, image: Any, label: Any) -> Any:
        functional = torch.nn.functional
        first, first_bias, second, second_bias, dense, dense_bias, out, out_bias = layers_of(vector, net.shapes)
        hidden = functional.conv2d(image[None], first, first_bias, stride=2, padding=2).relu()
        hidden = functional.conv2d(hidden, second, second_bias, stride=2, padding=2).relu().flatten(1)
        logits = functional.linear(functional.linear(hidden, dense, dense_bias).relu(), out, out_bias)
        return functional.cross_entropy(logits, label[None])

    rows = np.arange(len(images.labels))
    per_image = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))
    return per_image(torch.from_numpy(params), images.inputs(rows), torch.from_numpy(images.labels))


def summed(net: ConvNet, params: np.ndarray, images: Images, clip_norm: float | None) -> Any:
    gradient = torch.zeros(net.size)
    rows = np.arange(len(images.labels))
    layers, labels = layers_of(torch.from_numpy(params), net.shapes), torch.from_numpy(images.labels)
    _sum_gradients(layers, layers_of(gradient, net.shapes), images.inputs(rows), labels, clip_norm)
    return gradient


@settings(max_examples=20, deadline=None)
@given(net=NETS, seed=SEEDS, clip_norm=st.none() | st.floats(0.01, 10))
def test_the_sum_is_that_of_the_clipped_gradients_of_single_images(
    net: ConvNet, seed: int, clip_norm: float | None
) -> None:
    images, params = images_for(net, 6, seed), net.initial(seed)
    single = gradients_one_by_one(net, params, images)
    if clip_norm is not None:
        single = single * (clip_norm / single.norm(dim=1, keepdim=True)).clamp(max=1)
    assert torch.allclose(summed(net, params, images, clip_norm), single.sum(0), atol=1e-4, rtol=1e-4)


@settings(max_examples=20, deadline=None)
@given(net=NETS, seed=SEEDS, private=st.booleans())
def test_training_repeats_for_a_seed_and_leaves_its_input_alone(net: ConvNet, seed: int, private: bool) -> None:
    images, rows = images_for(net, 20, seed), np.arange(3, 18)
    privacy = {"clip_norm": 1.0, "noise_multiplier": 1.0} if private else {}
    job = TrainJob(steps=4, batch_size=6, learning_rate=0.05, momentum=0.5, **privacy)
    start = net.initial(seed)
    before = start.copy()
    one, other = (net.train(start, images, rows, job, np.random.default_rng(seed)) for _ in range(2))
    assert np.array_equal(start, before)
    assert np.array_equal(one.params, other.params)
    assert not np.array_equal(one.params, start)
    assert one.sampling_rate == 6 / 15


def test_the_sizes_are_those_of_the_paper() -> None:
    assert ConvNet(1, 28, 10).size == 815_810
    assert ConvNet(1, 32, 10).size == 1_061_570
    first, second = ConvNet(1, 28, 10).shapes[0], ConvNet(1, 28, 10).shapes[2]
    assert first[0] * 14 * 14 == second[0] * 7 * 7 == 784


def test_momentum_is_the_running_sum_of_gradients() -> None:
    net = ConvNet(1, 8, 3, 6)
    images = images_for(net, 8, 4)
    job = TrainJob(steps=3, batch_size=8, learning_rate=0.1, momentum=0.9)
    params, velocity = net.initial(1), np.zeros(net.size, dtype=np.float32)
    for _ in range(3):
        velocity = np.float32(0.9) * velocity + summed(net, params, images, None).numpy() / 8
        params = params - np.float32(0.1) * velocity
    trained = net.train(net.initial(1), images, np.arange(8), job, np.random.default_rng(0))
    assert np.allclose(trained.params, params, atol=1e-5)


def test_noise_has_the_promised_scale_whatever_the_draw() -> None:
    net = ConvNet(1, 8, 3, 6)
    images = images_for(net, 50, 4)
    job = TrainJob(steps=1, batch_size=10, learning_rate=1.0, clip_norm=1e-6, noise_multiplier=2e6)
    steps = [
        net.train(net.initial(0), images, np.arange(50), job, np.random.default_rng(seed)).params - net.initial(0)
        for seed in range(5)
    ]
    assert np.std(steps) == pytest.approx(2.0 / 10, rel=0.03)


def test_a_private_step_is_divided_by_the_batch_size_asked_for_even_where_images_are_fewer() -> None:
    net = ConvNet(1, 8, 3, 6)
    job = TrainJob(steps=1, batch_size=8, learning_rate=1.0, clip_norm=0.1)
    images = images_for(net, 1, 4)
    step = net.train(net.initial(0), images, np.arange(1), job, np.random.default_rng(0)).params - net.initial(0)
    assert np.linalg.norm(step) == pytest.approx(0.1 / 8, rel=1e-2)


def test_a_poisson_batch_may_be_empty() -> None:
    net = ConvNet(1, 8, 3, 6)
    images = images_for(net, 2, 4)
    job = TrainJob(steps=1, batch_size=1, learning_rate=0.1, clip_norm=1.0)
    results = [net.train(net.initial(0), images, np.arange(2), job, np.random.default_rng(s)) for s in range(20)]
    empty = [result for result in results if np.array_equal(result.params, net.initial(0))]
    assert 0 < len(empty) < 20
    assert all(result.loss == 0.0 for result in empty)


def test_what_is_trained_on_is_learned_and_other_rows_do_not_matter() -> None:
    net, rows = ConvNet(1, 8, 3, 16), np.arange(12)
    images = images_for(net, 30, 2)
    changed = Images(np.concatenate([images.pixels[:12], 255 - images.pixels[12:]]), images.labels, 127.5, 74.0)
    job = TrainJob(steps=150, batch_size=6, learning_rate=0.05, momentum=0.5)
    one, other = (net.train(net.initial(0), data, rows, job, np.random.default_rng(2)) for data in (images, changed))
    assert np.array_equal(one.params, other.params)
    assert net.evaluate(one.params, images, rows).accuracy == 1.0
    assert net.evaluate(one.params, images, rows).loss < 0.1 < net.evaluate(net.initial(0), images, rows).loss


def test_the_digest_tells_architectures_apart() -> None:
    nets = [ConvNet(1, 28, 10), ConvNet(1, 28, 10, 512), ConvNet(1, 27, 10), ConvNet(3, 28, 10), ConvNet(1, 28, 9)]
    assert len({net.digest for net in nets}) == len(nets)
    assert len(ConvNet(1, 28, 10).digest) == 8


def test_bad_parameters_empty_parties_and_divergence_are_errors() -> None:
    net = ConvNet(1, 8, 3, 6)
    images, rows, rng = images_for(net, 8, 0), np.arange(8), np.random.default_rng(0)
    job = TrainJob(steps=50, batch_size=4, learning_rate=1e30)
    with pytest.raises(ConfigError, match="same model"):
        net.evaluate(np.zeros(3, np.float32), images, rows)
    with pytest.raises(ConfigError, match="no samples to evaluate"):
        net.evaluate(net.initial(0), images, rows[:0])
    with pytest.raises(ConfigError, match="no samples to train"):
        net.train(net.initial(0), images, rows[:0], job, rng)
    with pytest.raises(ConfigError, match="diverged"):
        net.train(net.initial(0), images, rows, job, rng)


def test_without_torch_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with_torch.load_torch.cache_clear()
    try:
        with pytest.raises(ConfigError, match=r"pip install '\.\[torch\]' in a checkout"):
            with_torch.load_torch()
    finally:
        with_torch.load_torch.cache_clear()
