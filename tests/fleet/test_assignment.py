from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofl_iot.errors import ConfigError
from ofl_iot.fleet.assignment import (
    DeviceView,
    FleetPlan,
    FleetSettings,
    assignments,
    cluster_of,
    leaders,
    plan_assignments,
    spread_leaders,
    turnover,
    with_joiners,
    with_leader_lost,
)
from ofl_iot.fleet.clustering import ClusteringSettings
from ofl_iot.fleet.election import Candidate
from ofl_iot.fleet.trust import Evidence, Observed
from ofl_iot.ids import DeviceId, Term
from ofl_iot.protocol.telemetry import Telemetry

SETTINGS = FleetSettings()
FleetMaker = Callable[..., dict[DeviceId, DeviceView]]


def plan_of(devices: dict[DeviceId, DeviceView], previous: FleetPlan | None = None, seed: int = 0) -> FleetPlan:
    term = Term(previous.term + 1 if previous else 1)
    return plan_assignments(devices, previous, term, SETTINGS, np.random.default_rng(seed))


def assert_sound(plan: FleetPlan, live: set[DeviceId]) -> None:
    """Every live device is in exactly one cluster; leaders and deputies belong to theirs, in order of succession."""
    members = [device for cluster in plan.clusters for device in cluster.members]
    assert len(members) == len(set(members))
    assert set(members) == live
    for cluster in plan.clusters:
        assert cluster.leader == cluster.members[0]
        assert cluster.deputies == cluster.members[1 : 1 + SETTINGS.election.deputies]


@st.composite
def views(draw: st.DrawFn) -> DeviceView:
    total = draw(st.integers(1, 2**20))
    share = st.floats(0, 1)
    seen = st.builds(Observed, st.floats(0, 1e4), st.integers(0, 50))
    telemetry = Telemetry(
        cpu_count=draw(st.integers(1, 128)),
        cpu_ghz=draw(st.floats(0.1, 6)),
        cpu_load=draw(share),
        memory_total_mib=total,
        memory_free_mib=draw(st.integers(0, total)),
        battery=draw(st.none() | share),
        temperature_c=draw(st.none() | st.floats(-90, 200)),
        network_mbps=draw(st.none() | st.floats(1e-6, 1e6)),
        availability=draw(share),
        samples=draw(st.integers(0, 10**9)),
        staleness=draw(st.integers(0, 10**6)),
        model_distance=draw(st.floats(0, 1e6)),
        step_s=draw(st.none() | st.floats(1e-9, 1e6)),
    )
    return DeviceView(telemetry, Evidence(draw(seen), draw(seen), draw(seen)))


@given(pool=st.lists(views(), min_size=1, max_size=24), data=st.data())
@settings(max_examples=40, deadline=None)
def test_every_live_device_is_in_exactly_one_cluster_every_term(pool: list[DeviceView], data: st.DataObject) -> None:
    everyone = {DeviceId(f"device-{i}"): view for i, view in enumerate(pool)}
    plan: FleetPlan | None = None
    for _ in range(3):
        live = data.draw(st.sets(st.sampled_from(sorted(everyone))))
        plan = plan_of({device: everyone[device] for device in live}, plan)
        assert_sound(plan, live)
        assert all(len(c.members) >= min(2, len(live)) for c in plan.clusters) or plan.distrusted
        assert 0 <= plan.churn <= 1


@given(pool=st.lists(views(), min_size=1, max_size=16), data=st.data())
@settings(max_examples=40, deadline=None)
def test_joining_and_losing_leaders_keep_a_plan_sound(pool: list[DeviceView], data: st.DataObject) -> None:
    everyone = {DeviceId(f"device-{i}"): view for i, view in enumerate(pool)}
    live = set(data.draw(st.sets(st.sampled_from(sorted(everyone)))))
    plan = plan_of({device: everyone[device] for device in live})
    for _ in range(8):
        device = data.draw(st.sampled_from(sorted(everyone)))
        match data.draw(st.sampled_from(["join", "lose"])):
            case "join":
                plan = with_joiners(plan, {device: everyone[device]})
                live.add(device)
            case _:
                alone = next((c.members == (device,) for c in plan.clusters if device in c.members), False)
                plan = with_leader_lost(plan, device)
                live -= {device} if alone else set()
        assert_sound(plan, live)
    assert_sound(plan_of({device: everyone[device] for device in live}, plan), live)


@pytest.mark.parametrize(("size", "clusters"), [(0, 0), (1, 1), (2, 1), (3, 1), (4, 2), (16, 4), (1000, 10)])
def test_fleets_of_every_size_have_log2_clusters(fleet: FleetMaker, size: int, clusters: int) -> None:
    devices = fleet(size)
    plan = plan_of(devices)
    assert len(plan.clusters) == clusters
    assert_sound(plan, set(devices))


