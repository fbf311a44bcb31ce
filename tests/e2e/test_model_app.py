"""A torch app's model out of a real coordinator in every format, while it runs and after, and into another one."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors.torch import load_file

from ofl_agents.models.output import version_path
from ofl_iot.ids import COORDINATOR
from ofl_iot.local.client import LocalParty, NotRunningError
from tests.e2e.processes import OFL, OflProcess, until

APP = """
import numpy as np
from torch import nn
from ofl_iot import TorchApp, accuracy

def load(where):
    with np.load(where) as held:
        return held["x"], held["y"]

def make():
    return nn.Sequential(nn.Conv1d(1, 4, 5), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 12, 3))

app = TorchApp(name="tiny", model=make, loss=nn.functional.cross_entropy, samples=load, judge=load,
               metrics={"accuracy": accuracy})
"""
PORT = "--set=mqtt.port=1"
"""Nobody listens there: a coordinator has its first model without a broker."""


def ofl(folder: Path, *arguments: str, code: int = 0) -> str:
    done = subprocess.run([OFL, *arguments], cwd=folder, capture_output=True, text=True, timeout=120, check=False)  # noqa: S603
    assert done.returncode == code, done.stderr + done.stdout
    return done.stdout + done.stderr


async def answering(process: OflProcess, state: Path) -> None:
    """Start a coordinator and wait until it answers at its socket."""

    def answers() -> bool:
        assert process.running, process.output
        try:
            return bool(LocalParty(state, COORDINATOR).status().pid)
        except NotRunningError:
            return False

    await process.start()
    await until(answers)


@pytest.mark.slow
async def test_a_torch_model_comes_out_of_a_coordinator_and_goes_into_another(tmp_path: Path) -> None:
    (tmp_path / "tiny.py").write_text(APP)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 1, 16)).astype(np.float32), rng.integers(3, size=20)
    np.savez(tmp_path / "holdout.npz", x=x, y=y)
    what = [f"--app={tmp_path / 'tiny.py'}:app", f"--data={tmp_path / 'holdout.npz'}", PORT]
    first, second = tmp_path / "first", tmp_path / "second"

    newest = tmp_path / "newest.onnx"
    keep = [f"--state={first}", f"--model-out={newest}", "--set=service.model_out_s=0.1"]
    coordinator = OflProcess(["coordinator", *what, *keep], tmp_path / "first.log")
    await answering(coordinator, first)
    for suffix in ("npz", "safetensors", "pt", "onnx"):
        await asyncio.to_thread(ofl, tmp_path, "model", "export", "--state=first", f"--out=running.{suffix}")
    await until(version_path(newest).exists)
    coordinator.kill(signal.SIGTERM)
    assert await coordinator.ended() == 0, coordinator.output
    await asyncio.to_thread(ofl, tmp_path, "model", "export", "--state=first", "--out=stopped.onnx")
    other = [*what, "--set=federation.seed=5", "--initial", str(tmp_path / "running.pt"), f"--state={second}"]
    heir = OflProcess(["coordinator", *other], tmp_path / "second.log")
    await answering(heir, second)
    assert "parameters  171" in await asyncio.to_thread(ofl, tmp_path, "model", "show", "--state=second")
    await asyncio.to_thread(ofl, tmp_path, "model", "diff", "running.npz", "second")
    heir.kill(signal.SIGTERM)
    assert await heir.ended() == 0, heir.output
    refused = ["coordinator", *what, "--initial", "running.npz", "--state=first"]
    assert "already has a model" in await asyncio.to_thread(ofl, tmp_path, *refused, code=2)
    net = torch.nn.Sequential(torch.nn.Conv1d(1, 4, 5), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(4 * 12, 3))
    net.load_state_dict(load_file(tmp_path / "running.safetensors"), strict=True)
    with torch.no_grad():
        wanted = net(torch.from_numpy(x)).numpy()
    for name in ("running.onnx", "newest.onnx", "stopped.onnx"):
        session = onnxruntime.InferenceSession(str(tmp_path / name), providers=["CPUExecutionProvider"])
        assert np.abs(session.run(None, {"input": x})[0] - wanted).max() < 1e-4
