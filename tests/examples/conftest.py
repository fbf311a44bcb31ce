"""A broker for examples that speak MQTT themselves."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import MOSQUITTO


@pytest.fixture
def mosquitto_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a mosquitto of its own."""
    if MOSQUITTO is None:
        pytest.skip("mosquitto is not installed")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    config = Path(tmp_path_factory.mktemp("mosquitto"), "mosquitto.conf")
    config.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\n")
    with subprocess.Popen([MOSQUITTO, "-c", config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as broker:  # noqa: S603
        try:
            _until_listening(port)
            yield port
        finally:
            broker.kill()


def _until_listening(port: int) -> None:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
    raise TimeoutError(port)
