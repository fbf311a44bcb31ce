"""What a role machine wants done. A runtime carries commands out in order.

The one promise that all others stand on: a command behind a `Persist` is carried out only when what it persists is
durable. If the store fails, the rest is not carried out, the machine is thrown away and a new one starts from what
is stored: to a machine, a full disk looks like a crash.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from ofl_iot.ids import DeviceId
from ofl_iot.protocol.chunks import ChunkHead
from ofl_iot.protocol.messages import KeyOpen, Message, ServerDecAsk
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.roles.events import JobFailed, LeanWeights, OpenBody, Vector
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
    """Read the device's resources; answers with Measured."""


@dataclass(frozen=True)
class OpenLedger:
    """Read the privacy ledger, or begin one, and work out what it allows; answers with LedgerOpened."""

    stored: bytes | None
    records: int = 0
    """That the device trains on, for the sampling rate; 0 = as many as its workload has."""


@dataclass(frozen=True)
class LookAtData:
    """Freeze the records of the next training; answers with DataLooked."""


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
    """The model as of the last sync (the paper's theta_0). A block may come in meanwhile: it only ranks."""
    synced_before: Vector
    """The model as of the sync before (theta_1)."""
    gamma: float


@dataclass(frozen=True)
class MakeSealingKey:
    """Draw the device's X25519 key; answers with SealingKeyMade."""


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
class BeginKeys:
    """A leader draws its secrets for a joint key; answers with KeysBegun."""

    opened: KeyOpen
    me: DeviceId
    sealing_private: bytes = field(repr=False)


@dataclass(frozen=True)
class FinishKeys:
    """A leader sums what the others sent into its key share; answers with KeysFinished."""

    opened: KeyOpen
    me: DeviceId
    sealing_private: bytes = field(repr=False)
    secret: bytes = field(repr=False)
    round1_shares: dict[str, bytes] = field(repr=False)
    deals: dict[str, bytes] = field(repr=False)


@dataclass(frozen=True)
class MakeKeys:
    """The coordinator sums the public parts of a joint key; answers with KeysMade."""

    opened: KeyOpen
    round1_shares: dict[str, bytes] = field(repr=False)
    round2_shares: dict[str, bytes] = field(repr=False)


@dataclass(frozen=True)
class AnswerDecryption:
    """A leader's part of a threshold decryption; answers with DecryptionAnswered. Never run twice for a request."""

    key: KeyMaterial = field(repr=False)
    me: DeviceId
    round_no: int
    label: str
    request: bytes = field(repr=False)
    size: int = 0
    """Parameters of the model that may be decrypted."""


@dataclass(frozen=True)
class AnswerLean:
    """A leader's answer in a lean round; answers with LeanAnswered. Never run twice for a request."""

    key: KeyMaterial = field(repr=False)
    me: DeviceId
    round_no: int
    label: str
    request: bytes = field(repr=False)
    own: OpenBody = field(repr=False)
    sealing_private: bytes = field(repr=False)
    sketch: bytes = field(default=b"", repr=False)
    """This leader's own sketch, once it has made one."""


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
class ProtectContribution:
    """Bring a leader's update into the form the coordinator may have; answers with ContributionProtected."""

    round_no: int
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
class AggregateRound:
    """Weigh and sum contributions in the clear; answers with RoundAggregated."""

    round_no: int
    contributions: tuple[Contributed, ...]
    evidence: dict[str, float] = field(default_factory=dict)
    """The leaders' suspicion accounts."""


@dataclass(frozen=True)
class ScoreRound:
    """Compute the scores of encrypted contributions; answers with DecryptionRequested."""

    round_no: int
    key: CoordinatorKey = field(repr=False)
    contributions: tuple[Contributed, ...]
    active: tuple[str, ...]
    size: int
    """Parameters of the model."""
    attempt: int = 0
    """Grows when a round is opened again: a job of an earlier attempt may still be running."""


@dataclass(frozen=True)
class WeighRound:
    """Judge the decrypted scores, sum the encrypted contributions; answers with DecryptionRequested.

    Without shares the round is weighed as before and its sum is encrypted afresh for another active set.
    """

    round_no: int
    shares: dict[str, bytes] = field(repr=False)
    active: tuple[str, ...]
    evidence: dict[str, float]
    values: bytes = field(default=b"", repr=False)
    """In place of shares: what the decryptor got out of them, and `active` who decrypted."""
    attempt: int = 0


