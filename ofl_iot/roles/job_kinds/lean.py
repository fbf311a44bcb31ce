"""Jobs of a lean round at the coordinator, one for each stage."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from ofl_iot.roles.events import (
    LeanAsked,
    LeanWeights,
    RoundAggregated,
    Vector,
)
from ofl_iot.roles.job_kinds.base import Job, JobNumber, Role
from ofl_iot.roles.job_kinds.keys import CoordinatorKey
from ofl_iot.roles.job_kinds.rounds import Contributed


@dataclass(frozen=True)
class LeanRound:
    """What leaders contributed to a lean round, and on which ground."""

    key: CoordinatorKey = field(repr=False)
    round_no: int
    attempt: int
    contributions: tuple[Contributed, ...] = field(repr=False)
    base: Vector = field(repr=False)
    bounds: bytes
    evidence: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class LeanJob(Job):
    """A job of a lean round."""

    owner: ClassVar[Role] = Role.COORDINATOR
    lean: LeanRound

    @property
    def number(self) -> JobNumber:
        """Return its round."""
        return JobNumber(round_no=self.lean.round_no)


@dataclass(frozen=True)
class PrepareLean(LeanJob):
    """Check the uploads of a lean round: it asks leaders for sketches."""

    result: ClassVar[type] = LeanAsked


@dataclass(frozen=True)
class ScoreLean(LeanJob):
    """Compute scores of the sketches: it asks leaders for their decryption."""

    result: ClassVar[type] = LeanAsked
    accepted: tuple[str, ...]
    sketches: dict[str, bytes] = field(repr=False)
    active: tuple[str, ...]
    retry: int
    signatures: dict[str, bytes] = field(default_factory=dict, repr=False)
    """Of the sketches, by their leaders."""


@dataclass(frozen=True)
class WeighLean(LeanJob):
    """Judge the decrypted scores and choose integer weights: it asks leaders for signatures."""

    result: ClassVar[type] = LeanAsked
    accepted: tuple[str, ...]
    held: bytes = field(repr=False)
    shares: dict[str, bytes] = field(repr=False)
    numbers: dict[str, bytes] = field(default_factory=dict, repr=False)
    """Of the leaders that could open all key shares: what bodies are compared with sketches by."""
    digest: bytes = b""
    """Of the sketches that were scored."""
    retry: int = 0


@dataclass(frozen=True)
class OpenLean(LeanJob):
    """Check the contributors' signatures: it asks leaders for shares of the sum's key."""

    result: ClassVar[type] = LeanAsked
    accepted: tuple[str, ...]
    weighed: LeanWeights
    signatures: dict[str, bytes] = field(repr=False)


@dataclass(frozen=True)
class FinishLean(LeanJob):
    """Open the weighted sum with the leaders' answers."""

    result: ClassVar[type] = RoundAggregated
    weighed: LeanWeights
    answers: dict[str, bytes] = field(repr=False)
