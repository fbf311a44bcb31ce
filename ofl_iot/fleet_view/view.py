"""The fleet view: one value that holds everything a rendering shows, and its JSON.

Units stand in names: `_s` seconds or Unix time, `_bytes`, `_c` degrees Celsius, `_w` watts; shares lie between 0 and 1.
None means unknown or not measured. Fields may be added; a reader ignores what it does not know.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from ofl_iot.errors import ConfigError
from ofl_iot.fleet_view.base import Base, Value, Values
from ofl_iot.fleet_view.devices import (
    STATES,
    Chunks,
    DeviceView,
    Evidence,
    LeaderSpan,
    Link,
    Outbox,
    Plan,
    PlanRow,
    Resources,
    Span,
    State,
    StopSpan,
    Todo,
    Traffic,
    Why,
)
from ofl_iot.fleet_view.parties import BrokerView, CoordinatorView, Federation, Model, ObserverView, Privacy, Protection
from ofl_iot.fleet_view.rounds import ClusterView, ContributionView, Elected, RoundBytes, RoundSeconds, RoundView

__all__ = [
    "SCHEMA",
    "STATES",
    "Alert",
    "Base",
    "BrokerView",
    "Chunks",
    "ClusterView",
    "ContributionView",
    "CoordinatorView",
    "DeviceDetails",
    "DeviceView",
    "Elected",
    "EventView",
    "Evidence",
    "Federation",
    "FleetView",
    "LeaderSpan",
    "Link",
    "Model",
    "ObserverView",
    "Outbox",
    "Plan",
    "PlanRow",
    "Privacy",
    "Protection",
    "Resources",
    "RoundBytes",
    "RoundSeconds",
    "RoundView",
    "Severity",
    "Span",
    "State",
    "StopSpan",
    "Todo",
    "Traffic",
    "Value",
    "Values",
    "Why",
    "decode_details",
    "decode_view",
    "encode_view",
]

SCHEMA = "ofl.fleet-view/1"

Severity: TypeAlias = Literal["critical", "warning", "info"]


class Alert(Base, frozen=True):
    """Something that an operator should know; open while its cause lasts."""

    id: str
    severity: Severity
    kind: str
    subject: str
    since_s: float
    title: str
    detail: str
    todo: str | None = None
    command: str | None = None
    link: str | None = None
    until_s: float | None = None
    """When its cause ended; None while it is open."""


class EventView(Base, frozen=True):
    """Something that happened."""

    at_s: float
    kind: str
    subject: str
    text: str


class FleetView(Base, frozen=True):
    """All that an observer knows at `now_s`."""

    seq: int
    """Grows by one with every change."""
    now_s: float
    federation: Federation
    observer: ObserverView
    coordinator: CoordinatorView = CoordinatorView()
    broker: BrokerView = BrokerView()
    devices: tuple[DeviceView, ...] = ()
    clusters: tuple[ClusterView, ...] = ()
    rounds: tuple[RoundView, ...] = ()
    """Oldest first."""
    alerts: tuple[Alert, ...] = ()
    """The most urgent first."""
    resolved: tuple[Alert, ...] = ()
    events: tuple[EventView, ...] = ()
    """Newest first."""
    schema: str = SCHEMA

    def device(self, name: str) -> DeviceView | None:
        """Return one device, or None if the fleet has no such."""
        return next((each for each in self.devices if each.id == name), None)


class DeviceDetails(Base, frozen=True):
    """A device's page: a day in bins, and what happened to it."""

    id: str
    bin_s: int
    from_s: float
    contact: tuple[float | None, ...]
    """Share of each bin in which it was online; None where the observer was away."""
    upload_bytes: tuple[int, ...]
    budget: tuple[float | None, ...]
    leaders: tuple[LeaderSpan, ...] = ()
    stops: tuple[StopSpan, ...] = ()
    plan: tuple[PlanRow, ...] = ()
    events: tuple[EventView, ...] = ()


def encode_view(view: FleetView | DeviceDetails) -> bytes:
    """Return the view as JSON."""
    return msgspec.json.encode(view)


def decode_view(data: bytes) -> FleetView:
    """Return a view that was written as JSON, or ConfigError."""
    try:
        view = msgspec.json.decode(data, type=FleetView)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"not a fleet view ({error}): write one with `ofl status --json`") from error
    if view.schema != SCHEMA:
        raise ConfigError(f"a fleet view of schema {view.schema[:40]!r}; this program reads {SCHEMA}")
    return view


def decode_details(data: bytes) -> DeviceDetails:
    """Return the details of a device that were written as JSON, or ConfigError."""
    try:
        return msgspec.json.decode(data, type=DeviceDetails)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"not a device's details ({error})") from error
