"""The coordinator and its fleet in virtual time: forgers, tired leaders, long absences, a second coordinator."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from ofl_iot.errors import ConfigError
from ofl_iot.ids import COORDINATOR, DeviceId
from ofl_iot.protocol.messages import Blocks
from ofl_iot.protocol.telemetry import Telemetry
from ofl_iot.roles.agent import AgentMachine
from ofl_iot.roles.commands import Command
from ofl_iot.roles.coordinator.machine import CoordinatorMachine
from ofl_iot.roles.events import Arrived, Event
from ofl_iot.roles.reports.coordinator import Clustered, DeviceJoined, RivalCoordinator, TakeoverDone
from ofl_iot.roles.settings import DownloadRules, FleetRules, RoundRules, TrainingRules
from ofl_iot.runtime.virtual import Party
from ofl_iot.runtime.virtual_broker import Faults
from tests.chaos.fleet import ChurningFleet, honest
from tests.chaos.tally import EvenPace, TallyToolbox
from tests.chaos.test_exactly_once import check_books

QUIET = Faults()
DAY_S = 86_400.0


def leaders_of(fleet: ChurningFleet) -> list[DeviceId]:
    assert fleet.coordinator is not None
    return [DeviceId(seat.leader) for seat in fleet.coordinator.roster.seats()]


def reach(fleet: ChurningFleet, rounds: int, limit_s: float = 1000.0) -> None:
    assert fleet.world.run(lambda: fleet.completed >= rounds, limit_s=fleet.world.now + limit_s)


# --- observed, not only reported


def boast(report: Telemetry) -> Telemetry:
    """The slowest device of all claims to be a thousand times as fast."""
    return msgspec.structs.replace(report, step_s=0.001, cpu_count=64, cpu_ghz=5.0, network_mbps=900.0)


def test_a_forger_is_not_made_leader_once_it_was_observed() -> None:
    slot = 7
    forger = DeviceId(f"d{slot}")
    often = RoundRules(interval_s=4.0, deadline_s=6.0, recluster_every=2)
    fleet = ChurningFleet(seed=1, faults=QUIET, rounds=often, claims={slot: boast})
    found_out = False
    for rounds in range(2, 42, 2):
        reach(fleet, rounds)
        assert fleet.coordinator is not None
        plan = fleet.coordinator.roster.plan
        assert plan is not None
        assert set(plan.distrusted) <= {forger}, "nobody else is suspected"
        found_out = found_out or forger in plan.distrusted
        assert not (found_out and forger in leaders_of(fleet))
        if rounds == 20:
            fleet.world.crash(fleet.world.parties[COORDINATOR], for_s=1.0)  # what was observed outlives the process
    assert found_out
    evidence = fleet.coordinator.roster.devices[forger].evidence if fleet.coordinator else None
    assert evidence is not None
    assert evidence.steps_per_s.value == pytest.approx(1 / 1.7, rel=0.2), "a training takes it 1.7 s"
    assert evidence.steps_per_s.count > 20


# --- leaders that cannot go on


def test_a_leader_whose_battery_runs_low_hands_over_and_stays_a_member() -> None:
    charge = {"low": False}

    def draining(report: Telemetry) -> Telemetry:
        return msgspec.structs.replace(honest(report), battery=0.1 if charge["low"] else 0.9)

    fleet = ChurningFleet(
        seed=2,
        faults=QUIET,
        rounds=RoundRules(interval_s=2.0, deadline_s=6.0, recluster_every=0),
        claims=dict.fromkeys((0, 1, 2, 3), draining),
    )
    reach(fleet, 3)
    (tired, *_) = [name for name in leaders_of(fleet) if name in ("d0", "d1", "d2", "d3")] or [None]
    assert tired is not None, "the seed makes one of them a leader"
    charge["low"] = True
    assert fleet.world.run(lambda: tired not in leaders_of(fleet), limit_s=fleet.world.now + 60.0)
    assert not {"d0", "d1", "d2", "d3"} & set(leaders_of(fleet)), "nor does another one with a low battery serve"
    assert fleet.world.run(fleet.everyone_is_where_it_belongs, limit_s=fleet.world.now + 30.0)
    assert not fleet.agents[tired].leader.leading
    assert fleet.settle(limit_s=200.0)
    check_books(fleet)


# --- turnover and long absence


def test_a_fleet_that_has_grown_is_clustered_anew_before_its_time() -> None:
    fleet = ChurningFleet(
        seed=3,
        faults=QUIET,
        rounds=RoundRules(interval_s=2.0, deadline_s=6.0, recluster_every=1000),
        fleet=FleetRules(min_devices=3, gather_s=0.05, leader_grace_s=3.0, heartbeat_s=4.0, turnover=0.5),
        between_arrivals_s=1.0,
    )
    reach(fleet, 8)
    assert fleet.world.told[DeviceJoined] >= 4, "most come after the beginning"
    assert fleet.world.told[Clustered] > 1
    assert fleet.everyone_is_where_it_belongs()


def slow_fleet(recluster_every: int = 4, **changes: object) -> ChurningFleet:
    """Trains, reports and aggregates a few times an hour: days pass quickly."""
    return ChurningFleet(
        seed=4,
        devices=5,
        faults=QUIET,
        training=TrainingRules(pause_s=900.0),
        rounds=RoundRules(interval_s=1800.0, deadline_s=60.0, recluster_every=recluster_every),
        fleet=FleetRules(min_devices=5, gather_s=5.0, clusters=2, heartbeat_s=900.0, away_s=4 * 3600.0),
        **changes,  # type: ignore[arg-type]
    )


def test_a_device_back_after_three_days_is_assigned_and_its_work_counts_once() -> None:
    fleet = slow_fleet()
    reach(fleet, 5, limit_s=DAY_S)
    traveller = next(name for name in fleet.names if name not in leaders_of(fleet))
    agent = fleet.agents[traveller]
    fleet.world.cut(fleet.world.parties[traveller], for_s=3 * DAY_S)
    before = len(fleet.released(traveller))
    fleet.world.run(lambda: False, limit_s=fleet.world.now + 2.9 * DAY_S)
    assert fleet.coordinator is not None
    assert fleet.coordinator.roster.cluster_of(traveller) is None, "its place is given up"
    assert len(fleet.released(traveller)) == before
    work = float(agent.device.model.unreleased[fleet.names.index(traveller)])
    assert work == fleet.training.max_unreleased, "it has trained on as far as that makes sense"
    assert fleet.world.run(lambda: fleet.coordinator.roster.cluster_of(traveller) is not None, limit_s=5 * DAY_S)
    assert fleet.world.run(fleet.everyone_is_where_it_belongs, limit_s=fleet.world.now + 60.0), "at once"
    assert fleet.settle(limit_s=DAY_S)
    check_books(fleet)
    assert sum(fleet.released(traveller).values()) >= work + before


def test_who_returns_to_the_same_leader_pulls_what_has_changed_most() -> None:
    fleet = slow_fleet(recluster_every=0, download=DownloadRules(gamma=0.4, timeout_s=2.0))
    reach(fleet, 5, limit_s=DAY_S)
    traveller = next(name for name in fleet.names if name not in leaders_of(fleet))
    agent = fleet.agents[traveller]
    assert agent.device.assignment is not None
    leader = fleet.agents[DeviceId(agent.device.assignment.leader)].leader
    fleet.world.cut(fleet.world.parties[traveller], for_s=2 * DAY_S)
    lags: list[tuple[list[int], np.ndarray]] = []
    note_lags(agent, leader.profile.device, fleet, lags)
    assert fleet.world.run(lambda: bool(lags), limit_s=fleet.world.now + 3 * DAY_S)
    sent, lag = lags[0]
    assert 0 < len(sent) < len(lag)
    assert min(lag[sent]) >= max(np.delete(lag, sent)), "the blocks with the greatest lag come"


def note_lags(
    agent: AgentMachine, leader: DeviceId, fleet: ChurningFleet, lags: list[tuple[list[int], np.ndarray]]
) -> None:
    """Note, for each answer to a pull, which blocks came and how far each block lagged."""
    decide = agent.handle

    def handle(event: Event, now: float) -> list[Command]:
        if isinstance(event, Arrived) and isinstance(event.message, Blocks):
            cluster = fleet.agents[leader].leader.cluster
            assert cluster is not None
            lag = cluster.cumulative_change - agent.device.model.seen
            came = np.concatenate([batch.read_index() for batch in event.message.read_batches()])
            lags.append((came.tolist(), lag))
        return decide(event, now)

    agent.handle = handle  # type: ignore[method-assign]


# --- two coordinators


def second(fleet: ChurningFleet, *, take_over: bool = False) -> Party:
    """Another coordinator with a store of its own."""
    party = Party(
        "another",
        lambda: fleet.new_coordinator(b"another", take_over=take_over),
        TallyToolbox(fleet.devices, None, fleet),
        EvenPace(0.01),
    )
    fleet.world.add(party, at=fleet.world.now)
    return party


def test_a_second_coordinator_refuses_to_start_and_harms_nobody() -> None:
    fleet = ChurningFleet(seed=5, faults=QUIET)
    reach(fleet, 3)
    party = second(fleet)
    with pytest.raises(ConfigError, match=r"another coordinator runs or ran this federation .*--take-over"):
        fleet.world.run(lambda: False, limit_s=fleet.world.now + 30.0)
    fleet.world.crash(party, for_s=1e9)
    reach(fleet, 6)
    assert fleet.world.told[RivalCoordinator] == 0, "it was gone before it said a word"
    party.machine = party.make_machine()
    assert fleet.settle(limit_s=200.0)
    check_books(fleet)


def test_one_that_takes_over_begins_a_new_term_and_the_old_one_cannot_come_back() -> None:
    fleet = ChurningFleet(seed=6, faults=QUIET)
    reach(fleet, 3)
    old = fleet.world.parties[COORDINATOR]
    assert fleet.coordinator is not None
    term = fleet.coordinator.roster.highest_term
    fleet.world.crash(old, for_s=60.0)
    heir = second(fleet, take_over=True)
    fleet.world.run(lambda: False, limit_s=fleet.world.now + 50.0)
    fleet.coordinator = heir.machine  # type: ignore[assignment]
    assert fleet.completed >= 3
    assert fleet.coordinator is not None
    assert fleet.coordinator.roster.terms
    assert min(fleet.coordinator.roster.terms.values()) > term
    assert fleet.everyone_is_where_it_belongs()
    with pytest.raises(ConfigError, match="another coordinator"):
        fleet.world.run(lambda: False, limit_s=fleet.world.now + 30.0)


@pytest.mark.parametrize("seed", range(6))
def test_when_the_coordinators_disk_is_lost_its_heir_goes_on_from_its_model_and_its_books(seed: int) -> None:
    fleet = ChurningFleet(seed=seed, faults=QUIET)
    reach(fleet, 3)
    fleet.world.run(lambda: False, limit_s=fleet.world.now + seed / 4)
    assert fleet.coordinator is not None
    before = fleet.coordinator.counter.completed
    fleet.world.crash(fleet.world.parties[COORDINATOR], for_s=1e9)
    heir = second(fleet, take_over=True)
    assert fleet.world.run(lambda: fleet.world.told[TakeoverDone] == 1, limit_s=fleet.world.now + 20)
    assert isinstance(heir.machine, CoordinatorMachine)
    assert before - 1 <= heir.machine.counter.completed <= before, "the last model may have been under way"
    fleet.world.parties.pop(COORDINATOR)
    fleet.coordinator = heir.machine
    reach(fleet, before + 3)
    assert fleet.settle(limit_s=200.0)
    check_books(fleet)
    assert fleet.coordinator.doubled_chunks == 0


def test_the_running_one_stops_when_another_takes_over() -> None:
    fleet = ChurningFleet(seed=7, faults=QUIET)
    reach(fleet, 3)
    heir = second(fleet, take_over=True)
    with pytest.raises(ConfigError, match="another coordinator"):
        fleet.world.run(lambda: False, limit_s=fleet.world.now + 60.0)
    fleet.world.crash(fleet.world.parties[COORDINATOR], for_s=1e9)
    fleet.coordinator = heir.machine  # type: ignore[assignment]
    reach(fleet, fleet.completed + 3)
    assert fleet.everyone_is_where_it_belongs()
