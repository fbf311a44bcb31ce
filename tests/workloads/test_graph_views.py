"""Nodes are owned once, views differ as asked, and other labels than those trained on are not looked at."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofl_iot.errors import ConfigError
from ofl_iot.workloads.graph_views import GraphSplit, enhanced, grow_regions, share_out, view_of
from ofl_iot.workloads.splits import Split
from tests.workloads.graphs_made import graph_of

NOTHING = GraphSplit(node_drop=0.0, link_change=0.0, feature_mask=0.0)


@given(
    seed=st.integers(0, 500),
    devices=st.integers(1, 13),
    regions=st.booleans(),
    kind=st.sampled_from(["iid", "dirichlet", "shards"]),
)
def test_every_node_is_owned_once_and_every_labelled_one_trained_on_by_its_owner(
    seed: int, devices: int, regions: bool, kind: str
) -> None:
    graph = graph_of(seed=seed)
    train = graph.parts[0]
    parts = share_out(graph, train, devices, Split(kind), regions=regions, seed=seed)  # type: ignore[arg-type]
    assert sorted(np.concatenate([own for _, own in parts]).tolist()) == list(range(40))
    assert sorted(np.concatenate([targets for targets, _ in parts]).tolist()) == sorted(train.tolist())
    assert all(len(targets) and np.isin(targets, own).all() for targets, own in parts)


@given(seed=st.integers(0, 500), devices=st.integers(1, 8), regions=st.booleans())
def test_labels_of_other_nodes_are_not_looked_at(seed: int, devices: int, regions: bool) -> None:
    graph = graph_of(seed=seed)
    train = graph.parts[0]
    hidden = graph.labels.copy()
    hidden[np.setdiff1d(np.arange(40), train)] = 0
    blind = dataclasses.replace(graph, labels=hidden)
    one, other = (share_out(each, train, devices, Split(), regions=regions, seed=seed) for each in (graph, blind))
    assert all(
        np.array_equal(a, b) for mine, its in zip(one, other, strict=True) for a, b in zip(mine, its, strict=True)
    )


@given(seed=st.integers(0, 500), regions=st.integers(1, 40))
def test_regions_have_equal_sizes(seed: int, regions: int) -> None:
    owner = grow_regions(graph_of(seed=seed).links, regions, np.random.default_rng(seed))
    sizes = np.bincount(owner, minlength=regions)
    assert sizes.max() - sizes.min() <= 1
    assert owner.min() == 0


def test_regions_keep_neighbours_together() -> None:
    graph = graph_of(300, links=400)
    owner = grow_regions(graph.links, 6, np.random.default_rng(0))
    links = graph.links.tocoo()
    assert np.mean(owner[links.row] == owner[links.col]) > 2 / 6


def test_a_view_without_changes_is_the_graph_normalised() -> None:
    graph = graph_of()
    view = enhanced(graph, np.arange(40), NOTHING, np.random.default_rng(0))
    looped = graph.links.toarray() + np.eye(40)
    scale = 1 / np.sqrt(looped.sum(1))
    wanted = scale[:, None] * looped * scale
    assert np.allclose(view.mixing.toarray(), wanted, atol=1e-6)
    assert np.allclose(view.mixed.toarray(), wanted @ graph.features.toarray(), atol=1e-5)


def test_only_what_the_own_nodes_reach_is_mixed() -> None:
    graph = graph_of(links=30)
    own = np.array([3, 4])
    view = view_of(graph.links, graph.features, own)
    reached = np.unique(view.mixing[own].indices)
    full = view_of(graph.links, graph.features, np.arange(40))
    assert np.allclose(view.mixed[reached].toarray(), full.mixed[reached].toarray())
    assert view.mixed.nnz < full.mixed.nnz


def test_dropped_nodes_have_no_links_and_own_nodes_are_never_dropped() -> None:
    graph, own = graph_of(), np.arange(10)
    view = enhanced(graph, own, dataclasses.replace(NOTHING, node_drop=1.0), np.random.default_rng(0))
    between = view.mixing.toarray() * (1 - np.eye(40))
    inside = graph.links.toarray()[:10, :10]
    assert np.array_equal(between[:10, :10] > 0, inside > 0)
    between[:10, :10] = 0
    assert not between.any()


def test_links_change_by_the_share_asked_and_stay_both_ways() -> None:
    graph = graph_of(400, links=2000)
    view = enhanced(graph, np.arange(400), dataclasses.replace(NOTHING, link_change=0.3), np.random.default_rng(0))
    before, after = graph.links.toarray() > 0, (view.mixing.toarray() * (1 - np.eye(400))) > 0
    assert np.array_equal(after, after.T)
    assert np.mean(after[before]) == pytest.approx(0.7, abs=0.04)
    assert after.sum() == pytest.approx(before.sum(), rel=0.02)


def test_masked_features_are_zero_for_all_nodes() -> None:
    graph = graph_of(features=200)
    split = dataclasses.replace(NOTHING, feature_mask=0.25)
    view = enhanced(graph, np.arange(40), split, np.random.default_rng(0))
    unseen = np.asarray(view.mixed.sum(axis=0)).ravel() == 0
    assert np.mean(unseen) == pytest.approx(0.25, abs=0.08)


def test_views_repeat_for_a_seed_and_differ_otherwise() -> None:
    graph = graph_of()
    one, again, other = (
        enhanced(graph, np.arange(5), GraphSplit(), np.random.default_rng(seed)).mixed.toarray() for seed in (1, 1, 2)
    )
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize(
    "change", [{"node_drop": 1.5}, {"link_change": -0.1}, {"feature_mask": 2}, {"contrast": -1}, {"temperature": 0}]
)
def test_an_impossible_graph_split_says_what_to_change(change: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(change))):
        GraphSplit(**change)  # type: ignore[arg-type]


def test_more_devices_than_nodes_are_refused() -> None:
    with pytest.raises(ConfigError, match="40 nodes are too few for 41 devices"):
        grow_regions(graph_of().links, 41, np.random.default_rng(0))
