"""What the coordinator reports: clusters, rounds, and other coordinators."""

from __future__ import annotations

from typing import ClassVar

from ofl_iot.roles.reports.base import WARNING, Report


class Clustered(Report, frozen=True):
    """The coordinator divided the fleet into clusters."""

    phrase: ClassVar[str] = "clustered"
    term: int
    clusters: int
    leaders: tuple[str, ...]
    churn: float
    distrusted: tuple[str, ...] = ()


class DeviceJoined(Report, frozen=True):
    """A device that came late was placed in a cluster."""

    phrase: ClassVar[str] = "joined"
    device: str
    leader: str


class DeviceStoreLost(Report, frozen=True):
    """A device that was known came with another store: what it held is gone."""

    phrase: ClassVar[str] = "device lost its store"
    level: ClassVar[int] = WARNING
    device: str


class LeaderReplaced(Report, frozen=True):
    """A lost or unfit leader's cluster has a new leader."""

    phrase: ClassVar[str] = "leader replaced"
    level: ClassVar[int] = WARNING
    lost: str
    leader: str
    term: int


class ClusterOrphaned(Report, frozen=True):
    """A lost leader cannot be replaced: no device of its cluster is live."""

    phrase: ClassVar[str] = "cluster without a live device"
    level: ClassVar[int] = WARNING
    leader: str


class RoundOpened(Report, frozen=True):
    """The coordinator asked leaders to contribute."""

    phrase: ClassVar[str] = "round open"
    round_no: int
    leaders: int
    encrypted: bool


class RoundClosed(Report, frozen=True):
    """A round's contributions are in the global model, by these weights."""

    phrase: ClassVar[str] = "round closed"
    round_no: int
    completed: int
    weights: dict[str, float]
    excluded: tuple[str, ...] = ()


class RoundAbandoned(Report, frozen=True):
    """A round ended without a new model."""

    phrase: ClassVar[str] = "round abandoned"
    level: ClassVar[int] = WARNING
    round_no: int
    reason: str


class ContributionRefused(Report, frozen=True):
    """A leader's contribution could not be used."""

    phrase: ClassVar[str] = "contribution refused"
    level: ClassVar[int] = WARNING
    leader: str
    reason: str


class LeaderSuspected(Report, frozen=True):
    """A leader's contribution was weighed down; `evidence` is its suspicion account."""

    phrase: ClassVar[str] = "leader suspected"
    leader: str
    reason: str
    evidence: float


class ModelEvaluated(Report, frozen=True):
    """A global model was evaluated on held-out data."""

    phrase: ClassVar[str] = "evaluated"
    round_no: int
    metrics: dict[str, float]
    """By the app's names; empty if there is nothing to judge on."""


class AllBudgetsSpent(Report, frozen=True):
    """A bounded run stops early: no device may release any more."""

    phrase: ClassVar[str] = "all privacy budgets are spent"
    level: ClassVar[int] = WARNING
    completed: int


class RivalCoordinator(Report, frozen=True):
    """Another coordinator published a global model for this federation."""

    phrase: ClassVar[str] = "another coordinator"
    level: ClassVar[int] = WARNING
    term: int
    round_no: int


class TakeoverBegun(Report, frozen=True):
    """This coordinator takes over from the one whose manifest the broker retains."""

    phrase: ClassVar[str] = "taking over"
    level: ClassVar[int] = WARNING
    term: int
    round_no: int


class TakeoverDone(Report, frozen=True):
    """The model and the record of settled chunks were taken over."""

    phrase: ClassVar[str] = "model and settled chunks taken over"
    round_no: int
    devices: int


class NothingToTakeOver(Report, frozen=True):
    """The broker retains no model to take over."""

    phrase: ClassVar[str] = "no model to take over"
    level: ClassVar[int] = WARNING
    reason: str


class SampleClaimBounded(Report, frozen=True):
    """A device claims more samples than the rest of the fleet, or its certificate, makes believable."""

    phrase: ClassVar[str] = "claim of samples bounded"
    level: ClassVar[int] = WARNING
    device: str
    claimed: int
    counted: int
