"""What a fleet view says of the federation, its coordinator, its broker and its observer."""

from __future__ import annotations

from typing import Literal

import msgspec

from ofl_iot.fleet_view.base import Base


class Model(Base, frozen=True):
    """The federation's model."""

    name: str | None = None
    digest: str | None = None
    """First eight hex digits."""
    parameters: int | None = None


class Privacy(Base, frozen=True):
    """The promise that devices train under, where it is announced."""

    mode: str | None = None
    epsilon: float | None = None
    delta: float | None = None


class Protection(Base, frozen=True):
    """Whether cluster models are encrypted on their way into a round."""

    state: Literal["on", "off", "making-key"] | None = None
    mode: str | None = None
    since_s: float | None = None
    key_term: int | None = None
    threshold: int | None = None
    """Leaders that must decrypt together."""
    leaders: int | None = None
    """Leaders that hold a share of the key."""


class Federation(Base, frozen=True):
    """What all parties share."""

    id: str
    workload: str | None = None
    model: Model = Model()
    privacy: Privacy = Privacy()
    protection: Protection = Protection()
    settings_revision: int | None = None
    round_interval_s: float | None = None
    recluster_every: int | None = None
    next_recluster_round: int | None = None
    version: str | None = None


class CoordinatorView(Base, frozen=True):
    """The coordinator, as far as its messages tell."""

    online: bool | None = None
    since_s: float | None = None
    version: str | None = None
    incarnation: str | None = None
    last_seen_s: float | None = None


class BrokerView(Base, frozen=True):
    """The broker, as the observer's own link sees it."""

    kind: str | None = None
    host: str | None = None
    tls: str | None = None
    round_trip_s: float | None = None


class ObserverView(Base, frozen=True):
    """The observer itself and how old its knowledge is."""

    id: str
    link: Literal["up", "down"] = "down"
    since_s: float | None = None
    last_message_s: float | None = None
    history_s: float | None = None
    """How far its history reaches back."""
    messages_per_s: float | None = None
    bytes_per_s: float | None = None
    messages: int = 0
    """Messages folded into the view since the observer started."""
    dropped: int = 0
    """Messages that were unreadable, from unknown senders beyond the limit, or out of place."""
    counts: dict[str, int] = msgspec.field(default_factory=dict)
    """Events by kind, and rounds by how they ended (`round-closed`), since the history began."""
