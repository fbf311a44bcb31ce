"""Vibration of machines, made here: windows of an accelerometer on motors that are healthy or have one of five faults.

The data are synthetic. Each machine has its own speed, loudness and noise; each fault adds its own lines to the
spectrum, as textbooks of condition monitoring describe them. A record is the log spectrum of one window, shifted and
scaled to mean 0 and deviation 1: how loud a machine is does not matter. Machines are numbered, so there are data for as
many devices as are asked for, and each is the same in every process.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from ofl_iot.workloads.dense import DenseNet, Samples
from ofl_iot.workloads.dense_workload import DenseWorkload
from ofl_iot.workloads.training import Rows

NAME = "machines"
FAULTS = ("healthy", "unbalance", "misalignment", "looseness", "outer race", "inner race")
WINDOW = 256
"""Samples of a window, at 2,560 a second; its spectrum has half as many lines, 10 Hz apart."""
LINES = WINDOW // 2
HIDDEN = 160
RECORDS = 1000
"""Windows of one machine."""
HELD_OUT_MACHINES, HELD_OUT_RECORDS = 40, 50
"""The coordinator judges on machines that no device has."""

_TURNS = 4.9
"""Turns of a shaft in one window: 49 Hz."""
_HARMONICS: dict[str, dict[float, float]] = {
    "healthy": {1.0: 0.25},
    "unbalance": {1.0: 1.0},
    "misalignment": {1.0: 0.35, 2.0: 0.9, 3.0: 0.3},
    "looseness": {0.5: 0.4, 1.0: 0.4, 1.5: 0.4, 2.0: 0.3, 2.5: 0.3, 3.0: 0.3},
    "outer race": {1.0: 0.25, 3.58: 0.6, 7.16: 0.45, 10.74: 0.3},
    "inner race": {1.0: 0.25, 5.42: 0.6, 4.42: 0.3, 6.42: 0.3, 10.84: 0.4},
}
"""Amplitudes by multiples of the speed; 3.58 and 5.42 are the passes of a bearing's outer and inner race."""
_JUDGE_SEED = 20_241


def net() -> DenseNet:
    """Return the network that learns the faults: 21,606 parameters."""
    return DenseNet((LINES, HIDDEN, len(FAULTS)))


def machine(number: int, seed: int = 0, *, records: int = RECORDS, alpha: float = 0.5) -> Samples:
    """Return the windows of one machine; `alpha` says how unevenly its states come (Dirichlet)."""
    rng = np.random.default_rng([seed, number])
    shares = rng.dirichlet(np.full(len(FAULTS), alpha))
    labels = rng.choice(len(FAULTS), size=records, p=shares)
    return Samples.of(_spectra(labels, rng), labels)


def workload(number: int, seed: int = 0, *, alpha: float = 0.5) -> DenseWorkload:
    """Return what the device on one machine trains."""
    return DenseWorkload(NAME, net(), machine(number, seed, alpha=alpha))


@functools.cache
def judge() -> DenseWorkload:
    """Return the coordinator's workload: machines that no device has, all states alike often."""
    parts = [machine(number, _JUDGE_SEED, records=HELD_OUT_RECORDS, alpha=1e6) for number in range(HELD_OUT_MACHINES)]
    features = np.concatenate([part.features[:, :-1] for part in parts])
    return DenseWorkload(NAME, net(), Samples.of(features, np.concatenate([part.labels for part in parts])))


def _spectra(labels: Rows, rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """Return the logarithms of the spectra of windows, each with mean 0 and deviation 1 over its lines."""
    turns = _TURNS * rng.uniform(0.97, 1.03)
    loudness, noise = rng.uniform(0.7, 1.4), rng.uniform(0.5, 0.9)
    time = np.arange(WINDOW, dtype=np.float32) / WINDOW
    windows = rng.standard_normal((len(labels), WINDOW), dtype=np.float32)
    windows *= np.float32(noise)
    for label, fault in enumerate(FAULTS):
        rows = np.flatnonzero(labels == label)
        for multiple, amplitude in _HARMONICS[fault].items():
            strength = loudness * amplitude * rng.uniform(0.5, 1.5, (len(rows), 1))
            phase = rng.uniform(0, 2 * np.pi, (len(rows), 1))
            slip = rng.normal(1, 0.01, (len(rows), 1))
            angle = (2 * np.pi * multiple * turns * slip).astype(np.float32) * time + phase.astype(np.float32)
            windows[rows] += strength.astype(np.float32) * np.sin(angle)
    windows *= np.hanning(WINDOW).astype(np.float32)
    power = np.abs(np.fft.rfft(windows, axis=1)[:, 1:]) ** 2
    levels: npt.NDArray[np.float32] = np.log(power + 0.1)
    levels -= levels.mean(axis=1, keepdims=True)
    levels /= levels.std(axis=1, keepdims=True)
    return levels.astype(np.float32, copy=False)
