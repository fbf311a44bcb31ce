"""A user's own file, model and growing data through real processes, with mutual TLS, privacy and encryption."""

from __future__ import annotations

import contextlib
import getpass
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ofl_agents.cli import main
from ofl_broker.mosquitto import CONFIG
from ofl_iot.apps.opening import AppChoice, OpenedApp
from ofl_iot.workloads.base import TrainJob
from tests.certificates import Authority
from tests.conftest import MOSQUITTO

OFL = Path(sys.executable).with_name("ofl")
DEADLINE_S = 240.0
"""Only reached when something is wrong; a busy machine may need much of it."""
NAMES = [f"truck-{number}" for number in range(1, 5)]
ROUNDS = 8
MARGIN = 0.1
"""By which noise and few rounds may leave the federation behind the same net trained in one place without noise."""
MOST_BYTES = 80_000_000
"""Of an agent that never led: its app has a process of its own, and leaders load their cryptography."""
PAGE = Path(__file__).parents[2] / "docs" / "your-model.md"
APP = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
"""What a reader is told to write."""
WITHOUT_TORCH = """
from ofl_iot import Folder, NumpyApp, accuracy

files = Folder("*.npz")
app = NumpyApp("vibration", "logistic", 128, 4, samples=files, judge=files, metrics={"accuracy": accuracy})
"""
SETTINGS = """
[federation]
id = "plant"
app = "{app}"
[mqtt]
port = {port}
[round]
count = {rounds}
interval_s = 1.0
deadline_s = 15.0
[fleet]
min_devices = 4
gather_s = 1.0
heartbeat_s = 2.0
leader_grace_s = 4.0
clusters = 2
[download]
timeout_s = 2.0
"""


def write_windows(path: Path, count: int, seed: int) -> None:
    """Made-up windows of four states of a bearing, written as careful writers do: whole, under their name."""
    states = np.random.default_rng(7).normal(size=(4, 1, 128))
    rng = np.random.default_rng([7, seed])
    labels = rng.integers(0, 4, count)
    windows = (states[labels] + 1.5 * rng.normal(size=(count, 1, 128))).astype(np.float32)
    draft = path.with_name(f".{path.name}")
    with draft.open("wb") as file:
        np.savez(file, x=windows, y=labels)
    draft.rename(path)


@dataclass
class Plant:
    """A folder with the user's file, everybody's data and certificates; starts and ends its parties."""

    folder: Path
    port: int
    text: str = APP
    rounds: int = ROUNDS
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.app = self.folder / "vibration.py"
        self.app.write_text(self.text)
        self.settings = self.folder / "ofl.toml"
        self.settings.write_text(SETTINGS.format(app=f"{self.app}:app", port=self.port, rounds=self.rounds))
        for seed, name in enumerate([*NAMES, "coordinator"]):
            (self.folder / "data" / name).mkdir(parents=True)
            write_windows(self.data(name) / "first.npz", 400, seed)
        self.authority = Authority(self.folder / "certificates")
        for name in ("broker", "coordinator", *NAMES):
            self.authority.issue(name)
        for file in (self.folder / "certificates").iterdir():
            file.chmod(0o600)

    def data(self, name: str) -> Path:
        return self.folder / "data" / name

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self, name: str) -> None:
        role = ["coordinator"] if name == "coordinator" else ["agent", "--id", name]
        files = {"ca": "ca.pem", "cert": f"{name}.pem", "key": f"{name}.key"}
        tls = [f"--set=mqtt.tls.{key}={self.authority.path(file)}" for key, file in files.items()]
        where = ["--data", str(self.data(name)), "--state", str(self.folder / "state" / name)]
        command = [str(OFL), "--log-level", "info", *role, *where, "--config", str(self.settings), *tls]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(command, stdout=log, stderr=log)  # noqa: S603

    def broker(self) -> None:
        assert MOSQUITTO is not None
        folder = self.folder / "broker"
        files = {"ca": "ca.pem", "cert": "broker.pem", "key": "broker.key"}
        paths = [f"--{key}={self.authority.path(file)}" for key, file in files.items()]
        where = [f"--out={folder}", "--host=127.0.0.1", f"--port={self.port}", "--config", str(self.settings)]
        assert main(["broker", "profile", "mosquitto", *where, *paths, f"--user={getpass.getuser()}"]) == 0
        command = [MOSQUITTO, "-c", str(folder / CONFIG)]
        with (self.folder / "broker.log").open("ab") as log:
            self.running["broker"] = subprocess.Popen(command, stdout=log, stderr=log)  # noqa: S603

    def until(self, condition: Callable[[], Any], what: str) -> None:
        end = time.monotonic() + DEADLINE_S
        while not condition():
            assert self.running["broker"].poll() is None, self.log("broker")
            if time.monotonic() > end:
                logs = {name: self.log(name)[-1500:] for name in self.running}
                pytest.fail(f"{what}: not within {DEADLINE_S:g} s; {logs}")
            time.sleep(0.05)

    def peak_bytes(self, name: str) -> int:
        """The most memory that a party's own process has had so far."""
        status = Path(f"/proc/{self.running[name].pid}/status").read_text()
        return 1024 * int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0])

    def completed(self) -> int:
        return max(map(int, re.findall(r"round closed .*?completed=(\d+)", self.log("coordinator"))), default=0)

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        self.broker()
        for name in ("coordinator", *NAMES):
            self.start(name)
        try:
            yield
        finally:
            for process in reversed(self.running.values()):
                process.kill()
                process.wait()

    def central_accuracy(self) -> float:
        """The same net, trained on everybody's data in one place without noise."""
        together = self.folder / "together"
        together.mkdir()
        for name in NAMES:
            for file in self.data(name).glob("*.npz"):
                (together / f"{name}-{file.name}").write_bytes(file.read_bytes())
        trainer = OpenedApp(AppChoice(f"{self.app}:app", str(together), private=False))
        judge = OpenedApp(AppChoice(f"{self.app}:app", str(self.data("coordinator"))))
        try:
            workload = trainer.device("central")
            job = TrainJob(steps=300, batch_size=64, learning_rate=0.1)
            trained = workload.train(workload.initial(0), job, np.random.default_rng(0))
            return judge.judge().evaluate(trained.params).accuracy
        finally:
            trainer.close()
            judge.close()


