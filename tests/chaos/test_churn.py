"""A tenth of the devices is away, leaders die at random, the coordinator every tenth round: the fleet goes on."""

from __future__ import annotations

import pytest

from ofl_iot.roles.reports.coordinator import Clustered, LeaderReplaced
from tests.chaos.fleet import ChurningFleet
from tests.chaos.test_exactly_once import check_books


def live_through(seed: int, *, rounds: int, devices: int) -> ChurningFleet:
    """Churn, then quiet: whatever was released is in the global model once, and everyone is where it belongs."""
    fleet = ChurningFleet(seed=seed, devices=devices)
    fleet.churn(rounds)
    assert fleet.settle(limit_s=400.0), f"seed {seed} does not come to rest"
    placed = fleet.world.run(fleet.everyone_is_where_it_belongs, limit_s=fleet.world.now + 120.0)
    assert placed, f"seed {seed}: a device is not where it belongs"
    fleet.check_fleet()
    check_books(fleet)
    assert fleet.coordinator_kills == rounds // 10
    return fleet


@pytest.mark.parametrize("block", range(20))
def test_a_churning_fleet_comes_to_rest_with_its_books_in_order(block: int) -> None:
    for seed in range(block * 10, block * 10 + 10):
        live_through(seed, rounds=12, devices=6)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_a_larger_fleet_does_so_for_longer(block: int) -> None:
    for seed in range(block * 10, block * 10 + 10):
        live_through(seed, rounds=32, devices=12)


def test_the_churn_really_happens() -> None:
    fleet = ChurningFleet(seed=4)
    fleet.churn(32)
    told = fleet.world.told
    assert fleet.coordinator_kills == 3
    assert fleet.leader_kills >= 1
    assert told[LeaderReplaced] >= 1
    assert told[Clustered] > 3
    links = [record.evidence.availability.value for record in fleet.coordinator.roster.devices.values()]  # type: ignore[union-attr]
    assert 0.7 < sum(links) / len(links) < 0.98, "about a tenth is away, as the coordinator sees it"
