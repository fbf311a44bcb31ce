"""Which of seven shoulder exercises a person does, from the watch on the wrist: a 1-D CNN on IMU recordings.

`python wrist_motion.py data` writes one file for each of the ten people in PyPI's seglearn (BSD); people are devices.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

from ofl_iot import Folder, TorchApp, accuracy

WINDOW, STEP = 100, 50
"""Readings of a window and between two of them, at 50 a second."""


class Net(nn.Module):
    """Six channels (acceleration, turning rate) in, a score for each exercise out."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv1d(6, 24, 7, stride=2, padding=3), nn.GroupNorm(4, 24), nn.ReLU(),
            nn.Conv1d(24, 32, 5, stride=2, padding=2), nn.GroupNorm(4, 32), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Linear(64, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.features(x)
        return self.head(torch.cat([found.mean(-1), found.amax(-1)], dim=1))


app = TorchApp(
    name="wrist-motion",
    model=Net,
    loss=nn.functional.cross_entropy,
    samples=Folder(),
    judge=Folder(),
    metrics={"accuracy": accuracy},
)


def windows(recording: np.ndarray) -> np.ndarray:
    """Cut a recording (readings x 6) into windows (channels first), in units of its own spread."""
    scaled = (recording - recording.mean(axis=0)) / (recording.std(axis=0) + 1e-6)
    starts = range(0, len(scaled) - WINDOW + 1, STEP)
    return np.stack([scaled[start : start + WINDOW].T for start in starts]).astype(np.float32)


def make(folder: Path, people: int = 10) -> None:
    """Write person-01.npz and so on."""
    package = importlib.util.find_spec("seglearn")
    if package is None or not package.submodule_search_locations:
        sys.exit("pip install --no-deps seglearn==1.2.5")
    # The package's own file, which it loads in the same way.
    held = np.load(Path(package.submodule_search_locations[0], "data", "watch_dataset.npy"), allow_pickle=True).item()
    folder.mkdir(parents=True, exist_ok=True)
    for person in range(1, people + 1):
        mine = [number for number, subject in enumerate(held["subject"]) if subject == person]
        parts = [(windows(held["X"][number]), held["y"][number]) for number in mine]
        x = np.concatenate([part for part, _ in parts])
        y = np.concatenate([np.full(len(part), label) for part, label in parts])
        np.savez(folder / f"person-{person:02d}.npz", x=x, y=y)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
