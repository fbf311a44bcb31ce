"""What can happen to a role machine. Every event is a frozen value; results of computing come back as events too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from ofl_iot.privacy.ledger import Ledger
from ofl_iot.protocol.chunks import Piece
from ofl_iot.protocol.fleet_orders import Order
from ofl_iot.protocol.messages import Message
from ofl_iot.protocol.telemetry import Telemetry
from ofl_iot.protocol.topics import Topic
from ofl_iot.roles.storage import Stored

if TYPE_CHECKING:
    from ofl_iot.roles.job_kinds.base import Job
    from ofl_iot.roles.job_kinds.keys import CoordinatorKey, KeyMaterial

Vector: TypeAlias = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Started:
    """The process began; `stored` is what an earlier one left, empty for a new party."""

    stored: Stored = field(default_factory=dict)
    wall: float = field(default=0.0, compare=False)
    """Seconds since 1970; `now` counts from anywhere."""


@dataclass(frozen=True)
class LinkUp:
    """The broker can be reached."""


@dataclass(frozen=True)
class LinkDown:
    """The broker cannot be reached; what was handed over may or may not have arrived."""


@dataclass(frozen=True)
class Stopping:
    """The process is about to end in good order."""


@dataclass(frozen=True)
class Arrived:
    """A valid message came."""

    topic: Topic
    message: Message


@dataclass(frozen=True)
class TimerFired:
    """A timer that the machine had set ran out."""

    name: str


@dataclass(frozen=True)
class Measured:
    """The device's resources as they are now."""

    telemetry: Telemetry
    bytes_up: int = field(default=0, compare=False)
    """Bytes that its link has written to the network so far, protocol overhead included."""
    bytes_down: int = field(default=0, compare=False)


@dataclass(frozen=True)
class LedgerOpened:
    """The privacy ledger is ready to be spent from."""

    ledger: Ledger


@dataclass(frozen=True)
class DataLooked:
    """So many records are there for the next training, which uses exactly these."""

    records: int


@dataclass(frozen=True)
class Trained:
    """Local training ended. `start` is the very vector the job was given."""

    start: Vector
    params: Vector
    loss: float
    steps: int
    seconds: float
    sampling_rate: float = 0.0
    """Chance of a record to be in one step, as it was used; 0 where it does not matter."""


@dataclass(frozen=True)
class ReleasePrepared:
    """What to release from the update, cut into chunks, the most useful first; nothing has left the device yet."""

    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class OrderJudged:
    """Whether an operator signed an order to this device, and which."""

    order: Order
    by: str = ""
    refusal: str = ""
    """Why it is not to be obeyed; empty if it is."""


@dataclass(frozen=True)
class SealingKeyMade:
    """The device's X25519 key, or a new certificate for it."""

    private: bytes = field(repr=False)
    public: bytes
    certificate: bytes = b""
    """Shows others that the key is this device's; empty for a device that is not enrolled."""


@dataclass(frozen=True)
class KeysBegun:
    """A leader's secrets are drawn: what it broadcasts, and a sealed deal for each leader."""

    term: int
    attempt: int
    secret: bytes = field(repr=False)
    one: bytes = field(repr=False)
    deals: dict[str, bytes] = field(repr=False)


@dataclass(frozen=True)
class KeysFinished:
    """A leader's share of the joint key is complete."""

    term: int
    attempt: int
    material: KeyMaterial = field(repr=False)
    two: bytes = field(repr=False)


@dataclass(frozen=True)
class KeysMade:
    """The joint key's public parts are complete."""

    key: CoordinatorKey = field(repr=False)


@dataclass(frozen=True)
class DecryptionRequested:
    """A ciphertext that the active set is to decrypt together."""

    round_no: int
    stage: str
    request: bytes = field(repr=False)
    """For the decryptor: the ciphertext itself."""
    contributors: tuple[str, ...] = ()
    """Whose updates it holds."""
    held: object = field(default=None, repr=False, compare=False)
    """What the round's next job needs besides the answers: the machine passes it on unread."""


@dataclass(frozen=True)
class LeanWeights:
    """How a lean round weighs its contributors, and what was found about the leaders."""

    whole: dict[str, int]
    """Integer weights of those who are summed."""
    factor: float
    """What the weighted average is multiplied by: 1 unless the s-factor shrinks the model."""
    scored: tuple[str, ...]
    refused: dict[str, str] = field(default_factory=dict)
    evidence: dict[str, float] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    excluded: tuple[str, ...] = ()


