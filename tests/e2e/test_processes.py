"""A federation of real processes over real brokers, some of which die without a word in mid-run."""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ofl_iot.ids import COORDINATOR
from ofl_iot.transport.mqtt import MqttLink, MqttSettings
from tests.e2e.processes import NAMES, Federation, OflProcess, Watch, audit_stores, until

ROUNDS = 8


@contextlib.asynccontextmanager
async def ofl_broker(folder: Path) -> AsyncIterator[int]:
    """`ofl broker` on a port of the system's choice, which it prints."""
    process = OflProcess(["broker", "--port", "0"], folder / "broker.log")
    await process.start()
    try:
        await until(lambda: "listening" in process.output)
        listening = re.match(r"listening host=127\.0\.0\.1 port=(\d+)\n", process.output)
        assert listening is not None
        yield int(listening[1])
    finally:
        process.kill(signal.SIGTERM)
        assert await process.ended() == 0


@contextlib.asynccontextmanager
async def watching(federation: Federation) -> AsyncIterator[Watch]:
    """An observer of what the broker retains."""
    watch = Watch(federation.settings)
    link = MqttLink(MqttSettings(port=federation.settings.mqtt.port), "observer")
    for pattern in watch.patterns:
        link.subscribe(pattern, 1)
    link.start(watch)
    try:
        yield watch
    finally:
        await link.stop()


async def lose_and_restart_everyone_once(federation: Federation, watch: Watch) -> None:
    """Kill a follower, a leader and the coordinator, each after another round was closed."""
    for choose in (watch.follower, watch.leader, lambda: COORDINATOR):
        seen = watch.round_no
        await until(lambda seen=seen: watch.round_no > seen, federation)
        await federation.processes[choose()].kill_and_restart()


async def end_in_good_order(federation: Federation, watch: Watch) -> None:
    """SIGTERM: the status says offline and is retained, the exit code is 0."""
    for name in NAMES:
        federation.processes[name].kill(signal.SIGTERM)
    for name in NAMES:
        assert await federation.processes[name].ended() == 0, federation.processes[name].output
    await until(lambda: not any(watch.statuses[name].online for name in NAMES), federation)
    async with watching(federation) as late:
        await until(lambda: len(late.statuses) == len(NAMES), federation)
        assert not any(status.online for status in late.statuses.values())


@pytest.mark.parametrize(("kind", "protection"), [("amqtt", "threshold"), ("mosquitto", "clear")])
async def test_a_federation_survives_kill_9_of_an_agent_a_leader_and_the_coordinator(
    kind: str, protection: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    open_broker = ofl_broker if kind == "amqtt" else request.getfixturevalue("mosquitto")

    async with open_broker(tmp_path) as port:
        federation = Federation(tmp_path, port, ROUNDS, protection)
        async with federation.running(), watching(federation) as watch:
            await lose_and_restart_everyone_once(federation, watch)
            coordinator = federation.processes[COORDINATOR]
            assert await coordinator.ended() == 0, coordinator.output
            closing = re.search(r"rounds=(\d+) accuracy=([\d.]+) .*doubled_chunks=(\d+)\n", coordinator.output)
            assert closing is not None, coordinator.output
            assert (int(closing[1]), int(closing[3])) == (ROUNDS, 0)
            assert float(closing[2]) > 0.5
            await end_in_good_order(federation, watch)
        machine, agents = federation.restored()
        assert machine.counter.completed == ROUNDS
        audit = audit_stores(machine, agents)
        assert (audit.lost, audit.doubled) == (0, 0)
        assert all(agent.device.outbox.next_seq > 1 for agent in agents.values())


@pytest.fixture
def mosquitto() -> Any:
    """`async with mosquitto(folder) as port`."""
    from tests.conftest import MOSQUITTO, _open_mosquitto

    if MOSQUITTO is None:
        pytest.skip("mosquitto is not installed")
    return lambda folder: _open_mosquitto(folder, 0)
