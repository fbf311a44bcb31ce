"""What runs an app's jobs, here or in a process of its own: look at the data, train, evaluate."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from ofl_iot.apps.metrics import Better
from ofl_iot.errors import ConfigError
from ofl_iot.protocol.model_card import ModelCard
from ofl_iot.workloads.base import TrainJob, Vector


class AppError(ConfigError):
    """User code failed, or the process it ran in did; the message has the user's own frames."""


class AppFailedError(AppError):
    """User code raised; its process lives on."""


class AppDiedError(AppError):
    """The process is gone (crashed, killed or silent); the next job starts another."""


@dataclass(frozen=True)
class Description:
    """An app as its model is: known before any data are."""

    card: ModelCard
    size: int
    """Values in the vector: those that travel, and behind them those that stay on the device."""
    metrics: dict[str, Better] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    judged: bool = False
    """Whether the app has held-out data for the coordinator."""

    @property
    def travels(self) -> int:
        """Parameters that leave the device."""
        return self.card.size


@dataclass(frozen=True)
class Look:
    """The data of the next training, frozen until then."""

    count: int
    histogram: tuple[int, ...] = ()
    set_aside: dict[str, str] = field(default_factory=dict)
    """What could not be used, and why."""
    notes: tuple[str, ...] = ()
    """What the probe found worth telling."""


@dataclass(frozen=True)
class TrainReport:
    """What a training used; the ledger is charged with these."""

    steps: int
    sampling_rate: float
    loss: float
    """Not protected by noise: it stays on the device."""


@dataclass(frozen=True)
class Judged:
    """How good a model is on one party's records."""

    loss: float
    count: int
    metrics: dict[str, float] = field(default_factory=dict)


class Runner(Protocol):
    """Runs the jobs of one app for one party or, in a simulation, for several."""

    def describe(self) -> Description:
        """Return what the app's model is."""
        ...

    def open(self, party: int, where: str, *, held_out: bool = False) -> None:
        """Say where a party's data are; `held_out` reads them with `judge`."""
        ...

    def deal(self, where: str, devices: int, *, seed: int, alpha: float) -> str:
        """Give parties 0 to `devices` - 1 their data from one folder and the next party held-out records.

        Returns in words how.
        """
        ...

    def look(self, party: int, *, private: bool) -> Look:
        """Freeze the records that the party's next training will use, whatever arrives meanwhile."""
        ...

    def initial(self, seed: int) -> Vector:
        """Return untrained values, the same for the same seed."""
        ...

    def train(
        self, party: int, vector: Vector, job: TrainJob, *, count: int, entropy: bytes | None = None
    ) -> tuple[Vector, TrainReport]:
        """Train on exactly the `count` records of the last look; `entropy` makes a simulation repeat itself."""
        ...

    def evaluate(self, party: int, vector: Vector) -> Judged:
        """Judge on the party's records."""
        ...

    def stop(self) -> None:
        """Free whatever is held."""
        ...
