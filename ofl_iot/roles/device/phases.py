"""What a device does about training, as one phase: why it trains, or the foremost reason why it does not.

Several reasons may hold at once (a device rests while it waits for blocks); the phase is the first of them in the order
of `Phase`. `TRANSITIONS` says which phases each event may lead to. docs/phases.md is printed from it; tests run every
event in every phase and compare.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from ofl_iot.protocol.messages import Assignment
from ofl_iot.roles.events import Arrived, Event, TimerFired
from ofl_iot.roles.job_kinds.base import Job
from ofl_iot.roles.job_kinds.device import LookAtData, PrepareRelease, TrainLocally

HEARTBEAT, PULL, REST = "device.heartbeat", "device.pull", "device.rest"


class Phase(Enum):
    """Why a device trains or does not, the foremost reason first."""

    UNASSIGNED = "it has no leader"
    FETCHING = "blocks of the model are missing"
    LOOKING = "it counts its records"
    TRAINING = "it trains"
    PREPARING = "it selects what to release"
    PULLING = "it waits for blocks"
    RESTING = "it waits for its timer: a pause, the calendar of the budget, or a retry"
    REFUSED = "its privacy ledger is lost or out of date"
    SPENT = "its privacy budget is spent"
    PAUSED = "it is too hot, or its battery too low"
    BACKLOGGED = "too many trainings wait for their release"
    PLANNING = "its privacy ledger is being opened"
    AWAITING_ROUND = "its budget allows no more before the next global model"
    READY = "nothing stands in its way: the next event that asks begins a training"

    @property
    def may_begin(self) -> bool:
        """Whether a training may begin in this phase."""
        return self in {Phase.PLANNING, Phase.AWAITING_ROUND, Phase.READY}


_PHASE_OF_JOB: dict[type[Job], Phase] = {
    LookAtData: Phase.LOOKING,
    TrainLocally: Phase.TRAINING,
    PrepareRelease: Phase.PREPARING,
}


@dataclass
class Activity:
    """What is under way on a device; its parts share it."""

    linked: bool = False
    assignment: Assignment | None = None
    job: type[Job] | None = None
    """The one job that uses the local model; None while there is none."""
    pulling: bool = False
    resting: bool = False
    opening: bool = False
    """Whether the privacy ledger is being opened."""
    paused_by: str = ""
    """The operator whose order keeps it from training; empty if none does."""
    awaiting_round: bool = False
    """Whether the budget allowed no training before the next global model, when it was last asked."""


@dataclass(frozen=True)
class Obstacles:
    """What the parts of a device have against a training, beside its `Activity`."""

    model_incomplete: bool
    refused: bool
    spent: bool
    paused: bool
    backlogged: bool


def phase_of(activity: Activity, obstacles: Obstacles) -> Phase:
    """Return the foremost of the phases that hold."""
    return next(_holding(activity, obstacles), Phase.READY)


def _holding(activity: Activity, obstacles: Obstacles) -> Iterator[Phase]:
    if activity.assignment is None:
        yield Phase.UNASSIGNED
    if obstacles.model_incomplete:
        yield Phase.FETCHING
    if activity.job is not None:
        yield _PHASE_OF_JOB[activity.job]
    stated = (
        (activity.pulling, Phase.PULLING),
        (activity.resting, Phase.RESTING),
        (obstacles.refused, Phase.REFUSED),
        (obstacles.spent, Phase.SPENT),
        (obstacles.paused, Phase.PAUSED),
        (obstacles.backlogged, Phase.BACKLOGGED),
        (activity.opening, Phase.PLANNING),
        (activity.awaiting_round, Phase.AWAITING_ROUND),
    )
    yield from (phase for holds, phase in stated if holds)


Trigger = type | str
"""A type of events, for a message its type, for a timer its name."""


def trigger_of(event: Event) -> Trigger:
    """Return what in the table stands for this event."""
    if isinstance(event, Arrived):
        return type(event.message)
    return event.name if isinstance(event, TimerFired) else type(event)
