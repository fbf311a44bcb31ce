"""What privacy adds to a device's time on one data set: training with noise, releasing with noise."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ofl_iot.opportunity.release import Mode, ReleaseSettings, prepare_release
from ofl_iot.workloads.base import TrainJob, Workload
from ofl_iot.workloads.tasks import load_task
from ofl_research.reproduction.cells import Cell
from ofl_research.reproduction.worker import Tell


class TimeTrial(msgspec.Struct, frozen=True, kw_only=True):
    """A cell's settings."""

    devices: int = 16
    batch_size: int = 32
    steps: int = 10
    gamma: float = 0.1
    repeats: int = 3


def run(cell: Cell, data: Path | None, tell: Tell) -> dict[str, Any]:
    """Seconds of one core: one local training and one release, with and without privacy, best of some."""
    trial = msgspec.convert(cell.settings, TimeTrial)
    task = load_task(cell.dataset, data, devices=trial.devices, seed=cell.seed)
    device = task.devices[0]
    tell(0.2, f"{device.size} parameters")
    trained = {name: _training_s(device, trial, private=name == "private") for name in ("plain", "private")}
    tell(0.6, "releases")
    modes: dict[str, Mode] = {"plain": "off", "paper": "paper"}
    released = {name: _release_s(device, trial, mode) for name, mode in modes.items()}
    return {
        "parameters": device.size,
        "samples": device.sample_count,
        "training_s": trained["plain"],
        "private_training_s": trained["private"],
        "release_s": released["plain"],
        "paper_release_s": released["paper"],
    }


def _training_s(device: Workload, trial: TimeTrial, *, private: bool) -> float:
    noise = {"clip_norm": 1.0, "noise_multiplier": 1.0} if private else {}
    job = TrainJob(steps=trial.steps, batch_size=trial.batch_size, learning_rate=0.05, **noise)
    start, rng = device.initial(0), np.random.default_rng(0)
    return _best_s(lambda: device.train(start, job, rng), trial.repeats)


def _release_s(device: Workload, trial: TimeTrial, mode: Mode) -> float:
    rng = np.random.default_rng(0)
    theta0 = device.initial(0)
    update, theta1 = (rng.normal(0, 0.01, device.size).astype(np.float32) for _ in range(2))
    settings = ReleaseSettings(mode=mode)
    return _best_s(lambda: prepare_release(update, theta0, theta0 + theta1, trial.gamma, settings, rng), trial.repeats)


def _best_s(work: Callable[[], object], repeats: int) -> float:
    """Processor seconds of the fastest call, after one to warm up."""
    work()
    seconds = []
    for _ in range(repeats):
        began = time.process_time()
        work()
        seconds.append(time.process_time() - began)
    return min(seconds)
