from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofl_iot.errors import ConfigError
from ofl_iot.fleet.assignment import DeviceView, FleetPlan, FleetSettings, assignments, leaders, plan_assignments
from ofl_iot.fleet.election import ElectionSettings, resource_scores
from ofl_iot.fleet.trust import Evidence, Observed, Standing, TrustSettings, agreement, assess
from ofl_iot.ids import DeviceId, Term
from ofl_iot.protocol.telemetry import Telemetry

SETTINGS = TrustSettings()
FORGED = {"step_s": 1e-4, "network_mbps": 900.0, "availability": 1.0, "cpu_count": 64, "cpu_load": 0.0}


@given(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6))
def test_agreement_is_full_nearby_and_falls_with_disagreement(claimed: float, observed: float) -> None:
    one = float(agreement(np.array([claimed]), np.array([observed]), SETTINGS)[0])
    assert 0 <= one <= 1
    if 1 / SETTINGS.underclaim < claimed / observed < SETTINGS.overclaim:
        assert one == 1
    further = float(agreement(np.array([max(claimed, observed) * 10]), np.array([observed]), SETTINGS)[0])
    assert further <= 0.041


@given(st.floats(1e-3, 1e6), st.lists(st.floats(1e-3, 100), max_size=12))
def test_no_claim_is_believed_beyond_the_greater_of_observation_and_median(claim: float, seen: list[float]) -> None:
    evidence = Evidence()
    for rate in seen:
        evidence = evidence.with_arrival(round(rate * 1e6), 8.0)
    reports = [
        Telemetry(cpu_count=1, cpu_ghz=1.0, cpu_load=0, memory_total_mib=1, memory_free_mib=1, network_mbps=mbps)
        for mbps in (claim, 5.0, 10.0)
    ]
    believed = assess(reports, [evidence, Evidence(), Evidence()], SETTINGS).network_mbps[0]
    assert believed <= min(claim, max([10.0, *seen])) * 1.001


def test_honest_devices_become_verified_and_forgers_distrusted(
    report: Callable[..., Telemetry], evidence: Callable[..., Evidence]
) -> None:
    reports = [report("A"), report("A", step_s=0.001), report("A", network_mbps=500.0), report("A", availability=0.02)]
    standing = {count: assess(reports, [evidence("A", count)] * 4, SETTINGS).standing.tolist() for count in (0, 2, 10)}
    assert set(standing[0]) == {Standing.UNKNOWN}
    assert standing[2] == [Standing.VERIFIED, *[Standing.DISTRUSTED] * 3]
    assert standing[10] == standing[2]


def test_one_interrupted_training_condemns_nobody(report: Callable[..., Telemetry]) -> None:
    interrupted = Evidence().with_training(steps=100, duration_s=3600)
    claims = [report("D")] * 3
    later = interrupted.with_training(100, 10.5).with_training(100, 7200)
    trusted = assess(claims, [interrupted, later, Evidence()], SETTINGS)
    assert Standing.DISTRUSTED not in trusted.standing
    assert trusted.trust[1] > trusted.trust[2]


def test_who_claims_nothing_is_taken_at_what_was_observed(report: Callable[..., Telemetry]) -> None:
    seen = Evidence(steps_per_s=Observed(7.0, 1000))
    trusted = assess([report("C", step_s=None), report("C", step_s=None)], [seen, Evidence()], SETTINGS)
    assert trusted.steps_per_s == pytest.approx([7.0, 0.0], abs=0.05)
    assert Standing.DISTRUSTED not in trusted.standing


def test_impossible_observations_are_ignored() -> None:
    nothing = Evidence()
    assert nothing.with_training(0, 5) is nothing
    assert nothing.with_training(5, 0) is nothing
    assert nothing.with_arrival(100, -1) is nothing
    assert nothing.with_contact(5, 0) is nothing
    assert nothing.with_contact(20, 10).availability == Observed(1.0, 1)


def test_evidence_is_kept_as_plain_numbers() -> None:
    evidence = Evidence().with_training(10, 1).with_arrival(10**6, 2).with_contact(30, 60)
    assert evidence == Evidence(Observed(10.0, 1), Observed(4.0, 1), Observed(0.5, 1))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(evidence), type=Evidence) == evidence


def terms_led(fleet: dict[DeviceId, DeviceView], forgers: set[DeviceId], terms: int) -> tuple[int, FleetPlan]:
    """In how many terms a forger led a cluster, and the last plan."""
    plan, led, rng = None, 0, np.random.default_rng(2)
    for term in range(1, terms + 1):
        plan = plan_assignments(fleet, plan, Term(term), FleetSettings(), rng)
        led += bool(forgers & set(leaders(plan)))
    assert plan is not None
    return led, plan


@pytest.mark.parametrize("share", [0.05, 0.3])
def test_observed_forgers_never_lead(fleet: Callable[..., dict[DeviceId, DeviceView]], share: float) -> None:
    devices = fleet(60)
    forgers = set(list(devices)[:: round(1 / share)])
    for device in forgers:
        view = devices[device]
        devices[device] = DeviceView(msgspec.structs.replace(view.report, **FORGED), view.evidence)
    led, plan = terms_led(devices, forgers, 20)
    assert led == 0
    assert set(plan.distrusted) == forgers
    assert set(assignments(plan)) == set(devices)


@pytest.mark.parametrize("count", [1, 6])
def test_forgers_who_just_joined_do_not_lead_a_fleet_that_is_known(
    fleet: Callable[..., dict[DeviceId, DeviceView]], report: Callable[..., Telemetry], count: int
) -> None:
    devices = fleet(40)
    forgers = {DeviceId(f"aa-forger-{i}") for i in range(count)}
    devices.update({device: DeviceView(report("A", **FORGED)) for device in forgers})
    led, _ = terms_led(devices, forgers, 20)
    assert led == 0


def test_where_nobody_is_known_a_forger_scores_no_better_than_the_honest_strong(
    fleet: Callable[..., dict[DeviceId, DeviceView]],
) -> None:
    views = list(fleet(20, observed=0).values())
    honest: list[Any] = [view.report for view in views]
    only_claims = {name: FORGED[name] for name in ("step_s", "network_mbps")}
    reports = [msgspec.structs.replace(honest[0], **only_claims), *honest[1:]]
    trusted = assess(reports, [view.evidence for view in views], SETTINGS)
    scores = resource_scores(reports, trusted, ElectionSettings(headroom=0.0))
    assert scores[0] <= scores[1:].max()


@pytest.mark.parametrize("wrong", [{"prior": 0.3}, {"verified_above": 1.0}, {"overclaim": 0.5}, {"half_count": 0.0}])
def test_settings_that_cannot_work_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="trust"):
        TrustSettings(**wrong)
