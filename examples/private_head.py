"""Glyphs that every device labels in its own order: the backbone is frozen, the middle is shared, the head is private.

Only the middle travels. The backbone's filters are drawn from a fixed seed and not trained, as a pre-trained one would
be. `python private_head.py data` deals scikit-learn's digits to six devices, each with labels in an order of its own.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

from ofl_iot import Folder, TorchApp, accuracy

FILTERS = 32


class Net(nn.Module):
    """8x8 images in, ten scores out."""

    def __init__(self) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(7)
        self.backbone = nn.Conv2d(1, FILTERS, 3, stride=2, padding=1)
        self.backbone.weight.data = 0.5 * torch.randn(FILTERS, 1, 3, 3, generator=draw)
        self.backbone.bias.data.zero_()
        self.backbone.requires_grad_(requires_grad=False)
        self.middle = nn.Linear(16 * FILTERS, 48)
        self.head = nn.Linear(48, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = torch.relu(self.backbone(x)).flatten(1)
        return self.head(torch.relu(self.middle(found)))


app = TorchApp(
    name="private-head",
    model=Net,
    loss=nn.functional.cross_entropy,
    samples=Folder(),
    metrics={"accuracy": accuracy},
    personal=["head.*"],
)


def make(folder: Path, devices: int = 6) -> None:
    """Write device-01.npz and so on."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    x = (images.reshape(-1, 1, 8, 8) / 16).astype(np.float32)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(devices):
        mine = np.random.default_rng([5, number]).permutation(10)
        np.savez(folder / f"device-{number + 1:02d}.npz", x=x[number::devices], y=mine[labels[number::devices]])


if __name__ == "__main__":
    make(Path(sys.argv[1]))
