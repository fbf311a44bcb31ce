"""Fixtures for all tests: real brokers on free ports, a proxy that breaks the network, patient waiting."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib.util
import os
import shutil
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import settings

from ofl_broker.embedded import EmbeddedBroker

os.environ.setdefault("OMP_NUM_THREADS", "1")
"""For torch, which reads it when it is imported, here and in processes that tests start: threads of one small job wait
for each other, on a busy machine for minutes."""
settings.register_profile("steady", derandomize=True, deadline=None)
settings.load_profile("steady")
"""Laws are tried on the same examples each time, and take the time they take: the machine may be busy."""

DEADLINE_S = 20.0
SLOW_TIMEOUT_S = 1800
MOSQUITTO = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give slow tests, which have no limit of their own, more time than `timeout` of the settings."""
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT_S))


def _sibling(name: str) -> ModuleType:
    """A module beside this file; tests are no package."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def tcp_proxy() -> Any:
    """The class `netfaults.TcpProxy`: `async with tcp_proxy(target_port) as proxy`."""
    return _sibling("netfaults").TcpProxy


@pytest.fixture(scope="session")
def eventually() -> Any:
    """`await eventually(condition)`: wait until the condition holds, or fail at the deadline."""

    async def wait(condition: Callable[[], object], deadline_s: float = DEADLINE_S) -> None:
        until = time.monotonic() + deadline_s
        while not condition():
            assert time.monotonic() < until, f"not within {deadline_s:g} s"
            await asyncio.sleep(0.005)

    return wait


@pytest.fixture(scope="session")
def recorder() -> Any:
    """The class `links.Recorder`, a link handler that keeps events and acknowledges deliveries."""
    return _sibling("links").Recorder


@pytest.fixture(scope="session")
def impatient() -> Any:
    """`impatient(port, **changes)`: link settings that wait milliseconds where production waits seconds."""
    return _sibling("links").impatient


@pytest.fixture(scope="session")
def linked(eventually: Any) -> Any:
    """`async with linked(port, client_id, *patterns, **changes) as (link, recorder)`: up and subscribed."""
    return functools.partial(_sibling("links").linked, eventually=eventually)


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
