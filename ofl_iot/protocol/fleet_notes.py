"""What parties say for an observer: who leads whom, how rounds ended, how a device fares, who was refused and why.

Nothing here tells about records: no loss, no gradient, no distance of a local model. Fields are appended with defaults.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from ofl_iot.ids import MAX_ID_LENGTH

Id = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*\Z", max_length=MAX_ID_LENGTH)]
Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Figure = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]
Word = Annotated[str, msgspec.Meta(max_length=40)]
Reason = Annotated[str, msgspec.Meta(max_length=200)]

MAX_METRICS = 8


class ClusterNote(msgspec.Struct, frozen=True, array_like=True, tag="clusternote"):
    """A cluster as the coordinator planned it; retained, one message a cluster."""

    clusters: Count
    """How many clusters there are: a retained note of a higher index is void."""
    term: Count
    leader: Id
    members: tuple[Id, ...]
    deputies: tuple[Id, ...] = ()
    previous: Word = ""
    """The leader before this one, if the cluster changed hands."""
    reason: Word = ""
    """Why this device leads: `clustered`, `offline`, `unfit`, `store-lost`."""


class ContributionNote(msgspec.Struct, frozen=True, array_like=True):
    """What became of one leader's contribution to a round."""

    leader: Id
    term: Count
    verdict: Word
    """`included`, `weighed down`, `refused` or `missing`."""
    weight: Share = 0.0
    devices: Count = 0
    """Devices whose chunks it holds."""
    chunks: Count = 0
    samples: Count = 0
    arrived_after_s: Seconds | None = None
    evidence: Figure = 0.0
    """The leader's suspicion account after this round."""
    reason: Reason = ""
    contributors: tuple[Id, ...] = ()
    """The devices themselves."""


class RoundNote(msgspec.Struct, frozen=True, array_like=True, tag="roundnote"):
    """How a round ended; retained, so that a late observer knows the last one."""

    round_no: Count
    attempt: Count
    closed: bool
    """False: it was abandoned."""
    encrypted: bool
    contributions: tuple[ContributionNote, ...]
    collect_s: Seconds
    aggregate_s: Seconds
    threshold: Count = 0
    key_term: Count = 0
    decrypted_by: tuple[Id, ...] = ()
    not_answered: tuple[Id, ...] = ()
    reason: Reason = ""
    """Why it was abandoned."""
    metrics: Annotated[dict[Word, Figure], msgspec.Meta(max_length=MAX_METRICS)] = {}
    """Measured on the coordinator's held-out records; filled in when the evaluation is done."""
    version: Word = ""
    """Version of the coordinator's software."""


class Vitals(msgspec.Struct, frozen=True, array_like=True, tag="vitals", kw_only=True):
    """How a device fares; retained. `None` means that the device cannot measure it."""

    version: Word = ""
    outbox_chunks: Count = 0
    outbox_bytes: Count = 0
    outbox_limit_bytes: Count = 0
    sent_chunks: Count = 0
    """Chunks that left in the life of its store."""
    gamma_up: Share = 0.0
    gamma_down: Share = 0.0
    binding: Word = ""
    """The resource that limits what it sends and fetches (Eq. 4)."""
    budget_left: Share = 1.0
    round_no: Count = 0
    """The global model that it stands on."""
    held_back: Word = ""
    """Why it does not train: `spent`, `ledger-lost`, `heat`, `battery`, `no-data`, `user-code`, `outbox`; or empty."""
    error: Word = ""
    """Name of the class of its own code's last error, until a training succeeds."""
    failures: Count = 0
    network_mbps: Annotated[float, msgspec.Meta(ge=0, le=1e6)] | None = None
    round_trip_s: Seconds | None = None
    availability: Share = 1.0
    temperature_c: Annotated[float, msgspec.Meta(ge=-90, le=200)] | None = None
    max_temperature_c: Annotated[float, msgspec.Meta(ge=-90, le=200)] | None = None
    """The limit above which it rests."""
    battery: Share | None = None
    power_w: Annotated[float, msgspec.Meta(ge=0, le=1e5)] | None = None
    cpu_load: Share | None = None
    memory_free_mib: Count | None = None
    step_s: Seconds | None = None
    bytes_up: Count = 0
    """Bytes that it handed to the network since it started, protocol overhead included."""
    bytes_down: Count = 0
    paused_by: Word = ""
    """The operator whose command keeps it from training, by the serial of its certificate."""
    settings_revision: Count = 0
    """Revision of the shared settings that it follows; 0 = none were published."""


class Refusal(msgspec.Struct, frozen=True, array_like=True, tag="refusal"):
    """A leader or the coordinator tells a device, and whoever observes, that it does not accept its messages."""

    code: Word
    """`wrong-model`, `block-size`, `flood`, `term` or `refused`."""
    reason: Reason
    dropped: Count = 1
    """Messages dropped since this party started."""
