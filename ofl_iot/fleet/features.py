"""Normalised features for clustering: device specifics, resource status and model state, as in the paper.

Every column is centred and scaled over the fleet, cut at three spreads, and every block of columns weighs the
same whatever its width. The scale is kept with a plan, so that a late joiner is seen with the same eyes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ofl_iot.errors import ConfigError
from ofl_iot.fleet.report import FloatArray, Report
from ofl_iot.fleet.trust import Trusted

CUT = 3.0
"""Features end at this many spreads from the fleet's centre: no single device sets the scale."""

TAIL = 0.05
"""Share of the devices at either end that does not count when a column's centre and spread are measured."""

SPECIFICS = {"cpu_count": 0.5, "cpu_ghz": 0.25, "memory": 0.5, "pace": 0.25}
STATUS = {
    "cpu_load": 0.25,
    "memory_free": 0.25,
    "battery": 0.25,
    "temperature": 15.0,
    "network": 1.0,
    "round_trip": 2.0,
    "availability": 0.1,
}
MODEL = {"staleness": 1.0, "model_distance": 0.5, "samples": 1.0, "budget_left": 0.25}
"""The blocks: each column with its least spread, the difference that begins to matter (in log2 for cpu_count to
pace, network, round_trip and staleness to samples). Without it a fleet of equals is sorted by noise."""

COLUMNS = (*SPECIFICS, *STATUS, *MODEL)
OBSERVED_COLUMNS = ("pace", "network", "availability")
"""Already discounted by trust; all others are taken on the device's word."""


@dataclass(frozen=True)
class FeatureWeights:
    """Total variance of each block."""

    specifics: float = 1.0
    status: float = 1.0
    model: float = 0.5

    def __post_init__(self) -> None:
        weights = (self.specifics, self.status, self.model)
        if min(weights) < 0 or not math.isfinite(sum(weights)) or sum(weights) == 0:
            raise ConfigError("feature weights: use numbers of at least 0, one of them positive")


@dataclass(frozen=True)
class FeatureScale:
    """Centre and spread of every column over a fleet."""

    centre: tuple[float, ...]
    spread: tuple[float, ...]


def features(
    reports: Sequence[Report],
    trusted: Trusted,
    weights: FeatureWeights,
    prior: float,
    scale: FeatureScale | None,
) -> tuple[FloatArray, FeatureScale]:
    """One row per device and the scale used; `scale` None measures it on these devices.

    z = clip((x - centre) / spread, -3, 3), 0 where x is unknown; a block of d columns is multiplied by
    sqrt(weight / d). What is taken on the device's word shrinks by min(1, trust / prior).
    """
    table = _table(reports, trusted)
    if scale is None:
        scale = _measure(table)
    z = (table - np.asarray(scale.centre)) / np.asarray(scale.spread)
    z = np.clip(np.nan_to_num(z, nan=0.0), -CUT, CUT)
    on_word = np.array([name not in OBSERVED_COLUMNS for name in COLUMNS])
    z[:, on_word] *= np.minimum(1.0, trusted.trust / prior)[:, None]
    return z * _column_weights(weights), scale


def _table(reports: Sequence[Report], trusted: Trusted) -> FloatArray:
    """Raw values in the order of `COLUMNS`, heavy-tailed ones as logarithms, NaN where unknown."""
    said = np.array([_said(report) for report in reports], dtype=np.float64).reshape(len(reports), 12)
    with np.errstate(divide="ignore"):
        pace, network = np.log2(trusted.steps_per_s), np.log2(trusted.network_mbps)
    pace[np.isinf(pace)] = np.nan
    network[np.isinf(network)] = np.nan
    return np.column_stack([said[:, :3], pace, said[:, 3:7], network, said[:, 7], trusted.availability, said[:, 8:]])


def _said(report: Report) -> tuple[float, ...]:
    """The columns of `COLUMNS` without the observed ones. A device on mains has a full battery."""
    nan = math.nan
    return (
        math.log2(report.cpu_count),
        math.log2(report.cpu_ghz),
        math.log2(report.memory_total_mib),
        report.cpu_load,
        report.memory_free_mib / report.memory_total_mib,
        1.0 if report.battery is None else report.battery,
        nan if report.temperature_c is None else report.temperature_c,
        nan if report.round_trip_s is None else math.log2(1e-3 + report.round_trip_s),
        math.log2(1 + report.staleness),
        math.log2(1 + report.model_distance),
        math.log2(1 + report.samples),
        report.budget_left,
    )


def _measure(table: FloatArray) -> FeatureScale:
    """Mean and standard deviation of each column, its tails pulled in to the 5 % and 95 % quantiles."""
    centre = np.zeros(table.shape[1])
    spread = np.array([*SPECIFICS.values(), *STATUS.values(), *MODEL.values()])
    for j, column in enumerate(table.T):
        known = column[~np.isnan(column)]
        if known.size:
            known = np.clip(known, *np.quantile(known, (TAIL, 1 - TAIL)))
            centre[j], spread[j] = known.mean(), max(spread[j], known.std())
    return FeatureScale(tuple(centre.tolist()), tuple(spread.tolist()))


def _column_weights(weights: FeatureWeights) -> FloatArray:
    blocks = (
        (weights.specifics, len(SPECIFICS)),
        (weights.status, len(STATUS)),
        (weights.model, len(MODEL)),
    )
    return np.concatenate([np.full(width, math.sqrt(weight / width)) for weight, width in blocks])
