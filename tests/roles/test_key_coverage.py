"""The share of time without a key, from a coordinator's reports."""

from __future__ import annotations

import pytest

from ofl_iot.roles.key_coverage import KeyCoverage
from ofl_iot.roles.reports.base import Report
from ofl_iot.roles.reports.coordinator import Clustered
from ofl_iot.roles.reports.keys import RoundsWithKey, RoundsWithoutKey

CLUSTERED = Clustered(term=1, clusters=2, leaders=("a", "b"), churn=0.0, distrusted=())


@pytest.mark.parametrize(
    ("told", "share"),
    [
        ([], 0.0),
        ([(10.0, CLUSTERED)], 0.0),
        ([(10.0, CLUSTERED), (20.0, RoundsWithoutKey(1)), (25.0, RoundsWithKey(1, 5.0))], 0.05),
        ([(10.0, CLUSTERED), (20.0, RoundsWithoutKey(1))], 0.9),
        (
            [
                (10.0, CLUSTERED),
                (20.0, RoundsWithoutKey(1)),
                (60.0, RoundsWithoutKey(1)),
                (70.0, RoundsWithKey(1, 10.0)),
            ],
            0.5,
        ),
        ([(10.0, CLUSTERED), (60.0, CLUSTERED), (20.0, RoundsWithKey(1, 5.0))], 0.0),
    ],
)
def test_the_share_counts_from_the_first_clustering(told: list[tuple[float, Report]], share: float) -> None:
    coverage = KeyCoverage()
    for at, report in told:
        coverage.take(report, at)
    assert coverage.without_key_share(110.0) == pytest.approx(share)
