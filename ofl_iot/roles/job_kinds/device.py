"""Jobs of a device: its ledger, its data, training, and the release of an update."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from ofl_iot.privacy.planning import Fleet, TrainingPlan
from ofl_iot.protocol.chunks import ChunkHead
from ofl_iot.protocol.fleet_orders import Order
from ofl_iot.roles.events import (
    DataLooked,
    LedgerOpened,
    OrderJudged,
    ReleasePrepared,
    Trained,
    Vector,
)
from ofl_iot.roles.job_kinds.base import Job, Role


@dataclass(frozen=True)
class OpenLedger(Job):
    """Read the privacy ledger, or begin one, and work out what it allows."""

    owner: ClassVar[Role] = Role.DEVICE
    result: ClassVar[type] = LedgerOpened
    stored: bytes | None
    records: int = 0
    """That the device trains on, for the sampling rate; 0 = as many as its workload has."""
    at: float = field(default=0.0, compare=False)
    """The time, in seconds since 1970."""
    fleet: Fleet | None = None
    """All devices' records, for a plan that is made from them."""


@dataclass(frozen=True)
class JudgeOrder(Job):
    """Verify that an operator of this federation signed an order to this device, lately."""

    owner: ClassVar[Role] = Role.DEVICE
    result: ClassVar[type] = OrderJudged
    order: Order


@dataclass(frozen=True)
class LookAtData(Job):
    """Freeze the records of the next training."""

    owner: ClassVar[Role] = Role.DEVICE
    result: ClassVar[type] = DataLooked


@dataclass(frozen=True)
class TrainLocally(Job):
    """Train for `steps` from `params`."""

    owner: ClassVar[Role] = Role.DEVICE
    result: ClassVar[type] = Trained
    params: Vector
    steps: int
    noise_multiplier: float = 0.0
    """Noise multiplier of record-level DP-SGD; 0 trains without noise or clipping."""
    sampling_rate: float = 1.0
    """The largest that was paid for: a training that would sample records more often is refused."""
    plan: TrainingPlan | None = None
    """How to train by the plan; None: as the settings say."""
    batch_size: int = 0
    """With a plan: what the noisy sum is divided by."""


@dataclass(frozen=True)
class PrepareRelease(Job):
    """Select, perturb and cut."""

    owner: ClassVar[Role] = Role.DEVICE
    result: ClassVar[type] = ReleasePrepared
    head: ChunkHead
    update: Vector
    """Work that has not left the device: local model minus base."""
    synced: Vector
    """The model as of the last sync (the paper's theta_0). A block may come in meanwhile: it only ranks."""
    synced_before: Vector
    """The model as of the sync before (theta_1)."""
    gamma: float