@dataclass(frozen=True)
class LeanAsked:
    """What to ask leaders for next in a lean round."""

    round_no: int
    attempt: int
    stage: str
    requests: dict[str, bytes] = field(repr=False)
    accepted: tuple[str, ...]
    refused: dict[str, str] = field(default_factory=dict)
    held: bytes = field(default=b"", repr=False)
    """The coordinator's half of the scores."""
    digest: bytes = b""
    """Of the sketches that are scored."""
    weighed: LeanWeights | None = None


@dataclass(frozen=True)
class OpenBody:
    """A leader's contribution to the open round: its header (empty unless the round is lean) and what is in it."""

    round_no: int
    key_id: bytes
    size: int
    """Parameters of the model."""
    header: bytes = b""
    update: Vector | None = field(default=None, repr=False)
    bounds: bytes = b""


@dataclass(frozen=True)
class LeanAnswered:
    """A leader's answer in a lean round; it is stored before it is sent."""

    round_no: int
    request: str
    """Digest of the request."""
    stage: str
    header: bytes
    """Header of the body for which it was made."""
    answer: bytes = field(repr=False)
    mark: bytes = b""
    """What must not be answered twice, or not otherwise: digest of the scores' ciphertexts, of the signed vector."""
    key_id: bytes = b""
    vector: tuple[tuple[str, int], ...] = ()
    """The contributors and weights that were signed for."""


@dataclass(frozen=True)
class ServerDecrypted:
    """A ciphertext is fresh: what the active set is asked, and the half that the decryptor keeps."""

    request: bytes = field(repr=False)
    held: bytes = field(repr=False)


@dataclass(frozen=True)
class FinalDecrypted:
    """What the shares decrypt to, as `ServerDecAnswer.values`."""

    values: bytes = field(repr=False)


@dataclass(frozen=True)
class DecryptionAnswered:
    """A leader's decryption share; it is stored before it is sent."""

    round_no: int
    request: str
    """Digest of the request."""
    ciphertext: str
    """Digest of the ciphertext in it: one must never be answered for two requests."""
    share: bytes = field(repr=False)
    contributors: tuple[str, ...] = ()
    """Whose sum it is; of scores, whose scores."""
    rows: int = 0
    """Ciphertexts of a model that were decrypted; 0 for scores."""


@dataclass(frozen=True)
class ContributionProtected:
    """A leader's update in the form in which the coordinator may have it."""

    round_no: int
    payload: bytes
    header: bytes = b""
    """Header of a lean body."""


@dataclass(frozen=True)
class RoundAggregated:
    """The weighted sum of a round's contributions."""

    round_no: int
    update: Vector
    weights: dict[str, float]
    """Weights of the leaders whose contribution is in the sum, 0 for those found poisoned."""
    refused: dict[str, str]
    """Leaders whose contribution could not be used, and why."""
    evidence: dict[str, float] = field(default_factory=dict)
    """The leaders' suspicion accounts after this round."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Why a leader was weighed down."""
    excluded: tuple[str, ...] = ()
    """Leaders that count for nothing because they are suspected."""
    failing: tuple[str, ...] = ()
    """Leaders whose answers were wrong."""
    bounds: bytes = b""
    """Quantisation bounds of the next lean round."""


@dataclass(frozen=True)
class Evaluated:
    """How good a global model is on held-out data."""

    round_no: int
    accuracy: float
    loss: float
    metrics: Mapping[str, float] | None = None
    """Whatever was measured, by name; empty if there is nothing to judge on, None for accuracy and loss alone."""


@dataclass(frozen=True)
class JobFailed:
    """A computation raised; `job` is its type, the numbers say of which round or key generation it was."""

    job: type[Job]
    reason: str
    culprits: tuple[str, ...] = ()
    """Leaders that are known to have sent what made it fail."""
    suspects: tuple[str, ...] = ()
    """Leaders one of whom sent it."""
    round_no: int = 0
    """0 for a job of no round."""
    term: int = 0
    attempt: int = 0
    """Term and attempt of a key generation; 0 for any other job."""
    error: type[Exception] = field(default=Exception, compare=False)
    """What it raised; `reason` tells it in words."""


Event: TypeAlias = (
    Started
    | LinkUp
    | LinkDown
    | Stopping
    | Arrived
    | TimerFired
    | Measured
    | LedgerOpened
    | DataLooked
    | Trained
    | ReleasePrepared
    | SealingKeyMade
    | OrderJudged
    | KeysBegun
    | KeysFinished
    | KeysMade
    | DecryptionRequested
    | DecryptionAnswered
    | LeanAsked
    | LeanAnswered
    | ServerDecrypted
    | FinalDecrypted
    | ContributionProtected
    | RoundAggregated
    | Evaluated
    | JobFailed
)
