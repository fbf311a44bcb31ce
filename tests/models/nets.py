"""Small networks of several kinds, with data, trained a little: what exports are tried on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from ofl_iot import TorchApp


class Conv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(3, 8, 5, padding=2)
        self.norm = nn.GroupNorm(2, 8)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.norm(self.conv(x))).mean(-1))


class Gru(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(3, 8, batch_first=True)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gru(x.transpose(1, 2))[0][:, -1])


class Frozen(nn.Module):
    """A backbone that is not trained, with BatchNorm statistics, a travelling middle and a private head."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(5)
            self.backbone = nn.Sequential(nn.Conv1d(3, 6, 3, padding=1), nn.BatchNorm1d(6), nn.ReLU())
        self.backbone.requires_grad_(False).eval()
        self.middle = nn.Linear(6, 8)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.middle(self.backbone(x).mean(-1))))


class Tied(nn.Module):
    """An autoencoder whose decoder is its encoder's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(60, 8)
        self.outside = nn.Linear(60, 8, bias=False)
        self.outside.weight = self.inside.weight

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(self.inside(x.flatten(1)), self.outside.weight.t())


@dataclass(frozen=True)
class Case:
    app: TorchApp
    net: nn.Module
    """Trained."""


def records(count: int = 24, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.integers(4, size=count)
    x = rng.normal(size=(count, 3, 20)) + y[:, None, None]
    return x.astype(np.float32), y


def app_of(make: Callable[[], nn.Module], personal: tuple[str, ...] = ()) -> TorchApp:
    return TorchApp(
        name="trial",
        model=make,
        loss=nn.functional.cross_entropy,
        samples=lambda where: records(),
        personal=personal,
    )


def trained(make: Callable[[], nn.Module], personal: tuple[str, ...] = ()) -> Case:
    torch.manual_seed(1)
    net = make()
    x, y = (torch.from_numpy(each) for each in records())
    optimiser = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)
    for _ in range(5):
        optimiser.zero_grad()
        out = net(x)
        (out.square().mean() if out.shape[1] == 60 else nn.functional.cross_entropy(out, y)).backward()
        optimiser.step()
    return Case(app_of(make, personal), net)


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[str, ...]]] = {
    "1-D CNN": (Conv, ()),
    "GRU": (Gru, ()),
    "frozen backbone, private head": (Frozen, ("head.*",)),
    "tied weights": (Tied, ()),
}
