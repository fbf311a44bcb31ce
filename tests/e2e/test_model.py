"""`ofl model` beside a federation of real processes: nothing is stopped to be examined, nobody is disturbed."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from pathlib import Path

import numpy as np

from ofl_agents.models.output import version_path
from ofl_iot.ids import COORDINATOR
from ofl_iot.models.files import read_tensors
from tests.e2e.processes import NAMES, OFL, Federation, until
from tests.e2e.test_processes import ofl_broker, watching

ENDLESS = 0
ME = NAMES[0]


def ofl(*arguments: str, code: int = 0) -> str:
    done = subprocess.run([OFL, *arguments], capture_output=True, text=True, timeout=120, check=False)  # noqa: S603
    assert done.returncode == code, done.stderr + done.stdout
    return done.stdout + done.stderr


async def test_models_come_out_while_all_run_from_the_broker_and_when_they_are_stopped(tmp_path: Path) -> None:
    async with ofl_broker(tmp_path) as port:
        federation = Federation(tmp_path, port, ENDLESS)
        out, told = tmp_path / "newest.npz", tmp_path / "told"
        hand_on = [f"--model-out={out}", "--set=service.model_out_s=0.2", f"--on-model=touch {told}"]
        federation.processes[ME].arguments += hand_on
        async with federation.running(), watching(federation) as watch:
            await until(lambda: watch.round_no >= 1, federation)
            await asyncio.to_thread(examine_running, federation, tmp_path)
            await until(told.exists, federation)
            assert json.loads(version_path(out).read_text())["party"] == ME
            assert read_tensors(out).about["which"] == "federation"
            coordinator = federation.processes[COORDINATOR]
            coordinator.kill(signal.SIGTERM)
            assert await coordinator.ended() == 0, coordinator.output
            await asyncio.to_thread(examine_stopped, federation, tmp_path)
            assert all(federation.processes[name].running for name in NAMES)


def examine_running(federation: Federation, folder: Path) -> None:
    """A coordinator's and a device's model, and one from an empty folder."""
    state = str(federation.state)
    said = ofl("model", "export", "--state", state, "--id", COORDINATOR, "--out", str(folder / "running.npz"))
    assert "running.npz: round " in said
    shown = json.loads(ofl("model", "show", "--state", state, "--id", ME, "--json"))
    assert shown["about"]["party"] == ME
    running = read_tensors(folder / "running.npz")
    assert int(running.about["round"]) >= 1
    assert running.size == int(shown["about"]["parameters"])
    assert "which party's model?" in ofl("model", "show", "--state", state, code=2)


def examine_stopped(federation: Federation, folder: Path) -> None:
    """The coordinator has ended: its store and what the broker retains are the same model."""
    state, config = str(federation.state), str(folder / "ofl.toml")
    ofl("model", "export", "--state", state, "--id", COORDINATOR, "--out", str(folder / "stopped.safetensors"))
    ofl("model", "export", "--broker", "--id", "observer-2", "--config", config, "--out", str(folder / "broker.npz"))
    stopped, retained = read_tensors(folder / "stopped.safetensors"), read_tensors(folder / "broker.npz")
    assert stopped.about["round"] == retained.about["round"]
    for name, tensor in stopped.tensors.items():
        assert np.array_equal(tensor, retained.tensors[name])
    ofl("model", "diff", str(folder / "stopped.safetensors"), str(folder / "broker.npz"))
    rows = ofl("model", "diff", str(folder / "broker.npz"), state, "--id", ME, "--which", "own", "--json", code=1)
    assert json.loads(rows)[0]["change"] > 0
