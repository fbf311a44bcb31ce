"""A cluster of NATS servers on loopback, from the profile that `ofl broker profile nats` writes."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import socket
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from ofl_agents.cli import main
from ofl_broker.nats import CONFIG
from tests.conftest import _until_listening

NATS = shutil.which("nats-server") or shutil.which("nats-server", path="/usr/sbin:/usr/local/sbin")
WITHOUT_NATS = "nats-server is not installed"


class NatsCluster:
    """Its nodes can be killed without a word and started again."""

    def __init__(self, folder: Path, nodes: int, *options: str) -> None:
        self.folder = folder
        self.nodes = nodes
        first = _consecutive_free_ports(3 * nodes)
        self.ports = list(range(first, first + nodes))
        ports = [f"--port={first}", f"--client-port={first + nodes}", f"--cluster-port={first + 2 * nodes}"]
        where = [f"--out={folder}", f"--nodes={nodes}"]
        assert main(["broker", "profile", "nats", *where, *ports, *options]) == 0
        self._processes: dict[int, asyncio.subprocess.Process] = {}

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(f"127.0.0.1:{port}" for port in self.ports)

    async def start(self, *numbers: int) -> None:
        """Start nodes (counted from 0) and wait until they listen."""
        assert NATS is not None
        for number in numbers:
            node = self.folder / f"node-{number + 1}"
            with (node / "log").open("ab") as log:
                process = await asyncio.create_subprocess_exec(NATS, "-c", node / CONFIG, stdout=log, stderr=log)
            self._processes[number] = process
        for number in numbers:
            listening = asyncio.ensure_future(_until_listening(self.ports[number]))
            ended = asyncio.ensure_future(self._processes[number].wait())
            await asyncio.wait({listening, ended}, return_when=asyncio.FIRST_COMPLETED)
            assert not ended.done(), self.log()
            ended.cancel()
            await listening

    async def kill(self, number: int) -> None:
        """kill -9: it says goodbye to nobody."""
        process = self._processes.pop(number)
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)
        await process.wait()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        try:
            await self.start(*range(self.nodes))
            yield
        finally:
            for number in list(self._processes):
                await self.kill(number)

    def log(self) -> str:
        return "".join(file.read_text() for file in sorted(self.folder.glob("node-*/log")))


def _consecutive_free_ports(count: int, tries: Sequence[int] = range(20)) -> int:
    """The first of so many ports that nobody listens on."""
    for _ in tries:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            first: int = probe.getsockname()[1]
        if first + count < 65_536 and all(_is_free(port) for port in range(first, first + count)):
            return first
    raise AssertionError("no free ports")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
