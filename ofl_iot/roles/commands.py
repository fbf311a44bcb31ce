"""What a role machine wants done. A runtime carries commands out in order.

The one promise that all others stand on: a command behind a `Persist` is carried out only when what it persists is
durable. If the store fails, the rest is not carried out, the machine is thrown away and a new one starts from what
is stored: to a machine, a full disk looks like a crash.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ofl_iot.protocol.chunks import ChunkHead
from ofl_iot.protocol.messages import Message
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.roles.events import Vector
from ofl_iot.roles.storage import StoreOp


@dataclass(frozen=True)
class Publish:
    """Hand a message to the link; when the link is down it is dropped, and the machine sends again when it is up.

    A message already encoded goes as it is: a resend is the same bytes.
    """

    topic: Topic
    message: Message | bytes
    retain: bool = False
    qos: int = 1


@dataclass(frozen=True)
class Subscribe:
    """Ask for a kind of topic; None stands for anyone."""

    kind: Kind
    sender: str | None = None
    receiver: str | None = None


@dataclass(frozen=True)
class Unsubscribe:
    """Take a subscription back."""

    kind: Kind
    sender: str | None = None
    receiver: str | None = None


@dataclass(frozen=True)
class Persist:
    """One durable transaction."""

    ops: tuple[StoreOp, ...]


@dataclass(frozen=True)
class SetTimer:
    """Fire at the time `at`; a timer of the same name is replaced."""

    name: str
    at: float


@dataclass(frozen=True)
class CancelTimer:
    """Forget a timer; one that is not set is no error."""

    name: str


@dataclass(frozen=True)
class Measure:
    """Read the device's resources; answers with Measured."""


@dataclass(frozen=True)
class OpenLedger:
    """Read the privacy ledger, or begin one, and work out what it allows; answers with LedgerOpened."""

    stored: bytes | None


@dataclass(frozen=True)
class TrainLocally:
    """Train for `steps` from `params`; answers with Trained."""

    params: Vector
    steps: int
    noise_multiplier: float = 0.0
    """Of record-level DP-SGD; 0 trains without noise or clipping."""


@dataclass(frozen=True)
class PrepareRelease:
    """Select, perturb and cut; answers with ReleasePrepared."""

    head: ChunkHead
    update: Vector
    """Work that has not left the device: local model minus base."""
    synced: Vector
    """The model as of the last sync (the paper's theta_0)."""
    synced_before: Vector
    """The model as of the sync before (theta_1)."""
    gamma: float


@dataclass(frozen=True)
class ProtectContribution:
    """Bring a leader's update into the form the coordinator may have; answers with ContributionProtected."""

    round_no: int
    update: Vector


@dataclass(frozen=True)
class Contributed:
    """What the coordinator knows of one leader's contribution."""

    leader: str
    payload: bytes
    sample_count: int
    updates: int
    """Chunks merged into it."""


@dataclass(frozen=True)
class AggregateRound:
    """Weigh and sum contributions; answers with RoundAggregated."""

    round_no: int
    contributions: tuple[Contributed, ...]


@dataclass(frozen=True)
class EvaluateModel:
    """Evaluate a global model on held-out data; answers with Evaluated."""

    round_no: int
    params: Vector


Job: TypeAlias = OpenLedger | TrainLocally | PrepareRelease | ProtectContribution | AggregateRound | EvaluateModel


@dataclass(frozen=True)
class Compute:
    """Run a job outside the machine; its result comes back as an event."""

    job: Job


@dataclass(frozen=True)
class Tell:
    """Something worth a log line, a metric or a place on the display."""

    what: str
    fields: dict[str, object]
    level: str = "info"


Command: TypeAlias = Publish | Subscribe | Unsubscribe | Persist | SetTimer | CancelTimer | Measure | Compute | Tell


def tell(what: str, level: str = "info", **fields: object) -> Tell:
    """A Tell in one line."""
    return Tell(what, fields, level)
