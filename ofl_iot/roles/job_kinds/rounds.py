"""Jobs of a round: a leader's contribution, its aggregation at the coordinator, the evaluation of the model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from ofl_iot.ids import DeviceId
from ofl_iot.roles.events import (
    ContributionProtected,
    DecryptionRequested,
    Evaluated,
    RoundAggregated,
    Vector,
)
from ofl_iot.roles.job_kinds.base import Role, RoundJob
from ofl_iot.roles.job_kinds.keys import CoordinatorKey, KeyMaterial


@dataclass(frozen=True)
class LeanGround:
    """What a contribution to a lean round stands on."""

    base: Vector = field(repr=False)
    bounds: bytes
    attempt: int
    sealing_private: bytes = field(repr=False)
    pinned: tuple[tuple[str, int], ...] = ()
    """Contributors and weights for which an earlier body of the same update was signed."""


@dataclass(frozen=True)
class ProtectContribution(RoundJob):
    """Bring a leader's update into the form the coordinator may have."""

    owner: ClassVar[Role] = Role.LEADER
    result: ClassVar[type] = ContributionProtected
    update: Vector
    me: DeviceId
    key: KeyMaterial | None = field(default=None, repr=False)
    """None: in the clear."""
    ground: LeanGround | None = field(default=None, repr=False)
    """None where the round is not lean."""


@dataclass(frozen=True)
class Contributed:
    """What the coordinator knows of one leader's contribution."""

    leader: str
    payload: bytes
    sample_count: int
    updates: int
    """Chunks merged into it."""
    members: int = 1
    """Devices in its cluster."""
    effort: float = 0.0
    """Training steps behind it, each by the share of the model it told of; 0 = not known."""


@dataclass(frozen=True)
class AggregateRound(RoundJob):
    """Weigh and sum contributions in the clear."""

    owner: ClassVar[Role] = Role.COORDINATOR
    result: ClassVar[type] = RoundAggregated
    contributions: tuple[Contributed, ...]
    evidence: dict[str, float] = field(default_factory=dict)
    """The leaders' suspicion accounts."""


@dataclass(frozen=True)
class ScoreRound(RoundJob):
    """Compute the scores of encrypted contributions."""

    owner: ClassVar[Role] = Role.COORDINATOR
    result: ClassVar[type] = DecryptionRequested
    key: CoordinatorKey = field(repr=False)
    contributions: tuple[Contributed, ...]
    active: tuple[str, ...]
    size: int
    """Parameters of the model."""
    attempt: int = 0
    """Grows when a round is opened again: a job of an earlier attempt may still be running."""


@dataclass(frozen=True)
class WeighRound(RoundJob):
    """Judge the decrypted scores, sum the encrypted contributions.

    Without shares the round is weighed as before and its sum is encrypted afresh for another active set.
    """

    owner: ClassVar[Role] = Role.COORDINATOR
    result: ClassVar[type] = DecryptionRequested
    shares: dict[str, bytes] = field(repr=False)
    active: tuple[str, ...]
    evidence: dict[str, float]
    values: bytes = field(default=b"", repr=False)
    """In place of shares: what the decryptor got out of them, and `active` who decrypted."""
    attempt: int = 0
    held: object = field(default=None, repr=False, compare=False)
    """What the job before left for this one (`DecryptionRequested.held`)."""


@dataclass(frozen=True)
class FinishRound(RoundJob):
    """Decrypt the weighted sum from the shares."""

    owner: ClassVar[Role] = Role.COORDINATOR
    result: ClassVar[type] = RoundAggregated
    shares: dict[str, bytes] = field(repr=False)
    values: bytes = field(default=b"", repr=False)
    """In place of shares: the sum that the decryptor got out of them."""
    attempt: int = 0
    held: object = field(default=None, repr=False, compare=False)
    """What the job before left for this one."""


@dataclass(frozen=True)
class EvaluateModel(RoundJob):
    """Evaluate a global model on held-out data."""

    owner: ClassVar[Role] = Role.COORDINATOR
    result: ClassVar[type] = Evaluated
    params: Vector
