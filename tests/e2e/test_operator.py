"""What an operator meets: an absent broker, a second process, folders that cannot be used, signals."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import pytest

from ofl_iot.ids import COORDINATOR
from tests.e2e.processes import NAMES, Federation, OflProcess, until

ME = NAMES[0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_without_a_broker_an_agent_keeps_trying_says_so_once_and_can_be_stopped(
    number: signal.Signals, tmp_path: Path, free_port: int
) -> None:
    federation = Federation(tmp_path, free_port, 1)
    agent = federation.processes[ME]
    await agent.start()
    await until(lambda: "no link to the broker" in agent.output, federation)
    agent.kill(number)
    assert await agent.ended() == 0
    assert agent.output.count("no link to the broker, trying again") == 1
    assert f"127.0.0.1:{free_port}" in agent.output
    assert "Traceback" not in agent.output


async def test_a_second_process_on_the_same_store_is_refused_and_the_first_goes_on(
    tmp_path: Path, free_port: int
) -> None:
    federation = Federation(tmp_path, free_port, 1)
    first = federation.processes[ME]
    second = OflProcess(first.arguments, tmp_path / "second.log")
    await first.start()
    await until(lambda: "no link to the broker" in first.output, federation)
    await second.start()
    assert await second.ended() == 2
    assert "another process uses the store" in second.output
    assert first.running
    first.kill(signal.SIGTERM)
    assert await first.ended() == 0


async def test_a_damaged_store_is_refused_and_left_as_it_is(tmp_path: Path, free_port: int) -> None:
    federation = Federation(tmp_path, free_port, 1)
    federation.state.mkdir()
    store = federation.state / f"{COORDINATOR}.sqlite"
    store.write_bytes(b"not a database, but somebody may want it back" * 100)
    coordinator = federation.processes[COORDINATOR]
    await coordinator.start()
    assert await coordinator.ended() == 1
    assert "is damaged" in coordinator.output
    assert "Traceback" not in coordinator.output
    assert store.read_bytes() == b"not a database, but somebody may want it back" * 100


async def test_a_broker_whose_port_is_taken_says_so(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        broker = OflProcess(["broker", "--port", str(other.getsockname()[1])], tmp_path / "broker.log")
        await broker.start()
        assert await broker.ended() == 2
    assert "is in use by another program" in broker.output
