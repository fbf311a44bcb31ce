"""What a leader reports."""

from __future__ import annotations

from typing import ClassVar

from ofl_iot.roles.reports.base import DEBUG, ERROR, WARNING, Report


class LeadershipBegun(Report, frozen=True):
    """A device leads its cluster from this term on."""

    phrase: ClassVar[str] = "leading"
    term: int
    members: int


class LeadershipEnded(Report, frozen=True):
    """A device hands its cluster over to another leader."""

    phrase: ClassVar[str] = "no longer leading"
    term: int
    leader: str


class ChunkMerged(Report, frozen=True):
    """A leader merged a chunk of `count` parameters with this step size."""

    phrase: ClassVar[str] = "chunk merged"
    level: ClassVar[int] = DEBUG
    device: str
    seq: int
    step: float
    count: int


class ChunkRefused(Report, frozen=True):
    """A leader's gate gave a chunk no weight: it is confirmed and changes nothing."""

    phrase: ClassVar[str] = "chunk refused"
    level: ClassVar[int] = DEBUG
    device: str
    seq: int
    count: int


class ChunkBounded(Report, frozen=True):
    """A leader scaled a chunk down to what the cluster's contribution has room for."""

    phrase: ClassVar[str] = "chunk weighed down"
    level: ClassVar[int] = WARNING
    device: str
    seq: int
    to: float


class ContributionFailed(Report, frozen=True):
    """A leader could not encrypt or encode its contribution."""

    phrase: ClassVar[str] = "contribution failed"
    level: ClassVar[int] = ERROR
    round_no: int
    reason: str


class SignedVectorVoid(Report, frozen=True):
    """A leader may sign its update for another sum: a contributor of the one before has no share of the new key."""

    phrase: ClassVar[str] = "signed for before, and free for another sum"
    level: ClassVar[int] = WARNING
    round_no: int
    missing: tuple[str, ...]


class StoredClusterDropped(Report, frozen=True):
    """A leader found a cluster model in its store that is no longer learnt."""

    phrase: ClassVar[str] = "stored cluster model dropped"
    level: ClassVar[int] = WARNING
    reason: str


class GlobalModelAdopted(Report, frozen=True):
    """A leader took over the global model of a round."""

    phrase: ClassVar[str] = "global model adopted"
    level: ClassVar[int] = DEBUG
    round_no: int
    included: bool
