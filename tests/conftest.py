"""Fixtures for all tests: real brokers on free ports, a proxy that breaks the network, patient waiting."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from ofl_broker.embedded import EmbeddedBroker
from tests.closing import closing_sentence
from tests.waiting import DEADLINE_S

os.environ.setdefault("OMP_NUM_THREADS", "1")
"""For torch, which reads it when it is imported, here and in processes that tests start: threads of one small job wait
for each other, on a busy machine for minutes."""
settings.register_profile("steady", derandomize=True, deadline=None)
settings.load_profile("steady")
"""Laws are tried on the same examples each time, and take the time they take: the machine may be busy."""

SLOW_TIMEOUT_S = 1800
MOSQUITTO = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give slow tests, which have no limit of their own, more time than `timeout` of the settings."""
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT_S))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Close with what was skipped for want of a broker."""
    reports = terminalreporter.stats.get("skipped", [])
    told = closing_sentence((report.nodeid.partition("::")[0], str(report.longrepr)) for report in reports)
    if told:
        terminalreporter.ensure_newline()
        terminalreporter.write_line(told)


@pytest.fixture
def free_port() -> int:
    """A port nobody listens on."""
    return _free_port()


@pytest.fixture(params=["amqtt", "mosquitto"])
def open_broker(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """`async with open_broker(port=0) as port`: each broker we have, in turn."""
    if request.param == "amqtt":
        return _open_amqtt
    if MOSQUITTO is None:
        pytest.skip("mosquitto is not installed")
    return lambda port=0: _open_mosquitto(tmp_path, port)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.asynccontextmanager
async def _open_amqtt(port: int = 0) -> AsyncIterator[int]:
    async with EmbeddedBroker(f"127.0.0.1:{port}") as broker:
        yield broker.port


@contextlib.asynccontextmanager
async def _open_mosquitto(folder: Path, port: int) -> AsyncIterator[int]:
    port = port or _free_port()
    config = folder / "mosquitto.conf"
    config.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\n")
    assert MOSQUITTO is not None
    process = await asyncio.create_subprocess_exec(
        MOSQUITTO, "-c", str(config), stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        await _until_listening(port)
        yield port
    finally:
        process.kill()
        await process.wait()


async def _until_listening(port: int) -> None:
    until = time.monotonic() + DEADLINE_S
    while time.monotonic() < until:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:  # noqa: PERF203 -- this is the wait
            await asyncio.sleep(0.01)
        else:
            writer.close()
            return
    raise TimeoutError(port)
