"""Real processes and a service manager's socket: ready, alive, stopping."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.processes import NAMES, Federation, OflProcess, until

WATCHDOG_S = 0.6


class Manager:
    """What systemd hears on its socket."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self.lines: list[str] = []

    def heard(self, line: str) -> int:
        """How often a line that begins so has arrived."""
        try:
            while True:
                self.lines += self._listening.recv(65536).decode().split("\n")
        except BlockingIOError:
            return sum(each.startswith(line) for each in self.lines)


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Manager]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", str(int(WATCHDOG_S * 1e6)))
        yield Manager(listening)


def test_an_agent_without_a_broker_is_ready_alive_and_says_when_it_stops(
    manager: Manager, tmp_path: Path, free_port: int
) -> None:
    async def story() -> None:
        federation = Federation(tmp_path, free_port, 1)
        agent = federation.processes[NAMES[0]]
        await agent.start()
        await until(lambda: manager.heard("READY=1"), federation)
        assert "no link to the broker" in agent.output
        await until(lambda: manager.heard("WATCHDOG=1") >= 3, federation)
        assert manager.heard("STATUS=no link, ")
        agent.kill(signal.SIGTERM)
        assert await agent.ended() == 0
        assert manager.heard("STOPPING=1") == 1
        assert manager.heard("READY=1") == 1

    asyncio.run(story())


def test_the_embedded_broker_is_ready_when_it_answers(manager: Manager, tmp_path: Path) -> None:
    async def story() -> None:
        broker = OflProcess(["broker", "--port", "0"], tmp_path / "broker.log")
        await broker.start()
        await until(lambda: manager.heard("READY=1") and manager.heard("WATCHDOG=1") >= 3)
        assert manager.heard("STATUS=listening on port ")
        broker.kill(signal.SIGTERM)
        assert await broker.ended() == 0
        assert manager.heard("STOPPING=1") == 1

    asyncio.run(story())
