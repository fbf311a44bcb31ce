from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofl_iot.errors import ConfigError
from ofl_iot.fleet.features import COLUMNS, CUT, FeatureWeights, features, sketch_labels
from ofl_iot.fleet.trust import Evidence, TrustSettings, assess
from ofl_iot.protocol.telemetry import Telemetry

PRIOR = TrustSettings().prior


def rows(reports: list[Telemetry], weights: FeatureWeights | None = None) -> Any:
    trusted = assess(reports, [Evidence()] * len(reports), TrustSettings())
    return features(reports, trusted, weights or FeatureWeights(), PRIOR, None)


def test_features_are_finite_and_bounded_whatever_one_device_reports(report: Callable[..., Telemetry]) -> None:
    fleet = [report(kind) for kind in "ABCD" * 10]
    wild = report("A", cpu_count=4096, memory_total_mib=2**26, network_mbps=1e6, step_s=1e-9, samples=10**12)
    points, _ = rows([*fleet, wild])
    assert np.isfinite(points).all()
    assert np.abs(points).max() <= CUT
    calm, _ = rows(fleet)
    # One absurd report does not squeeze the others together.
    assert np.ptp(points[:-1], axis=0).sum() > 0.8 * np.ptp(calm, axis=0).sum()


def test_equal_devices_are_not_sorted_by_noise(report: Callable[..., Telemetry]) -> None:
    points, _ = rows([report("C", cpu_load=0.3 + 0.01 * i, temperature_c=50 + 0.1 * i) for i in range(5)])
    assert np.ptp(points, axis=0).max() < 0.1


def test_types_differ_more_between_than_within(report: Callable[..., Telemetry]) -> None:
    points, _ = rows([report(kind, cpu_load=0.3 + 0.02 * i) for i in range(4) for kind in "AD"])
    within = np.linalg.norm(points[0] - points[2])
    between = np.linalg.norm(points[0] - points[1])
    assert between > 5 * within


def test_unknown_values_count_as_average(report: Callable[..., Telemetry]) -> None:
    reports = [report(kind) for kind in "ABCD"]
    silent = report("D", temperature_c=None, network_mbps=None, round_trip_s=None, step_s=None)
    points, _ = rows([*reports, silent])
    for name in ("temperature", "network", "round_trip", "pace"):
        assert points[-1, COLUMNS.index(name)] == 0


def test_a_joiner_is_measured_with_the_fleets_scale(report: Callable[..., Telemetry]) -> None:
    fleet = [report(kind) for kind in "ABCD"]
    points, scale = rows(fleet)
    trusted = assess(fleet, [Evidence()] * 4, TrustSettings())
    again, same = features(fleet, trusted, FeatureWeights(), PRIOR, scale)
    assert np.array_equal(points, again)
    assert same is scale


def test_label_sketches_take_part_on_request(report: Callable[..., Telemetry]) -> None:
    reports = [report("C", label_sketch=s) for s in (b"\xff\x00", b"\x00\xff", None, b"\xff\x00\x00", b"\xff\x00")]
    plain, _ = rows(reports)
    assert np.ptp(plain, axis=0).max() == 0
    points, scale = rows([reports[0], reports[1], reports[2], reports[4]], FeatureWeights(labels=1.0))
    assert scale.labels == 2
    assert np.array_equal(points[0], points[3])
    assert np.linalg.norm(points[0] - points[1]) > 1
    assert not points[2, -2:].any()


@given(
    counts=st.lists(st.integers(0, 1000), min_size=1, max_size=20),
    epsilon=st.floats(0.01, 10),
    seed=st.integers(0, 2**32 - 1),
)
@settings(deadline=None)
def test_a_label_sketch_has_one_byte_per_label(counts: list[int], epsilon: float, seed: int) -> None:
    sketch = sketch_labels(counts, epsilon, np.random.default_rng(seed))
    assert len(sketch) == len(counts)
    assert sum(sketch) <= 255 + len(counts)


def test_the_noise_of_a_sketch_is_that_of_its_epsilon() -> None:
    # One label among two: neighbouring data sets of 3 and 4 samples must be hard to tell apart, exp(epsilon) at most.
    rng, epsilon = np.random.default_rng(11), 0.5
    outcomes = [[sketch_labels([n, 50], epsilon, rng)[0] > 17 for _ in range(20_000)] for n in (3, 4)]
    few, more = (np.mean(o) for o in outcomes)
    assert few < more < few * np.exp(epsilon) * 1.05


@pytest.mark.parametrize(
    "wrong", [{"specifics": -1.0}, {"model": float("inf")}, {"specifics": 0.0, "status": 0.0, "model": 0.0}]
)
def test_weights_that_cannot_work_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="weights"):
        FeatureWeights(**wrong)


def test_a_sketch_without_privacy_is_refused() -> None:
    with pytest.raises(ConfigError, match="epsilon"):
        sketch_labels([1, 2], 0.0, np.random.default_rng(0))
