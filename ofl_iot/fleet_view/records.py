"""What an observer remembers: one record a device and a cluster, kept as JSON in its history."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from ofl_iot.fleet_view.view import Alert, EventView, RoundView
from ofl_iot.protocol.fleet_notes import Vitals

BIN_S = 900
"""Length of a bin of a device's history."""
DAY_BINS = 96


class RefusalRecord(msgspec.Struct, kw_only=True):
    """A party does not accept a device's messages."""

    by: str
    code: str
    reason: str
    dropped: int
    first_s: float
    at_s: float


class Bin(msgspec.Struct, kw_only=True):
    """A quarter of an hour of one device."""

    start_s: int
    contact_s: float = 0.0
    """Seconds in which it was online."""
    watched_s: float = 0.0
    """Seconds in which the observer had a link."""
    uploaded_bytes: int = 0
    uploads: int = 0
    budget: float | None = None
    leader: str = ""
    term: int = 0
    stop: str = ""
    """Code of what kept it from contributing, at the end of the bin; empty if nothing did."""


class DeviceRecord(msgspec.Struct, kw_only=True):
    """What one device said, and what others said of it."""

    id: str
    online: bool = False
    since_s: float | None = None
    seen_s: float | None = None
    uploaded_s: float | None = None
    term: int = 0
    samples: int | None = None
    model: str = ""
    """Digest of its model in hex."""
    size: int = 0
    type: str = ""
    version: str = ""
    difference: str = ""
    privacy: str = ""
    """What is left of its privacy budget, in its own words."""
    vitals: Vitals | None = None
    vitals_s: float | None = None
    held_since_s: float | None = None
    """Since when it says that something keeps it from training."""
    refusals: dict[str, RefusalRecord] = {}
    """The last refusal of each party."""
    last_round: int = 0
    """The last closed round with chunks of it."""
    last_round_s: float | None = None
    paused_by: str = ""
    changed: int = 0
    """Grows with every change of this record."""


class ClusterRecord(msgspec.Struct, kw_only=True):
    """A cluster under the letter that pictures know it by."""

    letter: str
    index: int
    leader: str
    term: int
    members: tuple[str, ...]
    deputies: tuple[str, ...] = ()
    previous: str = ""
    reason: str = ""
    since_s: float | None = None
    handovers: list[float] = []
    """When it changed hands, the last hour."""


class Memory(msgspec.Struct, kw_only=True):
    """All that is not a round, an event or a bin."""

    devices: dict[str, DeviceRecord] = {}
    clusters: dict[str, ClusterRecord] = {}
    """By letter."""
    workload: str = ""
    model: str = ""
    """Digest of the federation's model in hex."""
    size: int = 0
    version: str = ""
    coordinator_s: float | None = None
    """When the coordinator was heard last."""
    protection_since_s: float | None = None
    encrypted: bool | None = None
    settings_revision: int = 0
    counts: dict[str, int] = {}
    """Events by kind and rounds by how they ended, since the history began."""


@dataclass
class Changes:
    """What is new since the last call of `take_changes`, for a history."""

    rounds: list[RoundView] = field(default_factory=list)
    events: list[EventView] = field(default_factory=list)
    bins: dict[tuple[str, int], Bin] = field(default_factory=dict)
    """By device and beginning."""
    alerts: list[Alert] = field(default_factory=list)
    """Alerts whose cause has ended."""
    memory: bool = False
    """Whether records changed, too."""


@dataclass
class Past:
    """What a history kept, for a new observer to go on from."""

    memory: Memory = field(default_factory=Memory)
    rounds: list[RoundView] = field(default_factory=list)
    events: list[EventView] = field(default_factory=list)
    """Newest first."""
    bins: dict[str, list[Bin]] = field(default_factory=dict)
    open_alerts: list[Alert] = field(default_factory=list)
    resolved: list[Alert] = field(default_factory=list)
    began_s: float | None = None
