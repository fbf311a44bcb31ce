"""`ofl_iot.Agent`: devices in threads of one program learn together with a coordinator over a real broker."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import ofl_iot
from ofl_broker.embedded import EmbeddedBroker
from ofl_iot.errors import ConfigError
from tests.e2e.processes import OFL, OflProcess

DEADLINE_S = 120.0
NAMES = ["truck-1", "truck-2", "truck-3"]
APP = """
import ofl_iot

app = ofl_iot.NumpyApp(
    name="clouds",
    network="logistic",
    inputs=6,
    outputs=3,
    samples=ofl_iot.Readings(),
    metrics={"accuracy": ofl_iot.accuracy},
)
"""


def clouds(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.integers(3, size=count)
    return (rng.normal(size=(count, 6)) + 3 * np.eye(3, 6)[y]).astype(np.float32), y


def app() -> ofl_iot.NumpyApp:
    return ofl_iot.NumpyApp(
        name="clouds",
        network="logistic",
        inputs=6,
        outputs=3,
        samples=ofl_iot.Readings(),
        metrics={"accuracy": ofl_iot.accuracy},
    )


def until(condition: Callable[[], object], said: Callable[[], object] = str) -> None:
    end = time.monotonic() + DEADLINE_S
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < end, said()
        pause.wait(0.02)


@contextlib.contextmanager
def broker() -> Iterator[int]:
    """The embedded broker in a thread; gives its port."""
    ports: list[int] = []
    started = threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        async with EmbeddedBroker() as embedded:
            ports.append(embedded.port)
            started.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert started.wait(20)
    try:
        yield ports[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(20)
        loop.close()


def settings(port: int) -> dict[str, object]:
    return {
        "federation.id": "embedded",
        "mqtt.port": port,
        "mqtt.backoff_min_s": 0.05,
        "mqtt.backoff_max_s": 0.3,
        "privacy.mode": "off",
        "protection.mode": "clear",
        "training.pause_s": 0.05,
        "download.timeout_s": 1,
        "upload.resend_s": 1,
        "fleet.gather_s": 0.2,
        "fleet.min_devices": 3,
        "fleet.heartbeat_s": 1,
        "round.interval_s": 0.3,
        "round.deadline_s": 4,
        "service.model_out_s": 0.1,
    }


def test_agents_in_threads_learn_together_and_hand_their_model_to_the_program(tmp_path: Path) -> None:
    (tmp_path / "clouds.py").write_text(APP)
    seen: list[int] = []

    with broker() as port, contextlib.ExitStack() as stack:
        given = settings(port)
        coordinator = OflProcess(
            ["coordinator", f"--app={tmp_path / 'clouds.py'}:app", f"--state={tmp_path / 'c'}"]
            + [f"--set={key}={value}" for key, value in given.items()],
            tmp_path / "coordinator.log",
        )
        agents = []
        for number, name in enumerate(NAMES):
            agent = ofl_iot.Agent(app(), id=name, settings=given, state=tmp_path / name)
            assert agent.add(*clouds(60, number)) == 60
            agents.append(stack.enter_context(agent))
        agents[0].on_model(lambda model: seen.append(model.round_no))
        agents[1].on_model(lambda model: 1 / 0)
        stack.enter_context(running(coordinator))
        until(lambda: agents[0].status().linked, agents[0].status)
        until(lambda: any(round_no >= 2 for round_no in seen), lambda: (seen, agents[0].status(), coordinator.output))
        model = agents[0].model()
        assert model is not None
        assert list(model.tensors) == ["layer1"]
        assert agents[0].add(*clouds(20, 7)) == 20
        x, y = clouds(300, 11)
        until(lambda: right(agents[0].model(), x, y) > 0.8, lambda: right(agents[0].model(), x, y))
    assert not agents[0]._thread.is_alive()
    with pytest.raises(ConfigError, match="does not run"):
        agents[0].status()


def right(model: object, x: np.ndarray, y: np.ndarray) -> float:
    layer = model.tensors["layer1"]  # type: ignore[attr-defined]
    outputs = np.concatenate([x, np.ones((len(x), 1))], axis=1) @ layer
    return float((outputs.argmax(axis=1) == y).mean())


@contextlib.contextmanager
def running(process: OflProcess) -> Iterator[None]:
    """A process beside the test's own threads."""
    with process._log.open("ab") as log:
        child = subprocess.Popen([OFL, *process.arguments], stdout=log, stderr=log)  # noqa: S603
        try:
            yield
        finally:
            child.terminate()
            child.wait(60)


def test_an_agent_without_a_broker_starts_says_so_and_stops(tmp_path: Path, free_port: int) -> None:
    with ofl_iot.Agent(app(), id="truck-1", settings=settings(free_port), state=tmp_path) as agent:
        status = agent.status()
        assert (status.party, status.role, status.linked) == ("truck-1", "agent", False)
        assert agent.model() is None
        with pytest.raises(ConfigError, match="another process uses the store"):
            ofl_iot.Agent(app(), id="truck-1", settings=settings(free_port), state=tmp_path).start()
    agent.stop()
    with pytest.raises(ConfigError, match="was started already"):
        agent.start()


def test_an_error_of_the_program_comes_out_of_the_with(tmp_path: Path, free_port: int) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        ofl_iot.Agent(app(), id="truck-1", settings=settings(free_port), state=tmp_path),
    ):
        raise ZeroDivisionError


def test_wrong_names_settings_and_records_are_refused(tmp_path: Path, free_port: int) -> None:
    with pytest.raises(ConfigError, match="device id"):
        ofl_iot.Agent(app(), id="Truck 1")
    with pytest.raises(ConfigError, match="mqtt"):
        ofl_iot.Agent(app(), id="truck-1", settings={"mqtt.prot": 1})
    agent = ofl_iot.Agent(app(), id="truck-1", settings=settings(free_port), state=tmp_path, data="somewhere")
    with pytest.raises(ConfigError, match="without data="):
        agent.add(np.zeros((1, 6)), np.zeros(1, int))
    with pytest.raises(ConfigError, match="does not run"):
        agent.status()
    fed = ofl_iot.Agent(app(), id="truck-1", settings=settings(free_port), state=tmp_path)
    with pytest.raises(ConfigError, match="not numbers"):
        fed.add(np.array([["a"]]), ["b"])


def test_the_service_manager_of_the_program_is_left_to_the_program(
    tmp_path: Path, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        with ofl_iot.Agent(app(), id="truck-1", settings=settings(free_port), state=tmp_path) as agent:
            until(lambda: agent.status().ready)
        with pytest.raises(BlockingIOError):
            manager.recv(100)
