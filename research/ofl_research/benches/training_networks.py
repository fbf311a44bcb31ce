"""Networks that private training is measured on, and one batch for each; imports PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class Recurrent(nn.Module):  # type: ignore[misc]  # torch is not typed here
    """Classifier of sequences by the last state of a GRU or LSTM."""

    def __init__(self, kind: Any, hidden: int) -> None:
        super().__init__()
        self.rnn = kind(6, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 6)

    def forward(self, x: Any) -> Any:
        """Return logits."""
        return self.head(self.rnn(x)[0][:, -1])


class Places(nn.Module):  # type: ignore[misc]  # torch is not typed here
    """Learned positions."""

    def __init__(self) -> None:
        super().__init__()
        self.offset = nn.Parameter(torch.randn(1, 50, 64) * 0.02)

    def forward(self, x: Any) -> Any:
        """Return x plus the positions."""
        return x + self.offset


class Transformer(nn.Module):  # type: ignore[misc]  # torch is not typed here
    """Encoder of two layers of width 64."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Linear(6, 64), Places()
        layer = nn.TransformerEncoderLayer(64, 4, 128, 0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, 6)

    def forward(self, x: Any) -> Any:
        """Return logits."""
        return self.head(self.body(self.place(self.embed(x))).mean(1))


class Words(nn.Module):  # type: ignore[misc]  # torch is not typed here
    """Mean of embedded tokens, and two dense layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5000, 64)
        self.mlp = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))

    def forward(self, x: Any) -> Any:
        """Return logits."""
        return self.mlp(self.embed(x).mean(1))


def _cnn() -> Any:
    """The paper's network for 28 x 28 pixels: 815,810 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 5, 2, 2), nn.ReLU(), nn.Conv2d(4, 16, 5, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(784, 1024),
        nn.ReLU(), nn.Linear(1024, 10),
    )  # fmt: skip


def _cnn_of_one_dimension() -> Any:
    """Windows of vibration: 20,000 parameters."""
    return nn.Sequential(
        nn.Conv1d(3, 32, 9, 2, 4), nn.GroupNorm(4, 32), nn.ReLU(), nn.Conv1d(32, 56, 7, 2, 3), nn.GroupNorm(4, 56),
        nn.ReLU(), nn.Conv1d(56, 32, 3, 2, 1), nn.GroupNorm(4, 32), nn.ReLU(), nn.AdaptiveAvgPool1d(4), nn.Flatten(),
        nn.Linear(128, 6),
    )  # fmt: skip


NETWORKS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "cnn": (_cnn, (1, 28, 28)),
    "cnn1d": (_cnn_of_one_dimension, (3, 128)),
    "gru": (lambda: Recurrent(nn.GRU, 176), (50, 6)),
    "lstm": (lambda: Recurrent(nn.LSTM, 152), (50, 6)),
    "transformer": (Transformer, (50, 6)),
    "words": (Words, (20,)),
}
"""How to make each network, and the shape of a record."""


def made(name: str) -> Any:
    """Return a network in training mode, the same each time."""
    torch.manual_seed(1)
    return NETWORKS[name][0]().train()


def batch_of(name: str, count: int) -> tuple[Any, Any]:
    """Return inputs and classes of `count` records, the same each time."""
    generator = torch.Generator().manual_seed(0)
    shape = (count, *NETWORKS[name][1])
    if name == "words":
        inputs = torch.randint(0, 5000, shape, generator=generator)
    else:
        inputs = torch.randn(shape, generator=generator)
    return inputs, torch.randint(0, 6, (count,), generator=generator)