def test_ten_thousand_devices_are_planned(fleet: FleetMaker) -> None:
    devices = fleet(10_000)
    plan = plan_of(devices)
    assert_sound(plan, set(devices))
    again = plan_of(devices, plan)
    assert again.churn < 0.05


def test_devices_of_like_pace_learn_together(fleet: FleetMaker) -> None:
    devices = fleet(16)
    plan = plan_of(devices)
    for cluster in plan.clusters:
        paces = [1 / (devices[device].report.step_s or 1) for device in cluster.members]
        assert max(paces) < 1.3 * min(paces)


def test_the_plan_does_not_depend_on_the_order_of_the_devices(fleet: FleetMaker) -> None:
    devices = fleet(50)
    assert plan_of(devices) == plan_of(dict(reversed(devices.items())))


def test_leaders_take_turns_while_nobody_changes_cluster(fleet: FleetMaker) -> None:
    devices, plan, led = fleet(16), None, []
    for _ in range(20):
        plan = plan_of(devices, plan)
        assert plan.churn == 0
        led.append(set(leaders(plan)))
    assert len(set.union(*led)) >= 13
    assert sum(record.terms for record in plan.service.values()) == 20 * len(plan.clusters)


def test_in_a_mixed_cluster_strong_types_serve_more_and_weak_ones_sometimes(fleet: FleetMaker) -> None:
    devices, plan, led = fleet(16), None, Counter[str]()
    mixed = FleetSettings(clustering=ClusteringSettings(clusters=1))
    for term in range(1, 41):
        plan = plan_assignments(devices, plan, Term(term), mixed, np.random.default_rng(term))
        led.update(str(devices[leader].report.device_type) for leader in leaders(plan))  # type: ignore[attr-defined]
    assert led["D"] > led["C"] > led["B"] > led["A"] > 0


def test_a_leader_whose_battery_runs_low_hands_over(fleet: FleetMaker) -> None:
    devices = fleet(16)
    plan = plan_of(devices)
    weary = plan.clusters[0].leader
    view = devices[weary]
    devices[weary] = DeviceView(msgspec.structs.replace(view.report, battery=0.1), view.evidence)
    after = plan_of(devices, plan)
    assert weary not in leaders(after)
    assert weary in assignments(after)


def test_a_lost_leaders_deputy_takes_over_once(fleet: FleetMaker) -> None:
    plan = plan_of(fleet(16))
    old = plan.clusters[1]
    after = with_leader_lost(plan, old.leader)
    found = cluster_of(after, old.leader)
    assert found is not None
    assert (found[0], found[1].leader) == (1, old.deputies[0])
    assert found[1].members[-1] == old.leader
    assert after.service[old.deputies[0]].terms == 1
    assert with_leader_lost(after, old.leader) == after
    assert [c for j, c in enumerate(after.clusters) if j != 1] == [c for j, c in enumerate(plan.clusters) if j != 1]


def test_a_late_joiner_is_placed_with_its_like_and_only_once(
    fleet: FleetMaker, report: Callable[..., Telemetry]
) -> None:
    devices = fleet(16)
    plan = plan_of(devices)
    joiner = DeviceId("newcomer")
    joined = with_joiners(plan, {joiner: DeviceView(report("D"))})
    found = cluster_of(joined, joiner)
    assert found is not None
    kinds = {devices[d].report.device_type for d in found[1].members if d != joiner}  # type: ignore[attr-defined]
    assert "D" in kinds
    assert not kinds & {"A", "B"}
    assert found[1].leader == plan.clusters[found[0]].leader
    assert with_joiners(joined, {joiner: DeviceView(report("A"))}) == joined


def test_full_clusters_send_joiners_on(fleet: FleetMaker, report: Callable[..., Telemetry]) -> None:
    tight = FleetSettings(clustering=ClusteringSettings(balance=1.0))
    plan = plan_assignments(fleet(16), None, Term(1), tight, np.random.default_rng(0))
    for i in range(8):
        plan = with_joiners(plan, {DeviceId(f"newcomer-{i}"): DeviceView(report("D"))}, tight)
    assert [len(c.members) for c in plan.clusters] == [6, 6, 6, 6]


def test_the_last_device_takes_its_cluster_with_it(fleet: FleetMaker, report: Callable[..., Telemetry]) -> None:
    plan = plan_of(fleet(1))
    only = plan.clusters[0].leader
    alone = with_leader_lost(plan, only)
    assert alone.clusters == ()
    revived = with_joiners(alone, {only: DeviceView(report("C"))})
    assert leaders(revived) == (only,)


