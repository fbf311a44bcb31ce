"""Real processes and a service manager's socket: ready, alive, stopping."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ofl_agents.cli import main
from tests.conftest import MOSQUITTO, _until_listening
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


async def test_an_agent_without_a_broker_is_ready_alive_and_says_when_it_stops(
    manager: Manager, tmp_path: Path, free_port: int
) -> None:
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


async def test_the_embedded_broker_is_ready_when_it_answers(manager: Manager, tmp_path: Path) -> None:
    broker = OflProcess(["broker", "--port", "0"], tmp_path / "broker.log")
    await broker.start()
    await until(lambda: manager.heard("READY=1") and manager.heard("WATCHDOG=1") >= 3)
    assert manager.heard("STATUS=listening on port ")
    broker.kill(signal.SIGTERM)
    assert await broker.ended() == 0
    assert manager.heard("STOPPING=1") == 1


@pytest.fixture
def enrolled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[str], Path]:
    """`enrolled(name)`: the identity folder of a party, signed by an authority of this test."""
    ca, federation = tmp_path / "ca", "e2e"
    assert main(["ca", "init", "--ca", str(ca), "--federation", federation]) == 0
    fingerprint = re.search(r"fingerprint +(\w+)", capsys.readouterr().out)
    assert fingerprint is not None
    trust = ["--fingerprint", fingerprint[1]]

    def enrol(name: str) -> Path:
        folder, request, answer = (tmp_path / f"{name}{suffix}" for suffix in ("", ".request", ".answer"))
        who, host = ["--identity", str(folder), "--id", name], ["--host", "127.0.0.1"] if name == "broker" else []
        assert main(["enroll", "request", *who, "--federation", federation, "--out", str(request)]) == 0
        signing = ["--ca", str(ca), "--id", name, "--request", str(request), "--out", str(answer)]
        assert main(["enroll", "sign", *signing, *host]) == 0
        assert main(["enroll", "accept", *who, *trust, "--answer", str(answer)]) == 0
        return folder

    return enrol


@pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed")
async def test_an_agent_with_the_credentials_of_its_service_manager_is_linked_by_mutual_tls(
    manager: Manager, enrolled: Callable[[str], Path], tmp_path: Path, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    me, broker, credentials = enrolled(NAMES[0]), enrolled("broker"), tmp_path / "credentials"
    credentials.mkdir(mode=0o700)
    unit = (Path(__file__).parents[2] / "systemd/ofl-agent.service").read_text()
    for name in re.findall(r"LoadCredential=(\S+):", unit):
        given = re.search(rf"SetCredential={name}:(.*)", unit)  # stands for a file that is not there
        data = given[1].encode() if given and not (me / name).exists() else (me / name).read_bytes()
        (credentials / name).write_bytes(data)
        (credentials / name).chmod(0o440)  # as systemd leaves them: root's, with an access list
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(credentials))
    files = [f"--ca={broker / 'ca.pem'}", f"--cert={broker / 'certificate.pem'}", f"--key={broker / 'key.pem'}"]
    where = [f"--out={tmp_path / 'mosquitto'}", "--host=127.0.0.1", f"--port={free_port}", "--set=federation.id=e2e"]
    user = ["--user=root"] if os.geteuid() == 0 else []
    assert main(["broker", "profile", "mosquitto", *where, *files, *user]) == 0

    assert MOSQUITTO is not None
    mosquitto = await asyncio.create_subprocess_exec(
        MOSQUITTO, "-c", tmp_path / "mosquitto/mosquitto.conf", stderr=asyncio.subprocess.DEVNULL
    )
    try:
        await _until_listening(free_port)
        federation = Federation(tmp_path, free_port, 1)
        agent = federation.processes[NAMES[0]]
        await agent.start()
        await until(lambda: manager.heard("STATUS=linked"), federation)
        agent.kill(signal.SIGTERM)
        assert await agent.ended() == 0, agent.output
    finally:
        mosquitto.terminate()
        await mosquitto.wait()
