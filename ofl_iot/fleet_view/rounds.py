"""What a fleet view says of clusters and rounds."""

from __future__ import annotations

from typing import Literal

from ofl_iot.fleet_view.base import Base


class Elected(Base, frozen=True):
    """Why a device leads its cluster."""

    score: float | None = None
    runner_up: str | None = None
    runner_up_score: float | None = None
    reason: str | None = None


class ClusterView(Base, frozen=True):
    """One cluster; its id is a letter that survives a change of the leader."""

    id: str
    leader: str
    term: int
    since_s: float | None = None
    deputies: tuple[str, ...] = ()
    members: int = 0
    online: int = 0
    samples: int | None = None
    state: Literal["merging", "making-key", "without-leader"] = "merging"
    handovers_1h: int = 0
    elected: Elected = Elected()
    weight: float | None = None
    evidence: float | None = None
    previous: str | None = None


class RoundSeconds(Base, frozen=True):
    """How long the stages of a round took."""

    collect: float | None = None
    score: float | None = None
    decrypt: float | None = None
    publish: float | None = None
    aggregate: float | None = None
    """From the last contribution to the new model, where the parts of it are not told."""


class RoundBytes(Base, frozen=True):
    """What a round cost on the wire, as the devices tell it."""

    devices_up: int | None = None
    leaders_up: int | None = None
    down: int | None = None


class ContributionView(Base, frozen=True):
    """One leader's part of a round."""

    leader: str
    term: int
    verdict: Literal["awaited", "received", "included", "weighed down", "refused", "missing"]
    cluster: str | None = None
    devices: int = 0
    chunks: int = 0
    samples: int = 0
    bytes: int | None = None
    arrived_after_s: float | None = None
    weight: float = 0.0
    evidence: float | None = None
    reason: str | None = None
    contributors: tuple[str, ...] = ()


class RoundView(Base, frozen=True):
    """One round."""

    round_no: int
    attempt: int
    state: Literal["open", "closed", "abandoned"]
    stage: str | None = None
    opened_s: float | None = None
    closed_s: float | None = None
    deadline_s: float | None = None
    encrypted: bool = False
    threshold: int | None = None
    key_term: int | None = None
    decryption_set: tuple[str, ...] = ()
    not_answered: tuple[str, ...] = ()
    seconds: RoundSeconds = RoundSeconds()
    bytes: RoundBytes = RoundBytes()
    devices: int = 0
    """Devices whose chunks it holds."""
    online: int = 0
    accuracy: float | None = None
    """On the coordinator's held-out records."""
    reason: str | None = None
    contributions: tuple[ContributionView, ...] = ()
