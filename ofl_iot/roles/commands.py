"""What a role machine wants done. A runtime carries commands out in order.

The one promise that all others stand on: a command behind a `Persist` is carried out only when what it persists is
durable. If the store fails, the rest is not carried out, the machine is thrown away and a new one starts from what
is stored: to a machine, a full disk looks like a crash.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ofl_iot.protocol.messages import Message
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.roles.job_kinds.base import Job
from ofl_iot.roles.reports.base import Report
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
class Withdraw:
    """Drop what was handed to the link for `topic` and has not left yet: its receiver no longer wants it."""

    topic: Topic


@dataclass(frozen=True)
class RenewSession:
    """Have the broker forget what waits there for this party, if its link is thin: nobody wants it any more.

    What is wanted comes again: it is retained, asked for, or repeated until it is confirmed.
    """


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
    """Read the device's resources."""


@dataclass(frozen=True)
class Compute:
    """Run a job outside the machine; its result comes back as an event."""

    job: Job


Command: TypeAlias = (
    Publish
    | Withdraw
    | RenewSession
    | Subscribe
    | Unsubscribe
    | Persist
    | SetTimer
    | CancelTimer
    | Measure
    | Compute
    | Report
)


def one_transaction(commands: list[Command]) -> list[Command]:
    """The commands of one step with all that they persist in the first `Persist`, so that a step waits for one sync.

    The promise holds: whatever stood behind a `Persist` still does. What stood between two of them now happens after
    both are durable, and a process that dies in between looks to others as if its messages had been lost on the way.
    """
    persists = [command for command in commands if isinstance(command, Persist)]
    if len(persists) < 2:
        return commands
    at = next(place for place, command in enumerate(commands) if isinstance(command, Persist))
    rest = [command for command in commands[at:] if not isinstance(command, Persist)]
    return [*commands[:at], Persist(tuple(op for each in persists for op in each.ops)), *rest]
