"""What a party reports: one frozen type for each thing worth a log line, a metric or a place on the display.

A machine yields a report like any other command. `runtime/logs.py` formats it; listeners match on its type.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

DEBUG, INFO, WARNING, ERROR = 10, 20, 30, 40
"""Levels, as `logging` counts them."""


class Report(msgspec.Struct, frozen=True):
    """Base of all reports: a phrase for people, a level, and fields that are logged as key=value."""

    phrase: ClassVar[str]
    level: ClassVar[int] = INFO

    def fields(self) -> dict[str, object]:
        """Return the fields by name, in the order of their declaration."""
        return msgspec.structs.asdict(self)


# --- every party


class MessageDropped(Report, frozen=True):
    """A message that does not belong here was dropped."""

    phrase: ClassVar[str] = "message dropped"
    level: ClassVar[int] = WARNING
    sender: str
    kind: str
    reason: str


class LateMessageDropped(MessageDropped, frozen=True):
    """A message of a term, leader or round that is over was dropped: usual while assignments change."""

    phrase: ClassVar[str] = "late message dropped"
    level: ClassVar[int] = DEBUG


class MessageNotMade(Report, frozen=True):
    """A message that no reader would accept was left out instead of being sent."""

    phrase: ClassVar[str] = "message not made"
    level: ClassVar[int] = ERROR
    reason: str


class RowsSetAside(Report, frozen=True):
    """Rows of the own store that could not be read were moved out of the way."""

    phrase: ClassVar[str] = "rows set aside"
    level: ClassVar[int] = ERROR
    table: str
    rows: int


class JobFailure(Report, frozen=True):
    """A computation raised; `round_no` is 0 for a job of no round."""

    phrase: ClassVar[str] = "job failed"
    level: ClassVar[int] = ERROR
    job: str
    reason: str
    round_no: int = 0


# --- devices


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


# --- leaders


class LeadershipBegun(Report, frozen=True):
    """A device leads its cluster from this term on."""

    phrase: ClassVar[str] = "leading"
    term: int
    members: int


class LeadershipEnded(Report, frozen=True):
    """A device hands its cluster over to another leader."""

    phrase: ClassVar[str] = "no longer leading"
    term: int
    leader: str


class ChunkMerged(Report, frozen=True):
    """A leader merged a chunk of `count` parameters with this step size."""

    phrase: ClassVar[str] = "chunk merged"
    level: ClassVar[int] = DEBUG
    device: str
    seq: int
    step: float
    count: int


class ChunkRefused(Report, frozen=True):
    """A leader's gate gave a chunk no weight: it is confirmed and changes nothing."""

    phrase: ClassVar[str] = "chunk refused"
    level: ClassVar[int] = DEBUG
    device: str
    seq: int
    count: int


class ChunkBounded(Report, frozen=True):
    """A leader scaled a chunk down to what the cluster's contribution has room for."""

    phrase: ClassVar[str] = "chunk weighed down"
    level: ClassVar[int] = WARNING
    device: str
    seq: int
    to: float


class ContributionFailed(Report, frozen=True):
    """A leader could not encrypt or encode its contribution."""

    phrase: ClassVar[str] = "contribution failed"
    level: ClassVar[int] = ERROR
    round_no: int
    reason: str


class StoredClusterDropped(Report, frozen=True):
    """A leader found a cluster model in its store that is no longer learnt."""

    phrase: ClassVar[str] = "stored cluster model dropped"
    level: ClassVar[int] = WARNING
    reason: str


class GlobalModelAdopted(Report, frozen=True):
    """A leader took over the global model of a round."""

    phrase: ClassVar[str] = "global model adopted"
    level: ClassVar[int] = DEBUG
    round_no: int
    included: bool


# --- clusters


class Clustered(Report, frozen=True):
    """The coordinator divided the fleet into clusters."""

    phrase: ClassVar[str] = "clustered"
    term: int
    clusters: int
    leaders: tuple[str, ...]
    churn: float
    distrusted: tuple[str, ...] = ()


class DeviceJoined(Report, frozen=True):
    """A device that came late was placed in a cluster."""

    phrase: ClassVar[str] = "joined"
    device: str
    leader: str


class DeviceStoreLost(Report, frozen=True):
    """A device that was known came with another store: what it held is gone."""

    phrase: ClassVar[str] = "device lost its store"
    level: ClassVar[int] = WARNING
    device: str


class LeaderReplaced(Report, frozen=True):
    """A lost or unfit leader's cluster has a new leader."""

    phrase: ClassVar[str] = "leader replaced"
    level: ClassVar[int] = WARNING
    lost: str
    leader: str
    term: int


class ClusterOrphaned(Report, frozen=True):
    """A lost leader cannot be replaced: no device of its cluster is live."""

    phrase: ClassVar[str] = "cluster without a live device"
    level: ClassVar[int] = WARNING
    leader: str


# --- rounds


class RoundOpened(Report, frozen=True):
    """The coordinator asked leaders to contribute."""

    phrase: ClassVar[str] = "round open"
    round_no: int
    leaders: int
    encrypted: bool


class RoundClosed(Report, frozen=True):
    """A round's contributions are in the global model, by these weights."""

    phrase: ClassVar[str] = "round closed"
    round_no: int
    completed: int
    weights: dict[str, float]
    excluded: tuple[str, ...] = ()


