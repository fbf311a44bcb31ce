"""What a job is: who asks for it, what it answers with, which round or key it is for."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from ofl_iot.protocol.key_messages import KeyOpen, ServerDecAsk
from ofl_iot.roles.events import JobFailed


class Role(enum.Enum):
    """Who asks for a job and gets its result."""

    DEVICE = "device"
    LEADER = "leader"
    KEYS = "keys"
    COORDINATOR = "coordinator"
    DECRYPTOR = "decryptor"


@dataclass(frozen=True)
class JobNumber:
    """Which round, or which term and attempt of a key generation, a job is for; 0 where it has none."""

    round_no: int = 0
    term: int = 0
    attempt: int = 0


@dataclass(frozen=True)
class Job:
    """Something to compute outside a machine, a function of its fields: who asks, what it answers with, its number."""

    owner: ClassVar[Role]
    result: ClassVar[type]

    @property
    def number(self) -> JobNumber:
        """Return what the job is for."""
        return JobNumber()


@dataclass(frozen=True)
class RoundJob(Job):
    """A job of a round."""

    round_no: int

    @property
    def number(self) -> JobNumber:
        """Return its round."""
        return JobNumber(round_no=self.round_no)


@dataclass(frozen=True)
class KeyJob(Job):
    """A job of a key generation."""

    opened: KeyOpen

    @property
    def number(self) -> JobNumber:
        """Return its term and attempt."""
        return JobNumber(term=self.opened.term, attempt=self.opened.attempt)


@dataclass(frozen=True)
class DecryptorJob(Job):
    """A job of the decryptor."""

    owner: ClassVar[Role] = Role.DECRYPTOR
    ask: ServerDecAsk = field(repr=False)

    @property
    def number(self) -> JobNumber:
        """Return its round."""
        return JobNumber(round_no=self.ask.round_no)


def every_job(base: type[Job] = Job) -> Iterator[type[Job]]:
    """Yield every kind of job that can be run."""
    for kind in base.__subclasses__():
        if hasattr(kind, "result"):
            yield kind
        yield from every_job(kind)


def failure_of(job: Job, error: Exception, culprits: tuple[str, ...] = (), suspects: tuple[str, ...] = ()) -> JobFailed:
    """Return the event that a job which raised comes back as."""
    number = job.number
    reason = f"{type(error).__name__}: {error}"
    return JobFailed(type(job), reason, culprits, suspects, number.round_no, number.term, number.attempt, type(error))
