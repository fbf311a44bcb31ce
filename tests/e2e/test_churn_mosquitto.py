"""Churn for real: processes over a mosquitto, killed without a word again and again; and a coordinator too many."""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ofl_iot.ids import COORDINATOR
from ofl_iot.transport.link import LinkEvent
from ofl_iot.transport.mqtt import MqttLink, MqttSettings
from tests.conftest import MOSQUITTO, _open_mosquitto
from tests.e2e.processes import NAMES, Federation, OflProcess, Watch, audit_stores, until

pytestmark = pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed")

ROUNDS = 12
COORDINATOR_DIES_AFTER = 10


@dataclass
class StrictWatch(Watch):
    """Remembers every assignment: a device has one leader a term, and terms only grow."""

    leaders_told: dict[tuple[str, int], str] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)

    def __call__(self, event: LinkEvent) -> None:
        before = {device: assignment.term for device, assignment in self.assignments.items()}
        super().__call__(event)
        for device, assignment in self.assignments.items():
            leader = self.leaders_told.setdefault((device, assignment.term), assignment.leader)
            if leader != assignment.leader:
                self.broken.append(f"{device} has two leaders in term {assignment.term}")
            if assignment.term < before.get(device, 0):
                self.broken.append(f"{device} went back to term {assignment.term}")


@contextlib.asynccontextmanager
async def running(folder: Path, rounds: int) -> AsyncIterator[tuple[Federation, StrictWatch]]:
    """A federation over a mosquitto of its own, and an observer of it."""
    async with _open_mosquitto(folder, 0) as port:
        federation = Federation(folder, port, rounds, "threshold")
        watch = StrictWatch(federation.settings)
        link = MqttLink(MqttSettings(port=port), "observer")
        for pattern in watch.patterns:
            link.subscribe(pattern, 1)
        link.start(watch)
        try:
            async with federation.running():
                yield federation, watch
        finally:
            await link.stop()


async def another_round(federation: Federation, watch: Watch) -> None:
    seen = watch.round_no
    await until(lambda: watch.round_no > seen, federation)


async def lose_a_leader(federation: Federation, watch: Watch, victim: str) -> None:
    """Kill a leader; it comes back when another one sits in its place."""
    process = federation.processes[victim]
    process.kill()
    await process.ended()
    await until(lambda: victim not in watch.leaders, federation)
    await process.start()


async def test_a_fleet_that_is_killed_again_and_again_learns_and_its_books_are_right(tmp_path: Path) -> None:
    chance = random.Random(5)

    async with running(tmp_path, ROUNDS) as (federation, watch):
        coordinator: Any = federation.processes[COORDINATOR]
        killed = {"leaders": 0, "followers": 0}
        while watch.round_no < COORDINATOR_DIES_AFTER - 1:
            await another_round(federation, watch)
            if chance.random() < 0.4:
                await lose_a_leader(federation, watch, chance.choice(sorted(watch.leaders)))
                killed["leaders"] += 1
            else:
                await federation.processes[watch.follower()].kill_and_restart()
                killed["followers"] += 1
        await coordinator.kill_and_restart()
        assert await coordinator.ended() == 0, coordinator.output
        assert f"rounds={ROUNDS} " in coordinator.output
        assert "doubled_chunks=0" in coordinator.output
        assert min(killed.values()) > 0, killed
        assert watch.broken == []
        assert set(watch.assignments) == set(NAMES)
    machine, agents = federation.restored()
    audit = audit_stores(machine, agents)
    assert (audit.lost, audit.doubled) == (0, 0)
    assert {name: machine.roster.cluster_of(name) is not None for name in NAMES} == dict.fromkeys(NAMES, True)


async def test_a_second_coordinator_with_another_state_folder_refuses_to_start(tmp_path: Path) -> None:
    async with running(tmp_path, 6) as (federation, watch):
        await another_round(federation, watch)
        elsewhere = ["--config", str(tmp_path / "ofl.toml"), "--state", str(tmp_path / "elsewhere")]
        second = OflProcess(["coordinator", *elsewhere], tmp_path / "second.log")
        await second.start()
        assert await second.ended() == 2, second.output
        assert "another coordinator runs or ran this federation" in second.output
        assert "--take-over" in second.output
        assert "Traceback" not in second.output
        first = federation.processes[COORDINATOR]
        assert await first.ended() == 0, first.output
        assert "rounds=6 " in first.output
        assert watch.broken == []
