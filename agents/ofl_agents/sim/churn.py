"""Churn for a simulated fleet: devices come and go, leaders are killed at random, the coordinator every tenth round."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from ofl_iot.ids import COORDINATOR, RESERVED
from ofl_iot.roles.agent import AgentMachine
from ofl_iot.roles.coordinator.machine import CoordinatorMachine
from ofl_iot.runtime.virtual import Party, VirtualWorld
from ofl_iot.runtime.virtual_broker import Faults

AWAY = 0.1
"""Share of the devices that is away at any time."""
AWAY_S = 6.0
"""How long a device is away, on average; a killed leader is away as long."""
KILL_LEADER = 0.3
"""Chance, per round, that a leader is killed."""
COORDINATOR_ROUNDS = 10
"""The coordinator is killed once in so many rounds."""
COORDINATOR_AWAY_S = 2.0

COMING_AND_GOING = Faults(mean_away_s=AWAY_S, mean_connected_s=AWAY_S * (1 - AWAY) / AWAY, lose_under_way=0.5)


@dataclass
class Churn:
    """Disturbs a virtual world while it runs; the same seed disturbs it alike."""

    world: VirtualWorld
    seed: int
    coordinator_restarts: int = 0
    doubled_chunks: int = 0
    """Counted by coordinators that were killed since."""

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)  # noqa: S311  # a simulation repeats itself

    def run(self, done: Callable[[], bool], *, limit_s: float) -> bool:
        """Run until `done`, killing between rounds and in their midst; False when the time limit came first."""
        while not done():
            before = self._completed()
            if not self.world.run(lambda before=before: done() or self._completed() > before, limit_s=limit_s):  # type: ignore[misc]
                return False
            self.world.run(done, limit_s=self.world.now + self._chance.uniform(0.0, 2.0))
            if not done():
                self._kill_someone()
        return self._calm_down(limit_s)

    def _calm_down(self, limit_s: float) -> bool:
        """No more faults; wait until every party is back."""
        for party in self.world.parties.values():
            party.faults = None
        return self.world.run(
            lambda: all(party.machine and party.linked for party in self.world.parties.values()), limit_s=limit_s
        )

    def _kill_someone(self) -> None:
        coordinator = self.world.parties[COORDINATOR]
        leading = [party for party in self._devices() if _leads(party)]
        if self._completed() // COORDINATOR_ROUNDS > self.coordinator_restarts:
            self.coordinator_restarts += 1
            if isinstance(coordinator.machine, CoordinatorMachine):
                self.doubled_chunks += coordinator.machine.doubled_chunks
            self.world.crash(coordinator, for_s=self._chance.expovariate(1 / COORDINATOR_AWAY_S))
        elif leading and self._chance.random() < KILL_LEADER:
            self.world.crash(self._chance.choice(leading), for_s=self._chance.expovariate(1 / AWAY_S))

    def _devices(self) -> list[Party]:
        return [party for name, party in self.world.parties.items() if name not in RESERVED]

    def _completed(self) -> int:
        machine = self.world.parties[COORDINATOR].machine
        return machine.counter.completed if isinstance(machine, CoordinatorMachine) else 0


def _leads(party: Party) -> bool:
    return isinstance(party.machine, AgentMachine) and party.machine.leader.leading