class RoundAbandoned(Report, frozen=True):
    """A round ended without a new model."""

    phrase: ClassVar[str] = "round abandoned"
    level: ClassVar[int] = WARNING
    round_no: int
    reason: str


class ContributionRefused(Report, frozen=True):
    """A leader's contribution could not be used."""

    phrase: ClassVar[str] = "contribution refused"
    level: ClassVar[int] = WARNING
    leader: str
    reason: str


class LeaderSuspected(Report, frozen=True):
    """A leader's contribution was weighed down; `evidence` is its suspicion account."""

    phrase: ClassVar[str] = "leader suspected"
    leader: str
    reason: str
    evidence: float


class ModelEvaluated(Report, frozen=True):
    """A global model was evaluated on held-out data."""

    phrase: ClassVar[str] = "evaluated"
    round_no: int
    metrics: dict[str, float]
    """By the app's names; empty if there is nothing to judge on."""


class AllBudgetsSpent(Report, frozen=True):
    """A bounded run stops early: no device may release any more."""

    phrase: ClassVar[str] = "all privacy budgets are spent"
    level: ClassVar[int] = WARNING
    completed: int


# --- coordinators


class RivalCoordinator(Report, frozen=True):
    """Another coordinator published a global model for this federation."""

    phrase: ClassVar[str] = "another coordinator"
    level: ClassVar[int] = WARNING
    term: int
    round_no: int


class TakeoverBegun(Report, frozen=True):
    """This coordinator takes over from the one whose manifest the broker retains."""

    phrase: ClassVar[str] = "taking over"
    level: ClassVar[int] = WARNING
    term: int
    round_no: int


class TakeoverDone(Report, frozen=True):
    """The model and the record of settled chunks were taken over."""

    phrase: ClassVar[str] = "model and settled chunks taken over"
    round_no: int
    devices: int


class NothingToTakeOver(Report, frozen=True):
    """The broker retains no model to take over."""

    phrase: ClassVar[str] = "no model to take over"
    level: ClassVar[int] = WARNING
    reason: str


# --- keys and decryption


class KeyGenerationBegun(Report, frozen=True):
    """The coordinator called leaders to make a joint key; `collusion_bound` leaders together learn nothing."""

    phrase: ClassVar[str] = "key generation begins"
    term: int
    attempt: int
    leaders: int
    threshold: int
    collusion_bound: int


class KeyGenerationFailed(Report, frozen=True):
    """A joint key was not complete in time."""

    phrase: ClassVar[str] = "key generation failed"
    level: ClassVar[int] = WARNING
    missing: tuple[str, ...]


class KeyGenerationSlow(Report, frozen=True):
    """Most leaders owe something to a joint key: they are given more time, and none is replaced."""

    phrase: ClassVar[str] = "key generation is slow"
    level: ClassVar[int] = WARNING
    missing: tuple[str, ...]


class RoundsWithoutKey(Report, frozen=True):
    """A round is due and there is no key to open it under."""

    phrase: ClassVar[str] = "rounds wait for a joint key"
    round_no: int


class RoundsWithKey(Report, frozen=True):
    """The round that waited for a key can open."""

    phrase: ClassVar[str] = "rounds have a joint key"
    round_no: int
    waited_s: float


class KeyGenerationDisputed(Report, frozen=True):
    """A leader accuses another of a deal that cannot be used."""

    phrase: ClassVar[str] = "key generation disputed"
    level: ClassVar[int] = WARNING
    leader: str
    accuses: str


class JointKeyReady(Report, frozen=True):
    """The coordinator holds the public parts of a joint key."""

    phrase: ClassVar[str] = "joint key ready"
    term: int
    leaders: int


class KeyShareReady(Report, frozen=True):
    """A leader holds its share of a joint key."""

    phrase: ClassVar[str] = "key share ready"
    term: int
    leaders: int
    threshold: int


class KeyWorkFailed(Report, frozen=True):
    """A leader's part of a key generation or decryption raised."""

    phrase: ClassVar[str] = "key work failed"
    level: ClassVar[int] = ERROR
    job: str
    reason: str
    asked_by: str = ""
    """Who asked for a decryption; empty for key generations."""


class ShareWithheld(Report, frozen=True):
    """A leader keeps a decryption share back: the ciphertext was answered before."""

    phrase: ClassVar[str] = "share withheld"
    level: ClassVar[int] = ERROR
    round_no: int
    reason: str
    asked_by: str = ""


class DecryptionAsked(Report, frozen=True):
    """The decryptor was asked to decrypt with an active set of leaders."""

    phrase: ClassVar[str] = "asked to decrypt"
    round_no: int
    stage: str
    leaders: int


class ShareRefused(Report, frozen=True):
    """A decryption share could not be used."""

    phrase: ClassVar[str] = "share refused"
    level: ClassVar[int] = WARNING
    reason: str


class WrongShare(Report, frozen=True):
    """Shares do not decrypt together: one of `among` is wrong, and the next attempt leaves `left_out` out."""

    phrase: ClassVar[str] = "wrong share"
    level: ClassVar[int] = WARNING
    among: tuple[str, ...]
    left_out: str


class DecryptionFailed(Report, frozen=True):
    """The decryptor gave a decryption up."""

    phrase: ClassVar[str] = "not decrypted"
    level: ClassVar[int] = WARNING
    reason: str
    failing: tuple[str, ...]