def test_a_fleet_can_grow_from_nothing(report: Callable[..., Telemetry]) -> None:
    plan, arrivals = plan_of({}), [DeviceId(f"device-{i}") for i in range(5)]
    for device in arrivals:
        plan = with_joiners(plan, {device: DeviceView(report("B"))})
    assert_sound(plan, set(arrivals))
    assert leaders(plan) == (arrivals[0],)


@given(st.integers(0, 12), st.integers(0, 40), st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=30)
def test_joiners_placed_together_are_all_placed_once_and_within_the_limit(
    fleet: FleetMaker, report: Callable[..., Telemetry], before: int, count: int, seed: int
) -> None:
    tight = FleetSettings(clustering=ClusteringSettings(balance=1.0))
    rng = np.random.default_rng(seed)
    devices = fleet(before)
    plan = plan_assignments(devices, None, Term(1), tight, rng)
    joiners = {DeviceId(f"newcomer-{i}"): DeviceView(report(str(rng.choice(list("ABCD"))))) for i in range(count)}
    joined = with_joiners(plan, joiners, tight)
    assert_sound(joined, {*devices, *joiners})
    assert with_joiners(joined, joiners, tight) == joined
    average = math.ceil((before + count) / max(1, len(joined.clusters)))
    grown = [len(new.members) for new, old in zip(joined.clusters, plan.clusters, strict=False) if new != old]
    assert all(size <= average for size in grown)
    assert leaders(plan) == leaders(joined) or not plan.clusters


def test_turnover_counts_who_came_and_went(fleet: FleetMaker) -> None:
    devices = fleet(10)
    plan = plan_of(devices)
    assert turnover(plan, devices) == 0
    live = {*list(devices)[2:], DeviceId("newcomer")}
    assert turnover(plan, live) == pytest.approx(0.3)


def test_a_plan_survives_the_journal(fleet: FleetMaker) -> None:
    plan = plan_of(fleet(20))
    stored = msgspec.msgpack.encode(plan)
    assert msgspec.msgpack.decode(stored, type=FleetPlan) == plan


def test_terms_only_grow(fleet: FleetMaker) -> None:
    devices = fleet(4)
    plan = plan_of(devices)
    with pytest.raises(ConfigError, match="terms only grow"):
        plan_assignments(devices, plan, plan.term, SETTINGS, np.random.default_rng(0))


def test_a_device_with_a_poor_link_is_not_elected_again_and_again(fleet: FleetMaker) -> None:
    """One at 20 kbit/s and one reachable 20 s in 120, among good ones, over as many terms as anybody must rest."""
    good = Evidence(network_mbps=Observed(10.0, 20), availability=Observed(0.95, 20))
    devices = {device: replace(view, evidence=good) for device, view in fleet(16).items()}
    thin, rare = sorted(devices)[:2]
    devices[thin] = replace(devices[thin], evidence=replace(good, network_mbps=Observed(0.02, 20)))
    devices[rare] = replace(devices[rare], evidence=replace(good, availability=Observed(20 / 120, 20)))
    mixed = FleetSettings(clustering=ClusteringSettings(clusters=2))
    plan, led = None, set()
    for term in range(1, 31):
        plan = plan_assignments(devices, plan, Term(term), mixed, np.random.default_rng(term))
        led |= {*leaders(plan)}
    assert len(led) > 4
    assert not led & {thin, rare}


def test_a_cluster_of_devices_that_cannot_lead_gets_one_that_can() -> None:
    """Thin links are alike and gather in a cluster of their own."""
    names = [DeviceId(name) for name in ("good-1", "good-2", "good-3", "thin-1", "thin-2", "thin-3")]
    candidates = {name: Candidate(score=float(name[-1]), fit=name.startswith("good")) for name in names}
    members = [names[:3], names[3:]]
    spread_leaders(members, candidates)
    assert members == [["good-1", "good-3", "thin-1"], ["good-2", "thin-2", "thin-3"]]
    spread_leaders(members, candidates)
    assert members == [["good-1", "good-3", "thin-1"], ["good-2", "thin-2", "thin-3"]]
    alone = [names[:1], names[3:]]
    spread_leaders(alone, candidates)
    assert alone == [names[:1], names[3:]], "who alone can lead a cluster stays there"


def test_where_all_links_are_thin_somebody_leads(fleet: FleetMaker) -> None:
    devices = {
        device: DeviceView(msgspec.structs.replace(view.report, network_mbps=0.02), view.evidence)
        for device, view in fleet(8).items()
    }
    assert_sound(plan_of(devices), set(devices))