needs_mosquitto = pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed")


def run(plant: Plant, *formats: str) -> tuple[float, list[Path]]:
    """All rounds, with data that come and an agent that is killed on the way; the accuracy, and the model in files."""
    with plant.at_work():
        plant.until(lambda: plant.completed() >= 1, "the first round")
        for seed, name in enumerate(NAMES):
            write_windows(plant.data(name) / "second.npz", 1200, 100 + seed)
            (plant.data(name) / "torn.npz").write_bytes(b"PK half of a file")
        plant.running[NAMES[3]].kill()
        plant.running[NAMES[3]].wait()
        plant.start(NAMES[3])
        coordinator = plant.running["coordinator"]
        plant.until(lambda: coordinator.poll() is not None, "all rounds")
        assert coordinator.returncode == 0, plant.log("coordinator")[-2000:]
        grown = [name for name in NAMES[:3] if "records=1600" in plant.log(name) and "torn.npz" in plant.log(name)]
        assert grown, plant.log(NAMES[0])[-2000:]
        followers = [name for name in NAMES if "leading party=" not in plant.log(name)]
        assert all(plant.peak_bytes(name) < MOST_BYTES for name in followers), list(map(plant.peak_bytes, followers))
        exported = [export(plant, f"net.{each}") for each in formats]
    summary = re.search(r"rounds=(\d+) accuracy=([0-9.]+) loss=\S+ doubled_chunks=(\d+)", plant.log("coordinator"))
    assert summary is not None
    assert (int(summary[1]), int(summary[3])) == (plant.rounds, 0)
    return float(summary[2]), exported


@needs_mosquitto
def test_a_file_of_a_few_lines_becomes_a_private_encrypted_federation(tmp_path: Path, free_port: int) -> None:
    plant = Plant(tmp_path, free_port, WITHOUT_TORCH, rounds=6)
    accuracy, _ = run(plant)
    assert accuracy >= plant.central_accuracy() - MARGIN


@pytest.mark.slow
@needs_mosquitto
def test_a_network_of_ones_own_learns_survives_a_crash_and_comes_out(tmp_path: Path, free_port: int) -> None:
    assert len(APP.strip().splitlines()) < 40
    plant = Plant(tmp_path, free_port)
    accuracy, (tensors, graph) = run(plant, "safetensors", "onnx")
    assert accuracy >= plant.central_accuracy() - MARGIN
    for judged in (of_tensors(plant, tensors), of_onnx(plant, graph)):
        assert judged == pytest.approx(accuracy, abs=0.02)


def export(plant: Plant, name: str) -> Path:
    out = plant.folder / name
    state, data = str(plant.folder / "state" / "coordinator"), str(plant.data("coordinator"))
    more = ["--data", data] if name.endswith(".onnx") else []
    done = subprocess.run(  # noqa: S603
        [OFL, "model", "export", "--state", state, "--out", str(out), *more],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return out


def held_out(plant: Plant) -> tuple[np.ndarray, np.ndarray]:
    with np.load(plant.data("coordinator") / "first.npz") as held:
        return held["x"], held["y"]


def of_tensors(plant: Plant, path: Path) -> float:
    import torch
    from safetensors.torch import load_file

    from ofl_iot.apps.loading import load_app

    net = load_app(f"{plant.app}:app").model()  # type: ignore[union-attr]
    net.load_state_dict(load_file(path))
    x, y = held_out(plant)
    with torch.inference_mode():
        return float((net.eval()(torch.from_numpy(x)).argmax(1).numpy() == y).mean())


def of_onnx(plant: Plant, path: Path) -> float:
    import onnxruntime

    x, y = held_out(plant)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (outputs,) = session.run(None, {session.get_inputs()[0].name: x})
    return float((outputs.argmax(1) == y).mean())
