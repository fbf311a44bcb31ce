from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ofl_iot.errors import ConfigError
from ofl_iot.fleet.features import COLUMNS, CUT, FeatureWeights, features
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


@pytest.mark.parametrize(
    "wrong", [{"specifics": -1.0}, {"model": float("inf")}, {"specifics": 0.0, "status": 0.0, "model": 0.0}]
)
def test_weights_that_cannot_work_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="weights"):
        FeatureWeights(**wrong)
