"""A tenth of the devices is away, leaders die at random, the coordinator every tenth round: the fleet goes on."""

from __future__ import annotations

import pytest

from tests.chaos.fleet import ChurningFleet
from tests.chaos.test_exactly_once import check_books

ROUNDS = 22


def live_through(seed: int, rounds: int) -> ChurningFleet:
    fleet = ChurningFleet(seed=seed)
    fleet.churn(rounds)
    assert fleet.settle(limit_s=300.0), f"seed {seed} does not come to rest"
    placed = fleet.world.run(fleet.everyone_is_where_it_belongs, limit_s=fleet.world.now + 120.0)
    assert placed, f"seed {seed}: a device is not where it belongs"
    fleet.check_fleet()
    check_books(fleet)
    assert fleet.coordinator_kills == rounds // 10
    return fleet


@pytest.mark.parametrize("block", range(20))
def test_a_churning_fleet_comes_to_rest_with_its_books_in_order(block: int) -> None:
    for seed in range(block * 10, block * 10 + 10):
        live_through(seed, ROUNDS)
