from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from itertools import groupby
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofl_iot.errors import ConfigError
from ofl_iot.fleet.devices import DEVICE_TYPES, deal_types
from ofl_iot.fleet.election import (
    Candidate,
    ElectionSettings,
    Service,
    after_election,
    elect,
    fit_to_serve,
    link_serves,
    resource_scores,
    typical_mbps,
)
from ofl_iot.fleet.trust import Evidence, Observed, Standing, TrustSettings, assess
from ofl_iot.ids import DeviceId
from ofl_iot.protocol.telemetry import Telemetry

SETTINGS = ElectionSettings()
A, B, C = DeviceId("a"), DeviceId("b"), DeviceId("c")


def serve(candidates: Mapping[DeviceId, Candidate], clusters: int, terms: int) -> list[tuple[DeviceId, ...]]:
    """The leaders of each term when devices are dealt to clusters and stay there."""
    ids = sorted(candidates)
    members = [ids[j * len(ids) // clusters : (j + 1) * len(ids) // clusters] for j in range(clusters)]
    service: dict[DeviceId, Service] = {}
    history: list[tuple[DeviceId, ...]] = []
    for _ in range(terms):
        offices = elect(members, candidates, service, history[-1] if history else (), SETTINGS)
        leaders = tuple(offices[j].leader for j in range(clusters))
        service = after_election(service, leaders, SETTINGS)
        history.append(leaders)
    return history


def longest_run(history: list[tuple[DeviceId, ...]]) -> int:
    columns = zip(*history, strict=True)
    return max(sum(1 for _ in run) for column in columns for _, run in groupby(column))


def test_strong_types_serve_more_weak_ones_sometimes_and_none_too_long() -> None:
    kinds = {DeviceId(f"device-{i:02d}"): kind for i, kind in enumerate(deal_types(16))}
    candidates = {device: Candidate(kind.relative_speed) for device, kind in kinds.items()}
    history = serve(candidates, clusters=4, terms=40)
    by_type = Counter(kinds[leader].name for leaders in history for leader in leaders)
    assert by_type["D"] > by_type["C"] > by_type["B"] > by_type["A"] > 0
    assert longest_run(history) <= 3
    assert len({leader for leaders in history for leader in leaders}) >= 13


@given(st.lists(st.floats(0.3, 1.0), min_size=2, max_size=8))
def test_nobody_serves_more_than_three_terms_in_a_row(scores: list[float]) -> None:
    candidates = {DeviceId(f"device-{i}"): Candidate(score) for i, score in enumerate(scores)}
    assert longest_run(serve(candidates, clusters=1, terms=25)) <= SETTINGS.max_in_row


def test_the_share_of_service_follows_the_formula() -> None:
    speeds = [kind.relative_speed for kind in DEVICE_TYPES.values()]
    ids = [DeviceId(name.lower()) for name in DEVICE_TYPES]
    history = serve({d: Candidate(s) for d, s in zip(ids, speeds, strict=True)}, clusters=1, terms=400)
    shares = [sum(leaders == (device,) for leaders in history) / 400 for device in ids]
    expected = [(1 + (s - np.mean(speeds)) / SETTINGS.fairness) / 4 for s in speeds]
    assert shares == pytest.approx(expected, abs=0.06)


def test_standing_then_fitness_then_verification_come_before_score() -> None:
    ranked = {
        DeviceId("d1"): Candidate(0.1),
        DeviceId("d2"): Candidate(0.9, Standing.UNKNOWN),
        DeviceId("d3"): Candidate(1.0, fit=False),
        DeviceId("d4"): Candidate(1.0, Standing.DISTRUSTED),
    }
    offices = elect([list(reversed(ranked))], ranked, {}, (), SETTINGS)
    assert offices[0].succession == tuple(ranked)
    assert (offices[0].leader, offices[0].deputies) == (DeviceId("d1"), (DeviceId("d2"), DeviceId("d3")))


def test_the_sitting_leader_stays_against_a_slightly_better_one() -> None:
    candidates = {A: Candidate(0.80), B: Candidate(0.85)}
    assert elect([[A, B]], candidates, {}, (A,), SETTINGS)[0].leader == A
    assert elect([[A, B]], candidates, {}, (), SETTINGS)[0].leader == B


def test_an_exhausted_leader_hands_over_but_serves_on_when_alone() -> None:
    tired = {A: Candidate(1.0, fit=False), B: Candidate(0.2)}
    assert elect([[A, B]], tired, {}, (A,), SETTINGS)[0].leader == B
    lone = elect([[A]], tired, {A: Service(5.0, 7, 9)}, (A,), SETTINGS)[0]
    assert (lone.leader, lone.deputies) == (A, ())


def test_battery_and_heat_end_service_with_a_margin(report: Callable[..., Telemetry]) -> None:
    def fit(*, sitting: bool, **changes: Any) -> bool:
        return fit_to_serve(report("C", **changes), SETTINGS, sitting=sitting)

    assert fit(sitting=True, battery=0.25)
    assert not fit(sitting=False, battery=0.25)
    assert not fit(sitting=True, battery=0.19)
    assert fit(sitting=True, temperature_c=83.0)
    assert not fit(sitting=False, temperature_c=83.0)
    assert not fit(sitting=True, temperature_c=86.0)
    assert fit(sitting=False, battery=None, temperature_c=None)


def test_scores_rise_with_the_device_type_and_lie_in_0_to_1(
    report: Callable[..., Telemetry], evidence: Callable[..., Evidence]
) -> None:
    reports = [report(kind) for kind in "ABCD"]
    trusted = assess(reports, [evidence(kind) for kind in "ABCD"], TrustSettings())
    scores = resource_scores(reports, trusted, SETTINGS)
    assert np.all(np.diff(scores) > 0)
    assert np.all((scores > 0) & (scores <= 1))
    assert resource_scores([], assess([], [], TrustSettings()), SETTINGS).shape == (0,)


def test_load_and_a_low_battery_lower_the_score(
    report: Callable[..., Telemetry], evidence: Callable[..., Evidence]
) -> None:
    reports = [report("C"), report("C", cpu_load=0.95), report("C", battery=0.3), report("C", memory_free_mib=100)]
    trusted = assess(reports, [evidence("C")] * 4, TrustSettings())
    scores = resource_scores(reports, trusted, SETTINGS)
    assert scores.argmax() == 0
    assert np.all(scores[1:] < 0.97 * scores[0])


def test_service_is_kept_as_plain_numbers() -> None:
    service = after_election({A: Service(2.0, 2, 5)}, [A, B], SETTINGS)
    assert service == {A: Service(2.8, 3, 6), B: Service(1.0, 1, 1)}
    assert after_election(service, [C], SETTINGS)[A] == Service(pytest.approx(2.52), 0, 6)
    stored = msgspec.msgpack.encode(service)
    assert msgspec.msgpack.decode(stored, type=dict[str, Service]) == service


def test_an_empty_cluster_has_no_leader() -> None:
    with pytest.raises(ConfigError, match="cluster 0"):
        elect([[]], {}, {}, (), SETTINGS)


@pytest.mark.parametrize(
    "wrong", [{"pace": -0.1}, {"fairness": 0.0}, {"fade": 1.0}, {"hysteresis": -1.0}, {"max_in_row": 0}]
)
def test_settings_that_cannot_work_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="election"):
        ElectionSettings(**wrong)


IDLE = {"cpu_count": 4, "cpu_ghz": 1.4, "cpu_load": 0.2, "memory_total_mib": 4096, "memory_free_mib": 2048}
GOOD = Evidence(network_mbps=Observed(10.0, 5), availability=Observed(0.95, 5))


@pytest.mark.parametrize(
    ("evidence", "serves"),
    [
        (GOOD, True),
        (Evidence(), True),
        (Evidence(network_mbps=Observed(0.02, 3), availability=Observed(1.0, 3)), False),
        (Evidence(network_mbps=Observed(10.0, 3), availability=Observed(20 / 120, 3)), False),
        (Evidence(network_mbps=Observed(1.0, 3)), True),
    ],
    ids=["good", "unobserved", "20 kbit/s", "20 s in 120", "a tenth of the median"],
)
def test_a_link_that_was_seen_to_be_poor_does_not_serve(evidence: Evidence, serves: bool) -> None:
    typical = typical_mbps([GOOD, GOOD, GOOD, evidence])
    assert link_serves(Telemetry(**IDLE), evidence, typical, ElectionSettings()) is serves


def test_who_says_that_its_link_is_thin_is_believed() -> None:
    thin = Telemetry(**IDLE, network_mbps=0.02)
    assert not link_serves(thin, GOOD, typical_mbps([GOOD]), ElectionSettings())


def test_where_no_rate_was_observed_none_is_typical() -> None:
    assert typical_mbps([Evidence()]) == 0.0
