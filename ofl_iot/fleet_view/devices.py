"""What a fleet view says of one device, and why the device does what it does."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from ofl_iot.fleet_view.base import Base, Values

State: TypeAlias = Literal["paused", "refused", "offline", "spent", "limited", "contributing", "waiting"]
STATES: tuple[State, ...] = ("paused", "refused", "offline", "spent", "limited", "contributing", "waiting")
"""In the order in which they are decided: the first that holds."""


class Link(Base, frozen=True):
    """A device's link."""

    mbps: float | None = None
    round_trip_s: float | None = None
    availability: float | None = None


class Plan(Base, frozen=True):
    """The shares of the model that a device sends and fetches at a contact, and the resource that limits them."""

    gamma_up: float | None = None
    gamma_down: float | None = None
    binding: str | None = None


class Outbox(Base, frozen=True):
    """Chunks that wait on a device until a global model holds them."""

    chunks: int | None = None
    bytes: int | None = None
    limit_bytes: int | None = None


class Chunks(Base, frozen=True):
    """What became of a device's chunks."""

    sent: int | None = None
    stored: int | None = None
    settled: int | None = None
    refused: int | None = None


class Traffic(Base, frozen=True):
    """Bytes that a device handed to the broker and took from it."""

    up: int | None = None
    down: int | None = None


class Resources(Base, frozen=True):
    """Measured on a device."""

    cpu_load: float | None = None
    memory_free_mib: int | None = None
    temperature_c: float | None = None
    battery: float | None = None
    power_w: float | None = None
    step_s: float | None = None


class Evidence(msgspec.Struct, frozen=True, array_like=True):
    """A fact behind a reason: when it was said, in words, and by whom."""

    at_s: float
    text: str
    by: str


class Todo(msgspec.Struct, frozen=True, array_like=True):
    """What an operator can do, and a command to copy."""

    text: str
    command: str | None = None


class Why(Base, frozen=True):
    """Why a device does what it does.

    `text` is a template: `wording.fill(text, values, now_s)` makes the sentence.
    """

    code: str
    """Stable, for programs; `reasons.py` lists all."""
    text: str
    values: Values = msgspec.field(default_factory=dict)
    evidence: tuple[Evidence, ...] = ()
    """Newest first."""
    todo: Todo | None = None


class DeviceView(Base, frozen=True):
    """One device."""

    id: str
    state: State
    why: Why
    type: str | None = None
    cluster: str | None = None
    role: Literal["leader", "deputy", "member"] | None = None
    online: bool = False
    since_s: float | None = None
    """Since when it is online or offline."""
    last_seen_s: float | None = None
    last_upload_s: float | None = None
    paused_by: str | None = None
    link: Link = Link()
    samples: int | None = None
    """Records, as it announces them."""
    staleness_rounds: int | None = None
    budget_left: float | None = None
    epsilon: float | None = None
    epsilon_spent: float | None = None
    plan: Plan = Plan()
    outbox: Outbox = Outbox()
    chunks: Chunks = Chunks()
    bytes: Traffic = Traffic()
    telemetry: Resources = Resources()
    version: str | None = None
    model: str | None = None
    """First eight hex digits of its model's digest."""
    settings_revision: int | None = None
    certificate_ends_s: float | None = None
    leader: str | None = None
    """The device that leads its cluster."""


class Span(Base, frozen=True):
    """Bins `from` up to and without `to`."""

    start: int = msgspec.field(name="from")
    end: int = msgspec.field(name="to")


class LeaderSpan(Span, frozen=True):
    """Who led the device's cluster."""

    leader: str
    term: int


class StopSpan(Span, frozen=True):
    """What kept the device from contributing."""

    kind: str
    text: str


class PlanRow(Base, frozen=True):
    """One resource of a device's plan: what a full contact needs and what there is."""

    resource: str
    need: float | None
    limit: float | None
    unit: str
    binding: bool
    note: str = ""
