"""The graph network's gradients equal those of torch.func, targets are bounded one by one, and contrast is NT-Xent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofl_iot.errors import ConfigError
from ofl_iot.workloads import gcn
from ofl_iot.workloads.base import TrainJob
from ofl_iot.workloads.flat_net import layers_of
from ofl_iot.workloads.gcn import Contrast, GraphNet, NodeSamples, nt_xent
from ofl_iot.workloads.graph_views import GraphSplit, enhanced, view_of
from tests.workloads.graphs_made import graph_of

torch = pytest.importorskip("torch")

SEEDS = st.integers(0, 1000)
NET = GraphNet(12, 3, 7)
ALL = np.arange(40)


def samples_of(seed: int = 0, contrast: float = 0.0) -> NodeSamples:
    graph = graph_of(seed=seed)
    view = view_of(graph.links, graph.features, ALL)
    other = enhanced(graph, ALL, GraphSplit(link_change=0.2, feature_mask=0.2), np.random.default_rng(seed))
    return NodeSamples(view, graph.labels, Contrast(other, ALL, contrast, 0.5) if contrast else None)


def losses_of(samples: NodeSamples) -> Any:
    """The loss of one node as a function of all parameters, by the formula on the whole graph."""
    mixing, mixed = (torch.from_numpy(each.toarray()) for each in (samples.view.mixing, samples.view.mixed))
    labels = torch.from_numpy(samples.labels)

    def loss(vector: Any, only: Any) -> Any:
        w1, b1, w2, b2, w3, b3, w4, b4 = layers_of(vector, NET.shapes)
        second = mixing @ (mixed @ w1 + b1).relu() @ w2 + b2
        logits = (second.relu() @ w3 + b3).relu() @ w4 + b4
        return (only * torch.nn.functional.cross_entropy(logits, labels, reduction="none")).sum()

    return loss


def summed(params: np.ndarray, samples: NodeSamples, nodes: np.ndarray, clip_norm: float | None) -> Any:
    gradient = torch.zeros(NET.size)
    layers, rng = layers_of(torch.from_numpy(params), NET.shapes), np.random.default_rng(0)
    gcn._add_gradients(layers, layers_of(gradient, NET.shapes), samples, nodes, clip_norm=clip_norm, rng=rng)
    return gradient


@settings(max_examples=15, deadline=None)
@given(seed=SEEDS, clip_norm=st.none() | st.floats(0.01, 3))
def test_the_sum_is_that_of_the_clipped_gradients_of_single_targets(seed: int, clip_norm: float | None) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gcn, "DROPOUT", 0.0)
        samples, params = samples_of(seed), NET.initial(seed)
        nodes = np.random.default_rng(seed).choice(40, 9, replace=False)
        per_node = torch.func.vmap(torch.func.grad(losses_of(samples)), in_dims=(None, 0))
        single = per_node(torch.from_numpy(params), torch.eye(40)[nodes])
        if clip_norm is not None:
            single = single * (clip_norm / single.norm(dim=1, keepdim=True)).clamp(max=1)
        assert torch.allclose(summed(params, samples, nodes, clip_norm), single.sum(0), atol=1e-4, rtol=1e-4)


@settings(max_examples=10, deadline=None)
@given(seed=SEEDS, clip_norm=st.floats(0.01, 3))
def test_no_target_moves_the_sum_by_more_than_the_clip_norm(seed: int, clip_norm: float) -> None:
    """Dropout is on: each target's own draw is bounded too."""
    samples, params = samples_of(seed), 3 * NET.initial(seed)
    for node in range(5):
        assert summed(params, samples, np.array([node]), clip_norm).norm() <= clip_norm * (1 + 1e-4)


@pytest.mark.parametrize("privacy", [{}, {"clip_norm": 1.0, "noise_multiplier": 1.0}])
@pytest.mark.parametrize("contrast", [0.0, 0.5])
def test_training_repeats_for_a_seed_and_leaves_its_input_alone(privacy: dict[str, float], contrast: float) -> None:
    samples, start = samples_of(contrast=contrast), NET.initial(1)
    job = TrainJob(steps=4, batch_size=6, learning_rate=0.05, momentum=0.5, **privacy)
    before = start.copy()
    one, other = (NET.train(start, samples, ALL[:15], job, np.random.default_rng(3)) for _ in range(2))
    assert np.array_equal(start, before)
    assert np.array_equal(one.params, other.params)
    assert not np.array_equal(one.params, start)
    assert one.sampling_rate == 6 / 15


def test_the_contrast_matters_but_not_when_gradients_are_clipped() -> None:
    plain, contrasted = samples_of(), samples_of(contrast=1.0)
    for job, same in (
        (TrainJob(steps=3, batch_size=6, learning_rate=0.05), False),
        (TrainJob(steps=3, batch_size=6, learning_rate=0.05, clip_norm=1.0), True),
    ):
        one, other = (
            NET.train(NET.initial(0), samples, ALL[:15], job, np.random.default_rng(0))
            for samples in (plain, contrasted)
        )
        assert np.array_equal(one.params, other.params) == same


