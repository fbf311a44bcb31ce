"""Every sample goes to exactly one device, no device starves, and a seed always deals the same way."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofl_iot.errors import ConfigError
from ofl_iot.workloads.splits import Split, SplitKind, split_rows, split_shards, stratified

LABELS = st.lists(st.integers(0, 5), min_size=1, max_size=120).map(lambda x: np.array(x, dtype=np.int64))
SPLITS = st.sampled_from(["iid", "dirichlet", "shards"])
ALPHAS = st.sampled_from([1e-300, 1e-3, 0.1, 0.5, 1.0, 100.0, 1e9])


@given(split=SPLITS, labels=LABELS, seed=st.integers(0, 2**32), alpha=ALPHAS, data=st.data())
def test_each_row_is_dealt_once_and_every_device_has_the_minimum(
    split: SplitKind, labels: np.ndarray, seed: int, alpha: float, data: st.DataObject
) -> None:
    devices = data.draw(st.integers(1, len(labels)))
    minimum = data.draw(st.integers(0, len(labels) // devices))
    parts = split_rows(split, labels, devices, seed, alpha=alpha, minimum=minimum)
    assert len(parts) == devices
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    assert min(len(part) for part in parts) >= minimum
    again = split_rows(split, labels, devices, seed, alpha=alpha, minimum=minimum)
    assert all(np.array_equal(one, other) for one, other in zip(parts, again, strict=True))


@given(labels=LABELS, seed=st.integers(0, 1000))
def test_stratified_parts_share_out_every_row_in_the_labels_proportions(labels: np.ndarray, seed: int) -> None:
    shares = (0.5, 0.2, 0.3)
    parts = stratified(labels, shares, seed)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    for part, share in zip(parts, shares, strict=True):
        for label, count in zip(*np.unique(labels, return_counts=True), strict=True):
            assert abs(np.count_nonzero(labels[part] == label) - share * count) <= 1


def skew(alpha: float) -> float:
    """Mean share of a device's most frequent label."""
    labels = np.repeat(np.arange(10), 200)
    parts = split_rows("dirichlet", labels, 20, 7, alpha=alpha, minimum=5)
    return float(np.mean([np.bincount(labels[part]).max() / len(part) for part in parts]))


def test_a_smaller_alpha_gives_a_larger_skew() -> None:
    assert skew(0.05) > skew(0.5) > skew(5.0) > skew(500.0)


def test_two_shards_give_a_device_few_labels() -> None:
    labels = np.repeat(np.arange(10), 200)
    parts = split_shards(labels, 20, 3)
    assert max(len(np.unique(labels[part])) for part in parts) <= 4


def test_another_seed_deals_another_way() -> None:
    labels = np.repeat(np.arange(10), 20)
    one, other = (split_rows("iid", labels, 4, seed)[0] for seed in (1, 2))
    assert not np.array_equal(one, other)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"split": "dirichlett"}, "unknown split 'dirichlett': use one of iid, dirichlet, shards"),
        ({"devices": 0}, "at least 1 device"),
        ({"minimum": -1}, "must not be negative"),
        ({"minimum": 6}, "20 samples are too few for 4 devices with at least 6 each"),
        ({"alpha": 0.0}, "alpha of a Dirichlet split must be positive"),
        ({"alpha": float("nan")}, "alpha of a Dirichlet split must be positive"),
    ],
)
def test_an_impossible_split_says_what_to_change(change: dict[str, object], words: str) -> None:
    wanted: dict[str, object] = {"split": "dirichlet", "devices": 4, "seed": 0, **change}
    with pytest.raises(ConfigError, match=words):
        split_rows(labels=np.zeros(20, dtype=np.int64), **wanted)  # type: ignore[arg-type]


def test_a_device_without_shards_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 1 shard"):
        split_shards(np.zeros(20, dtype=np.int64), 2, 0, shards_per_device=0)


@pytest.mark.parametrize("kind", ["iid", "dirichlet", "shards"])
def test_a_split_as_one_value_deals_like_its_parts(kind: SplitKind) -> None:
    labels = np.repeat(np.arange(10), 20)
    split = Split(kind, alpha=0.1, minimum=3)
    for one, other in zip(split.rows(labels, 5, 4), split_rows(kind, labels, 5, 4, alpha=0.1, minimum=3), strict=True):
        assert np.array_equal(one, other)


def test_more_shards_per_device_give_it_more_labels() -> None:
    labels = np.repeat(np.arange(10), 200)
    few, many = (Split("shards", shards_per_device=each).rows(labels, 10, 1) for each in (1, 5))
    assert max(len(np.unique(labels[part])) for part in few) < min(len(np.unique(labels[part])) for part in many)
