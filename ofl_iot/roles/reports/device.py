"""What a device reports."""

from __future__ import annotations

from typing import ClassVar

from ofl_iot.roles.reports.base import DEBUG, ERROR, WARNING, Report


class DeviceAssigned(Report, frozen=True):
    """A device belongs to a leader's cluster."""

    phrase: ClassVar[str] = "assigned"
    term: int
    leader: str


class FormerAssignment(Report, frozen=True):
    """An assignment to a store that this device lost was passed over: the coordinator will send another one."""

    phrase: ClassVar[str] = "assignment of a lost store"
    level: ClassVar[int] = WARNING
    term: int


class DeviceTrained(Report, frozen=True):
    """A device ended a local training."""

    phrase: ClassVar[str] = "trained"
    level: ClassVar[int] = DEBUG
    loss: float
    steps: int
    seconds: float


class TrainingDiverged(Report, frozen=True):
    """A local training ended in values that are not finite."""

    phrase: ClassVar[str] = "training diverged"
    level: ClassVar[int] = ERROR
    loss: float


class ModelDiffers(Report, frozen=True):
    """A device's model is not the federation's: it takes no part."""

    phrase: ClassVar[str] = "this device's model is another one"
    level: ClassVar[int] = ERROR
    difference: str


class MessagesRefused(Report, frozen=True):
    """The coordinator or the leader does not accept this device's messages."""

    phrase: ClassVar[str] = "refused"
    level: ClassVar[int] = ERROR
    by: str
    code: str
    reason: str


class WaitingForData(Report, frozen=True):
    """A device has no records to train on; it looks again and again."""

    phrase: ClassVar[str] = "waiting for data"
    level: ClassVar[int] = WARNING


class DataFound(Report, frozen=True):
    """A device has another number of records than it told before."""

    phrase: ClassVar[str] = "data found"
    records: int


class TrainingDiscarded(Report, frozen=True):
    """A training sampled records more often than was paid for: its result is void, its price is not."""

    phrase: ClassVar[str] = "training discarded"
    level: ClassVar[int] = ERROR
    sampling_rate: float


class OutboxFull(Report, frozen=True):
    """A device keeps as much as it may and trains no further."""

    phrase: ClassVar[str] = "outbox full"
    level: ClassVar[int] = WARNING
    max_bytes: int


class BudgetSpent(Report, frozen=True):
    """A device's privacy budget allows no further training or release."""

    phrase: ClassVar[str] = "privacy budget exhausted"
    level: ClassVar[int] = WARNING
    reason: str


class LedgerLost(Report, frozen=True):
    """A device does not train: others have seen its privacy ledger further than it is."""

    phrase: ClassVar[str] = "privacy ledger lost, training stopped"
    level: ClassVar[int] = ERROR
    reason: str


class WorkDropped(Report, frozen=True):
    """Unreleased work was dropped because it must not leave the device."""

    phrase: ClassVar[str] = "unreleased work dropped"
    level: ClassVar[int] = WARNING
    reason: str


class ExchangeLimited(Report, frozen=True):
    """A device's resources set the share of the model that it exchanges (Eq. 4)."""

    phrase: ClassVar[str] = "resources limit the exchange"
    binding: str
    gamma_up: float
    gamma_down: float


class PullUnanswered(Report, frozen=True):
    """A leader did not answer a device's pull in time."""

    phrase: ClassVar[str] = "pull unanswered"
    level: ClassVar[int] = DEBUG
    leader: str


class ModelDownloaded(Report, frozen=True):
    """An answer to a pull is complete, and so is the device's model."""

    phrase: ClassVar[str] = "model downloaded"
    level: ClassVar[int] = DEBUG
    round_no: int


class StoredModelDropped(Report, frozen=True):
    """A device found a model in its store that is no longer learnt."""

    phrase: ClassVar[str] = "stored model dropped"
    level: ClassVar[int] = WARNING
    reason: str


class OrderObeyed(Report, frozen=True):
    """A device does what an operator ordered."""

    phrase: ClassVar[str] = "order obeyed"
    level: ClassVar[int] = WARNING
    action: str
    by: str
    number: int


class OrderRefused(Report, frozen=True):
    """A device was given an order that no operator of its federation signed, or not for it, or not now."""

    phrase: ClassVar[str] = "order refused"
    level: ClassVar[int] = WARNING
    action: str
    number: int
    reason: str