def test_the_contrastive_term_is_the_formula() -> None:
    rng = np.random.default_rng(0)
    one, other = (torch.nn.functional.normalize(torch.from_numpy(rng.normal(size=(5, 4))), dim=1) for _ in range(2))
    for place, term in enumerate(nt_xent(one, other, 0.5)):
        cosines = np.array([float(one[place] @ other[k]) for k in range(5)])
        rest = np.delete(cosines, place)
        assert float(term) == pytest.approx(-cosines[place] / 0.5 + np.log(np.exp(rest / 0.5).sum()))


def test_contrast_alone_brings_the_two_views_of_a_node_together() -> None:
    samples = samples_of(contrast=1.0)
    assert samples.contrast is not None
    params = torch.from_numpy(NET.initial(0))
    layers, gradient = layers_of(params, NET.shapes), torch.zeros(NET.size)
    rng = np.random.default_rng(0)

    def term() -> float:
        ways = (gcn._convolved(layers, view, ALL, None).second for view in (samples.view, samples.contrast.view))
        one, other = (torch.nn.functional.normalize(way.outputs.detach(), dim=1) for way in ways)
        return float(nt_xent(one, other, 0.5).mean())

    before = term()
    for _ in range(40):
        gradient.zero_()
        gradients = layers_of(gradient, NET.shapes)
        gcn._add_contrast(layers, gradients, samples.view, samples.contrast, count=40, rng=rng)
        params.add_(gradient, alpha=-0.005)
    assert term() < before - 0.1


def test_nodes_whose_units_all_went_out_do_not_blow_up_the_contrast() -> None:
    samples, params = samples_of(contrast=1.0), NET.initial(0)
    params[12 * 64 : 13 * 64] = -100
    job = TrainJob(steps=5, batch_size=10, learning_rate=0.01)
    trained = NET.train(params, samples, ALL, job, np.random.default_rng(0)).params
    assert np.abs(trained - params).max() < 1


def test_a_single_node_cannot_be_contrasted() -> None:
    samples = samples_of(contrast=1.0)
    job = TrainJob(steps=1, batch_size=1, learning_rate=0.1)
    trained = NET.train(NET.initial(0), samples, ALL[:1], job, np.random.default_rng(0))
    plain = NET.train(NET.initial(0), samples_of(), ALL[:1], job, np.random.default_rng(0))
    assert np.array_equal(trained.params, plain.params)


def test_a_poisson_batch_may_be_empty_or_larger_than_one_block(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = samples_of()
    job = TrainJob(steps=1, batch_size=1, learning_rate=0.1, clip_norm=1.0)
    empty = [
        result
        for seed in range(20)
        if (result := NET.train(NET.initial(0), samples, ALL[:2], job, np.random.default_rng(seed))).loss == 0
    ]
    assert 0 < len(empty) < 20
    assert all(np.array_equal(result.params, NET.initial(0)) for result in empty)
    monkeypatch.setattr(gcn, "DROPOUT", 0.0)
    whole = TrainJob(steps=1, batch_size=40, learning_rate=0.1, clip_norm=0.5)
    one = NET.train(NET.initial(0), samples, ALL, whole, np.random.default_rng(0)).params
    monkeypatch.setattr(gcn, "_CLIPPED_AT_ONCE", 7)
    other = NET.train(NET.initial(0), samples, ALL, whole, np.random.default_rng(0)).params
    assert np.allclose(one, other, atol=1e-6)


def test_the_sizes_are_those_of_the_paper() -> None:
    sizes = [GraphNet(features, classes).size for features, classes in ((1433, 7), (3703, 6), (500, 3))]
    assert sizes == [132_807, 277_574, 71_043]
    assert len({GraphNet(12, 3, hidden).digest for hidden in (7, 8)}) == 2


def test_bad_parameters_empty_parties_and_divergence_are_errors() -> None:
    samples, rng = samples_of(), np.random.default_rng(0)
    job = TrainJob(steps=50, batch_size=4, learning_rate=1e30)
    with pytest.raises(ConfigError, match="same model"):
        NET.evaluate(np.zeros(3, np.float32), samples, ALL)
    with pytest.raises(ConfigError, match="no samples to evaluate"):
        NET.evaluate(NET.initial(0), samples, ALL[:0])
    with pytest.raises(ConfigError, match="no samples to train"):
        NET.train(NET.initial(0), samples, ALL[:0], job, rng)
    with pytest.raises(ConfigError, match="diverged"):
        NET.train(NET.initial(0), samples, ALL, job, rng)
