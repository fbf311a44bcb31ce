"""What is unusual for a machine: an autoencoder that learns from files of normal vibration, which grow as it runs.

`python machine_vibration.py data` makes a folder for each of four machines, and more files at each further call.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

from ofl_iot import Folder, TorchApp, auc, metric, newest

READINGS = 128


class Residual(nn.Module):
    """Returns what the autoencoder could not rebuild; its mean square is a window's score."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(READINGS, 32), nn.Tanh(), nn.Linear(32, 8))
        self.decoder = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, READINGS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - self.decoder(self.encoder(x))


def loss(residuals: torch.Tensor, faulty: torch.Tensor) -> torch.Tensor:
    """The score of each window; whether it is faulty is not looked at."""
    return residuals.square().mean(1) + 0 * faulty


@metric("higher")
def detection(residuals: torch.Tensor, faulty: torch.Tensor) -> float:
    """How often a faulty window scores above a normal one."""
    return auc(residuals.square().mean(1), faulty)


app = TorchApp(
    name="machine-vibration",
    model=Residual,
    loss=loss,
    samples=Folder(pattern="*.npz", keep=newest(5000)),
    judge=Folder(pattern="*.npz"),
    metrics={"detection": detection},
)


def windows(count: int, rng: np.random.Generator, faulty: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Vibration of a shaft; a faulty bearing adds a high tone."""
    y = (rng.uniform(size=count) < faulty).astype(np.int64)
    time, phase = np.arange(READINGS) / READINGS, rng.uniform(0, 2 * np.pi, (count, 1))
    x = np.sin(2 * np.pi * 4 * time + phase) + 0.5 * np.sin(2 * np.pi * 8 * time + 2 * phase)
    x = x + y[:, None] * np.sin(2 * np.pi * 31 * time + 3 * phase)
    return (x + 0.1 * rng.normal(size=x.shape)).astype(np.float32), y


def record(folder: Path, seed: int, machines: int = 4, count: int = 100) -> None:
    """Add a file to each machine's folder, and to what is held out."""
    for machine in range(machines):
        place = folder / f"machine-{machine + 1}"
        place.mkdir(parents=True, exist_ok=True)
        x, y = windows(count, np.random.default_rng([seed, machine]))
        np.savez(place / f"{seed:05d}.npz", x=x, y=y)
    (folder / "holdout").mkdir(exist_ok=True)
    x, y = windows(count, np.random.default_rng([seed, machines]), faulty=0.3)
    np.savez(folder / "holdout" / f"{seed:05d}.npz", x=x, y=y)


if __name__ == "__main__":
    data = Path(sys.argv[1])
    record(data, seed=len(list(data.glob("machine-1/*.npz"))))
