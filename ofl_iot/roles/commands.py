"""What a role machine wants done. A runtime carries commands out in order.

The one promise that all others stand on: a command behind a `Persist` is carried out only when what it persists is
durable. If the store fails, the rest is not carried out, the machine is thrown away and a new one starts from what
is stored: to a machine, a full disk looks like a crash.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

import msgspec

from ofl_iot.ids import DeviceId
from ofl_iot.protocol.chunks import ChunkHead
from ofl_iot.protocol.messages import KeyOpen, Message, ServerDecAsk
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.roles.events import (
    ContributionProtected,
    DataLooked,
    DecryptionAnswered,
    DecryptionRequested,
    Evaluated,
    FinalDecrypted,
    JobFailed,
    KeysBegun,
    KeysFinished,
    KeysMade,
    LeanAnswered,
    LeanAsked,
    LeanWeights,
    LedgerOpened,
    OpenBody,
    ReleasePrepared,
    RoundAggregated,
    SealingKeyMade,
    ServerDecrypted,
    Trained,
    Vector,
)
from ofl_iot.roles.reports import Report
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


@dataclass(frozen=True)
class OpenLedger(Job):
    """Read the privacy ledger, or begin one, and work out what it allows."""

    owner: ClassVar[Role] = Role.DEVICE
    result: ClassVar[type] = LedgerOpened
    stored: bytes | None
    records: int = 0
    """That the device trains on, for the sampling rate; 0 = as many as its workload has."""
    at: float = field(default=0.0, compare=False)
    """The time, in seconds since 1970."""


@dataclass(frozen=True)
class LookAtData(Job):
    """Freeze the records of the next training."""

    owner: ClassVar[Role] = Role.DEVICE
    result: ClassVar[type] = DataLooked


@dataclass(frozen=True)
class TrainLocally(Job):
    """Train for `steps` from `params`."""

    owner: ClassVar[Role] = Role.DEVICE
    result: ClassVar[type] = Trained
    params: Vector
    steps: int
    noise_multiplier: float = 0.0
    """Noise multiplier of record-level DP-SGD; 0 trains without noise or clipping."""
    sampling_rate: float = 1.0
    """The largest that was paid for: a training that would sample records more often is refused."""


@dataclass(frozen=True)
class PrepareRelease(Job):
    """Select, perturb and cut."""

    owner: ClassVar[Role] = Role.DEVICE
    result: ClassVar[type] = ReleasePrepared
    head: ChunkHead
    update: Vector
    """Work that has not left the device: local model minus base."""
    synced: Vector
    """The model as of the last sync (the paper's theta_0). A block may come in meanwhile: it only ranks."""
    synced_before: Vector
    """The model as of the sync before (theta_1)."""
    gamma: float


@dataclass(frozen=True)
class MakeSealingKey(Job):
    """Draw the device's X25519 key."""

    owner: ClassVar[Role] = Role.KEYS
    result: ClassVar[type] = SealingKeyMade


class KeyMaterial(msgspec.Struct, frozen=True, array_like=True):
    """What a leader holds of a joint key."""

    opened: KeyOpen
    key_id: bytes
    public: bytes
    share: bytes
    relin_first: bytes = b""
    """Sum of the first relinearisation broadcasts: with it a leader recomputes the score requests of lean rounds."""


class CoordinatorKey(msgspec.Struct, frozen=True, array_like=True):
    """What the coordinator holds of a joint key: nothing secret."""

    opened: KeyOpen
    key_id: bytes
    public: bytes
    relin: bytes


@dataclass(frozen=True)
class BeginKeys(KeyJob):
    """A leader draws its secrets for a joint key."""

    owner: ClassVar[Role] = Role.KEYS
    result: ClassVar[type] = KeysBegun
    me: DeviceId
    sealing_private: bytes = field(repr=False)


@dataclass(frozen=True)
class FinishKeys(KeyJob):
    """A leader sums what the others sent into its key share."""

    owner: ClassVar[Role] = Role.KEYS
    result: ClassVar[type] = KeysFinished
    me: DeviceId
    sealing_private: bytes = field(repr=False)
    secret: bytes = field(repr=False)
    round1_shares: dict[str, bytes] = field(repr=False)
    deals: dict[str, bytes] = field(repr=False)


@dataclass(frozen=True)
class MakeKeys(KeyJob):
    """The coordinator sums the public parts of a joint key."""

    owner: ClassVar[Role] = Role.COORDINATOR
    result: ClassVar[type] = KeysMade
    round1_shares: dict[str, bytes] = field(repr=False)
    round2_shares: dict[str, bytes] = field(repr=False)


@dataclass(frozen=True)
class AnswerDecryption(Job):
    """A leader's part of a threshold decryption. Never run twice for a request."""

    owner: ClassVar[Role] = Role.KEYS
    result: ClassVar[type] = DecryptionAnswered
    key: KeyMaterial = field(repr=False)
    me: DeviceId
    round_no: int
    label: str
    request: bytes = field(repr=False)
    size: int = 0
    """Parameters of the model that may be decrypted."""

    @property
    def number(self) -> JobNumber:
        """Return its round."""
        return JobNumber(round_no=self.round_no)


@dataclass(frozen=True)
class AnswerLean(Job):
    """A leader's answer in a lean round. Never run twice for a request."""

    owner: ClassVar[Role] = Role.KEYS
    result: ClassVar[type] = LeanAnswered
    key: KeyMaterial = field(repr=False)
    me: DeviceId
    round_no: int
    label: str
    request: bytes = field(repr=False)
    own: OpenBody = field(repr=False)
    sealing_private: bytes = field(repr=False)
    sketch: bytes = field(default=b"", repr=False)
    """This leader's own sketch, once it has made one."""

    @property
    def number(self) -> JobNumber:
        """Return its round."""
        return JobNumber(round_no=self.round_no)


@dataclass(frozen=True)
class LeanGround:
    """What a contribution to a lean round stands on."""

    base: Vector = field(repr=False)
    bounds: bytes
    attempt: int
    sealing_private: bytes = field(repr=False)
    pinned: tuple[tuple[str, int], ...] = ()
    """Contributors and weights for which an earlier body of the same update was signed."""


@dataclass(frozen=True)
class ProtectContribution(RoundJob):
    """Bring a leader's update into the form the coordinator may have."""

    owner: ClassVar[Role] = Role.LEADER
    result: ClassVar[type] = ContributionProtected
    update: Vector
    me: DeviceId
    key: KeyMaterial | None = field(default=None, repr=False)
    """None: in the clear."""
    ground: LeanGround | None = field(default=None, repr=False)
    """None where the round is not lean."""


@dataclass(frozen=True)
class Contributed:
    """What the coordinator knows of one leader's contribution."""

    leader: str
    payload: bytes
    sample_count: int
    updates: int
    """Chunks merged into it."""
    members: int = 1
    """Devices in its cluster."""
    effort: float = 0.0
    """Training steps behind it, each by the share of the model it told of; 0 = not known."""


@dataclass(frozen=True)
class AggregateRound(RoundJob):
    """Weigh and sum contributions in the clear."""

    owner: ClassVar[Role] = Role.COORDINATOR
    result: ClassVar[type] = RoundAggregated
    contributions: tuple[Contributed, ...]
    evidence: dict[str, float] = field(default_factory=dict)
    """The leaders' suspicion accounts."""


@dataclass(frozen=True)
class ScoreRound(RoundJob):
    """Compute the scores of encrypted contributions."""

    owner: ClassVar[Role] = Role.COORDINATOR
    result: ClassVar[type] = DecryptionRequested
    key: CoordinatorKey = field(repr=False)
    contributions: tuple[Contributed, ...]
    active: tuple[str, ...]
    size: int
    """Parameters of the model."""
    attempt: int = 0
    """Grows when a round is opened again: a job of an earlier attempt may still be running."""


@dataclass(frozen=True)
class WeighRound(RoundJob):
    """Judge the decrypted scores, sum the encrypted contributions.

    Without shares the round is weighed as before and its sum is encrypted afresh for another active set.
    """

    owner: ClassVar[Role] = Role.COORDINATOR
    result: ClassVar[type] = DecryptionRequested
    shares: dict[str, bytes] = field(repr=False)
    active: tuple[str, ...]
    evidence: dict[str, float]
    values: bytes = field(default=b"", repr=False)
    """In place of shares: what the decryptor got out of them, and `active` who decrypted."""
    attempt: int = 0
    held: object = field(default=None, repr=False, compare=False)
    """What the job before left for this one (`DecryptionRequested.held`)."""


@dataclass(frozen=True)
class FinishRound(RoundJob):
    """Decrypt the weighted sum from the shares."""

    owner: ClassVar[Role] = Role.COORDINATOR
    result: ClassVar[type] = RoundAggregated
    shares: dict[str, bytes] = field(repr=False)
    values: bytes = field(default=b"", repr=False)
    """In place of shares: the sum that the decryptor got out of them."""
    attempt: int = 0
    held: object = field(default=None, repr=False, compare=False)
    """What the job before left for this one."""


@dataclass(frozen=True)
class LeanRound:
    """What leaders contributed to a lean round, and on which ground."""

    key: CoordinatorKey = field(repr=False)
    round_no: int
    attempt: int
    contributions: tuple[Contributed, ...] = field(repr=False)
    base: Vector = field(repr=False)
    bounds: bytes
    evidence: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class LeanJob(Job):
    """A job of a lean round."""

    owner: ClassVar[Role] = Role.COORDINATOR
    lean: LeanRound

    @property
    def number(self) -> JobNumber:
        """Return its round."""
        return JobNumber(round_no=self.lean.round_no)


@dataclass(frozen=True)
class PrepareLean(LeanJob):
    """Check the uploads of a lean round: it asks leaders for sketches."""

    result: ClassVar[type] = LeanAsked


@dataclass(frozen=True)
class ScoreLean(LeanJob):
    """Compute scores of the sketches: it asks leaders for their decryption."""

    result: ClassVar[type] = LeanAsked
    accepted: tuple[str, ...]
    sketches: dict[str, bytes] = field(repr=False)
    active: tuple[str, ...]
    retry: int


@dataclass(frozen=True)
class WeighLean(LeanJob):
    """Judge the decrypted scores and choose integer weights: it asks leaders for signatures."""

    result: ClassVar[type] = LeanAsked
    accepted: tuple[str, ...]
    held: bytes = field(repr=False)
    shares: dict[str, bytes] = field(repr=False)
    numbers: dict[str, bytes] = field(default_factory=dict, repr=False)
    """Of the leaders that could open all key shares: what bodies are compared with sketches by."""
    digest: bytes = b""
    """Of the sketches that were scored."""
    retry: int = 0


@dataclass(frozen=True)
class OpenLean(LeanJob):
    """Check the contributors' signatures: it asks leaders for shares of the sum's key."""

    result: ClassVar[type] = LeanAsked
    accepted: tuple[str, ...]
    weighed: LeanWeights
    signatures: dict[str, bytes] = field(repr=False)


@dataclass(frozen=True)
class FinishLean(LeanJob):
    """Open the weighted sum with the leaders' answers."""

    result: ClassVar[type] = RoundAggregated
    weighed: LeanWeights
    answers: dict[str, bytes] = field(repr=False)


@dataclass(frozen=True)
class ServerDecrypt(DecryptorJob):
    """The decryptor makes a ciphertext fresh for an active set."""

    result: ClassVar[type] = ServerDecrypted
    active: tuple[str, ...]


@dataclass(frozen=True)
class FinalDecrypt(DecryptorJob):
    """The decryptor puts the shares of an active set together."""

    result: ClassVar[type] = FinalDecrypted
    held: bytes = field(repr=False)
    shares: dict[str, bytes] = field(repr=False)


@dataclass(frozen=True)
class EvaluateModel(RoundJob):
    """Evaluate a global model on held-out data."""

    owner: ClassVar[Role] = Role.COORDINATOR
    result: ClassVar[type] = Evaluated
    params: Vector


def failure_of(job: Job, error: Exception, culprits: tuple[str, ...] = (), suspects: tuple[str, ...] = ()) -> JobFailed:
    """Return the event that a job which raised comes back as."""
    number = job.number
    reason = f"{type(error).__name__}: {error}"
    return JobFailed(type(job), reason, culprits, suspects, number.round_no, number.term, number.attempt)


@dataclass(frozen=True)
class Compute:
    """Run a job outside the machine; its result comes back as an event."""

    job: Job


Command: TypeAlias = (
    Publish | Withdraw | Subscribe | Unsubscribe | Persist | SetTimer | CancelTimer | Measure | Compute | Report
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
