"""A device that loses its state folder, leader or not, loses what it held there and nothing that comes after."""

from __future__ import annotations

import msgspec
import pytest

from ofl_iot.ids import DeviceId
from ofl_iot.roles.reports.coordinator import DeviceStoreLost
from ofl_iot.roles.settings import RoundRules
from ofl_iot.runtime.virtual_broker import Faults
from tests.chaos.tally import DEFAULTS, AuditedStore, TallyWorld

ONE_TERM = RoundRules(interval_s=2.0, deadline_s=8.0, recluster_every=0)
"""No re-clustering that would mend what a lost store broke."""


def leaders_of(fleet: TallyWorld) -> list[DeviceId]:
    return [name for name, agent in fleet.agents.items() if agent.leader.leading]


def check_lives(fleet: TallyWorld, lost: dict[DeviceId, AuditedStore]) -> None:
    """The model holds what the books say of each life, and all of the present ones."""
    assert fleet.coordinator is not None
    for slot, name in enumerate(fleet.names):
        books, released = fleet.coordinator.roster.devices[name].books, fleet.released(name)
        settled = books.settled_of(fleet.store_of(name).id)
        assert set(released) == set(range(1, settled.upto + 1)), f"{name} lost chunks after its store"
        total = sum(released.values())
        if name in lost:
            before = books.settled_of(lost[name].id)
            total += sum(value for seq, value in lost[name].released.items() if seq in before)
        assert fleet.coordinator.model[slot] == pytest.approx(total), f"the sum of {name} is off"
    assert fleet.coordinator.doubled_chunks == 0


@pytest.mark.parametrize("seed", range(4))
def test_a_leader_that_loses_its_folder_loses_no_later_chunk(seed: int) -> None:
    fleet = TallyWorld(devices=5, seed=seed, faults=Faults(), rounds=ONE_TERM)
    fleet.world.run(lambda: False, limit_s=20.0)
    (wiped, *_) = leaders_of(fleet)
    lost = {wiped: fleet.lose_store(wiped)}
    assert lost[wiped].released, "it had worked"
    fleet.world.run(lambda: False, limit_s=60.0)
    assert len(fleet.released(wiped)) > 3, "it works again"
    assert fleet.settle(limit_s=200.0)
    check_lives(fleet, lost)
    assert fleet.world.told[DeviceStoreLost] == 1


@pytest.mark.parametrize("seed", range(4))
def test_a_member_that_loses_its_folder_loses_no_later_chunk(seed: int) -> None:
    fleet = TallyWorld(devices=5, seed=seed, faults=Faults(), rounds=ONE_TERM)
    fleet.world.run(lambda: False, limit_s=20.0)
    wiped = next(name for name in fleet.names if name not in leaders_of(fleet))
    lost = {wiped: fleet.lose_store(wiped)}
    fleet.world.run(lambda: False, limit_s=60.0)
    assert len(fleet.released(wiped)) > 3
    assert fleet.settle(limit_s=200.0)
    check_lives(fleet, lost)


@pytest.mark.parametrize("seed", range(4))
def test_a_leader_that_publishes_changes_and_loses_its_folder_loses_no_later_chunk(seed: int) -> None:
    beats = msgspec.structs.replace(DEFAULTS.leader, publish="beat", beat_s=1.5)
    fleet = TallyWorld(devices=5, seed=seed, faults=Faults(), rounds=ONE_TERM, leader=beats)
    fleet.world.run(lambda: False, limit_s=20.0)
    (wiped, *_) = leaders_of(fleet)
    members = [name for name, agent in fleet.agents.items() if agent.device.assignment.leader == wiped]
    lost = {wiped: fleet.lose_store(wiped)}
    fleet.world.run(lambda: False, limit_s=60.0)
    assert len(fleet.released(wiped)) > 3, "it works again"
    assert all(fleet.agents[name].device.following.in_step for name in members), "its members follow again"
    assert fleet.settle(limit_s=200.0)
    check_lives(fleet, lost)


def test_every_device_loses_its_folder_while_links_come_and_go() -> None:
    rough = Faults(latency_s=(0.005, 0.3), duplicate=0.2, lose_under_way=0.7, mean_connected_s=15.0, mean_away_s=4.0)
    for seed in range(4):
        fleet = TallyWorld(devices=5, seed=seed, faults=rough)
        fleet.world.run(lambda: False, limit_s=20.0)
        lost = {}
        for name in fleet.names:
            lost[name] = fleet.lose_store(name, for_s=2.0)
            fleet.world.run(lambda: False, limit_s=fleet.world.now + 12.0)
        assert fleet.settle(limit_s=300.0), f"seed {seed} does not come to rest"
        check_lives(fleet, lost)