@dataclass(frozen=True)
class FinishRound:
    """Decrypt the weighted sum from the shares; answers with RoundAggregated."""

    round_no: int
    shares: dict[str, bytes] = field(repr=False)
    values: bytes = field(default=b"", repr=False)
    """In place of shares: the sum that the decryptor got out of them."""
    attempt: int = 0


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
class PrepareLean:
    """Check the uploads of a lean round; answers with LeanAsked for sketches."""

    lean: LeanRound


@dataclass(frozen=True)
class ScoreLean:
    """Compute scores of the sketches; answers with LeanAsked for their decryption."""

    lean: LeanRound
    accepted: tuple[str, ...]
    sketches: dict[str, bytes] = field(repr=False)
    active: tuple[str, ...]
    retry: int


@dataclass(frozen=True)
class WeighLean:
    """Judge the decrypted scores and choose integer weights; answers with LeanAsked for signatures."""

    lean: LeanRound
    accepted: tuple[str, ...]
    held: bytes = field(repr=False)
    shares: dict[str, bytes] = field(repr=False)


@dataclass(frozen=True)
class OpenLean:
    """Check the contributors' signatures; answers with LeanAsked for shares of the sum's key."""

    lean: LeanRound
    accepted: tuple[str, ...]
    weighed: LeanWeights
    signatures: dict[str, bytes] = field(repr=False)


@dataclass(frozen=True)
class FinishLean:
    """Open the weighted sum with the leaders' answers; answers with RoundAggregated."""

    lean: LeanRound
    weighed: LeanWeights
    answers: dict[str, bytes] = field(repr=False)


LeanJob: TypeAlias = PrepareLean | ScoreLean | WeighLean | OpenLean | FinishLean


@dataclass(frozen=True)
class ServerDecrypt:
    """The decryptor makes a ciphertext fresh for an active set; answers with ServerDecrypted."""

    ask: ServerDecAsk = field(repr=False)
    active: tuple[str, ...]


@dataclass(frozen=True)
class FinalDecrypt:
    """The decryptor puts the shares of an active set together; answers with FinalDecrypted."""

    ask: ServerDecAsk = field(repr=False)
    held: bytes = field(repr=False)
    shares: dict[str, bytes] = field(repr=False)


@dataclass(frozen=True)
class EvaluateModel:
    """Evaluate a global model on held-out data; answers with Evaluated."""

    round_no: int
    params: Vector


Job: TypeAlias = (
    OpenLedger
    | LookAtData
    | TrainLocally
    | PrepareRelease
    | MakeSealingKey
    | BeginKeys
    | FinishKeys
    | ProtectContribution
    | AnswerDecryption
    | AnswerLean
    | PrepareLean
    | ScoreLean
    | WeighLean
    | OpenLean
    | FinishLean
    | MakeKeys
    | AggregateRound
    | ScoreRound
    | WeighRound
    | FinishRound
    | ServerDecrypt
    | FinalDecrypt
    | EvaluateModel
)


def failure_of(job: Job, error: Exception, culprits: tuple[str, ...] = (), suspects: tuple[str, ...] = ()) -> JobFailed:
    """The event that a job which raised comes back as."""
    round_no = term = attempt = 0
    if isinstance(job, ServerDecrypt | FinalDecrypt):
        round_no = job.ask.round_no
    elif isinstance(job, PrepareLean | ScoreLean | WeighLean | OpenLean | FinishLean):
        round_no = job.lean.round_no
    elif isinstance(job, BeginKeys | FinishKeys | MakeKeys):
        term, attempt = job.opened.term, job.opened.attempt
    elif not isinstance(job, OpenLedger | LookAtData | TrainLocally | PrepareRelease | MakeSealingKey):
        round_no = job.round_no
    reason = f"{type(error).__name__}: {error}"
    return JobFailed(type(job).__name__, reason, culprits, suspects, round_no, term, attempt)


@dataclass(frozen=True)
class Compute:
    """Run a job outside the machine; its result comes back as an event."""

    job: Job


Command: TypeAlias = (
    Publish | Withdraw | Subscribe | Unsubscribe | Persist | SetTimer | CancelTimer | Measure | Compute | Report
)
