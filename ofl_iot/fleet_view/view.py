"""The fleet view: one value that holds everything a rendering shows, and its JSON.

Units stand in names: `_s` seconds or Unix time, `_bytes`, `_c` degrees Celsius, `_w` watts; shares lie between 0 and 1.
None means unknown or not measured. Fields may be added; a reader ignores what it does not know.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from ofl_iot.errors import ConfigError

SCHEMA = "ofl.fleet-view/1"

State: TypeAlias = Literal["paused", "refused", "offline", "spent", "limited", "contributing", "waiting"]
STATES: tuple[State, ...] = ("paused", "refused", "offline", "spent", "limited", "contributing", "waiting")
"""In the order in which they are decided: the first that holds."""
Severity: TypeAlias = Literal["critical", "warning", "info"]
Value: TypeAlias = str | int | float | None
Values: TypeAlias = dict[str, Value]


class Base(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the view: frozen, built by keyword, an object in JSON."""


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
    values: Values = {}
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
