"""What is said on each topic: frozen msgspec Structs, msgpack arrays on the wire.

Fields may be appended with a default; old readers ignore what they do not know. From the first release on, anything
else needs a new `codec.VERSION`. Numbers are finite and ids well formed, or the message does not decode.
"""

from __future__ import annotations

import struct
from typing import Annotated, TypeAlias

import msgspec

from ofl_iot.protocol.block_batch import BlockBatch
from ofl_iot.protocol.chunks import MAX_CHUNK_BYTES, Chunk
from ofl_iot.protocol.fields import BodyDigest, Certificate, Count, Id, Incarnation, ModelDigest, Seconds, Text
from ofl_iot.protocol.fleet_notes import ClusterNote, Refusal, RoundNote, Vitals
from ofl_iot.protocol.fleet_orders import Order
from ofl_iot.protocol.lives import Account, StoreId
from ofl_iot.protocol.model_card import MAX_CARD_BYTES
from ofl_iot.protocol.seqset import Seq, SeqSet
from ofl_iot.protocol.telemetry import Telemetry
from ofl_iot.protocol.topics import Kind
from ofl_iot.protocol.values import DType, Values, check_values, decode_values

MAX_CHANGE_BYTES = 2 * MAX_CHUNK_BYTES + 1024
"""Index and values of a chunk, its head, and the seal."""


class Status(msgspec.Struct, frozen=True, array_like=True, tag="status"):
    """A device announces itself; the broker publishes the offline form as its last will."""

    online: bool
    term: Count
    """The term of the assignment it holds; 0 asks for one."""
    sample_count: Count
    model: ModelDigest
    size: Count
    """Parameters of its model."""
    device_type: Annotated[str, msgspec.Meta(max_length=24)] = ""
    sealing_key: Annotated[bytes, msgspec.Meta(max_length=32)] = b""
    """Its public X25519 key, to which others seal what only it may read."""
    certificate: Certificate = b""
    """Certificate of the federation's authority: it names the device and its sealing key."""
    store: StoreId = b""
    """The store it writes to; empty in its last will."""
    privacy: Text = ""
    """What is left of its privacy budget, or why it does not train, in words."""
    next_seq: Count = 0
    """Number of its next chunk; nobody may settle numbers far above."""
    difference: Text = ""
    """How its model differs from the federation's, in words; empty if it does not."""
    software: Annotated[str, msgspec.Meta(max_length=32)] = ""
    """Version of ofl-iot that it runs; empty before 0.2."""


class Member(msgspec.Struct, frozen=True, array_like=True):
    """A device of the cluster and which of its chunks the global model already holds."""

    device: Id
    settled: SeqSet
    sample_count: Count
    store: StoreId = b""
    """The store that `settled` is about."""
    account: Account = Account()
    next_seq: Count = 0
    """Number of its next chunk, as it announced it."""


class Assignment(msgspec.Struct, frozen=True, array_like=True, tag="assignment"):
    """Where a device belongs in this term. Re-clustering is the publication of a new one."""

    term: Count
    revision: Count
    """Grows within a term when members join; (term, revision) orders a device's assignments."""
    leader: Id
    settled: SeqSet
    """Which of this device's chunks the global model holds."""
    deputies: tuple[Id, ...] = ()
    members: tuple[Member, ...] = ()
    """Filled for the leader alone."""
    incarnation: Incarnation = b""
    """Incarnation of the coordinator that assigns: its leaders take global models from no other."""
    store: StoreId = b""
    """The device's store, as the coordinator knows it: an assignment to another store is of a former life."""
    account: Account = Account()
    """The furthest that the coordinator has seen the device's ledger."""
    fleet_records: Count = 0
    """Records of all assigned devices as they are announced, each rounded up to a power of two; 0: not told."""
    fleet_devices: Count = 0
    """Assigned devices."""


class Receipt(msgspec.Struct, frozen=True, array_like=True, tag="receipt"):
    """A leader tells what it holds of a device's chunks.

    A *stored* chunk is merged durably at the leader and need not be sent again. A *settled* one is part of a global
    model: it is safe even if the leader never comes back, and the device forgets it.
    """

    term: Count
    stored: tuple[Seq, ...]
    settled: SeqSet
    credits: Count
    """How many chunks the device may have under way."""
    highest: Annotated[int, msgspec.Meta(ge=0, lt=2**62)] = 0
    """The highest sequence number the leader holds: a device with an older copy of its store numbers on from there."""
    store: StoreId = b""
    """The store that the numbers are about."""
    account: Account = Account()
    """The furthest that the leader has seen the device's ledger."""


class PartReceipt(msgspec.Struct, frozen=True, array_like=True, tag="partreceipt"):
    """The coordinator tells which parts of a leader's contribution or share it holds."""

    term: Count
    round_no: Count
    stage: Text
    parts: tuple[Count, ...]


class Follower(msgspec.Struct, frozen=True, array_like=True):
    """Where a device stands that follows its leader's changes."""

    version: Count
    """The last change it has taken; 0 if it is not in step."""
    number: Count
    """Number of this pull, which the answer repeats."""


class Pull(msgspec.Struct, frozen=True, array_like=True, tag="pull"):
    """A device asks for the blocks that changed most since it saw them."""

    term: Count
    seen: bytes
    """float64 per block: the cumulative change at which the device last got it; negative = never."""
    max_blocks: Count
    """0 from a follower in step: it has sent what it had and waits for the next change."""
    packed: bool = False
    """Whether the device reads `Blocks.batches`; one of 0.1.0 does not."""
    follower: Follower | None = None
    """Filled by a device that follows its leader's changes."""
    segmented: bool = False
    """Whether it reads batches whose blocks have a scale for each tensor."""


class Block(msgspec.Struct, frozen=True, array_like=True):
    """One block of the leader's model, for devices that do not read batches."""

    index: Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
    cumulative_change: Annotated[float, msgspec.Meta(ge=0, le=1e30)]
    dtype: DType
    values: Annotated[bytes, msgspec.Meta(min_length=2)]
    """Coded as `protocol/values.py` says."""

    def __post_init__(self) -> None:
        check_values(self.dtype, self.values)

    def read_values(self) -> Values:
        """The parameters of the block."""
        return decode_values(self.dtype, self.values)

    def as_batch(self) -> BlockBatch:
        """The block as a batch of one."""
        head = 4 if self.dtype == "b" else 0
        change = struct.pack("<d", self.cumulative_change)
        return BlockBatch(self.dtype, struct.pack("<I", self.index), change, self.values[:head], self.values[head:])


class Standing(msgspec.Struct, frozen=True, array_like=True):
    """Where a leader's published model stands, for a device that follows its changes."""

    version: Count
    """The change after which these blocks were read."""
    number: Count
    """The number of the pull that is answered."""
    count: Count
    """Blocks in all messages of the answer: with fewer, the device is not in step."""
    key: Annotated[bytes, msgspec.Meta(max_length=32)] = b""
    """Opens the changes of this term; empty if they are not sealed."""


class Blocks(msgspec.Struct, frozen=True, array_like=True, tag="blocks"):
    """The answer to a pull, in one or more messages; `last` marks the final one."""

    term: Count
    round_no: Count
    """The global model these blocks stand on."""
    blocks: tuple[Block, ...]
    """Empty where `batches` are used."""
    last: bool
    batches: tuple[BlockBatch, ...] = ()
    """At most one for each precision."""
    standing: Standing | None = None
    """For a follower; None where the leader publishes no changes."""

    def read_batches(self) -> tuple[BlockBatch, ...]:
        """All blocks as batches, whichever way they came."""
        return (*self.batches, *(block.as_batch() for block in self.blocks))


class ClusterChange(msgspec.Struct, frozen=True, array_like=True, tag="change"):
    """A part of what a leader's published model changed by: one message for all members of the cluster.

    Changes of a term are numbered without gaps. Who misses one pulls.
    """

    term: Count
    version: Annotated[int, msgspec.Meta(ge=1, lt=2**53)]
    part: Count
    parts: Annotated[int, msgspec.Meta(ge=1, le=65_536)]
    round_no: Count
    """The global model that the published model stands on."""
    body: Annotated[bytes, msgspec.Meta(max_length=MAX_CHANGE_BYTES)]
    """An encoded chunk, sealed if the cluster has a key; empty if only the version or the round is new."""

    def __post_init__(self) -> None:
        if self.part >= self.parts:
            raise ValueError(f"part {self.part} of {self.parts}")


class Seat(msgspec.Struct, frozen=True, array_like=True):
    """A leader and the term in which it leads."""

    leader: Id
    term: Count


class RoundOpen(msgspec.Struct, frozen=True, array_like=True, tag="open"):
    """The coordinator asks the leaders for their cluster models."""

    round_no: Count
    attempt: Count
    """Grows when the coordinator lost what it had collected: leaders send their parts again."""
    seats: tuple[Seat, ...]
    base_round: Count
    """The global model that contributions stand on."""
    deadline_s: Seconds
    """How long the round stays open, counted from its opening."""
    key_id: Annotated[bytes, msgspec.Meta(max_length=16)] = b""
    """The joint key to encrypt under; empty = in the clear."""
    bounds: Annotated[bytes, msgspec.Meta(max_length=64 * 1024)] = b""
    """Quantisation bounds of a lean round: a signed exponent for each block of 2,048 parameters."""


class Settlement(msgspec.Struct, frozen=True, array_like=True):
    """Chunks of one device, by sequence number."""

    device: Id
    seqs: tuple[Seq, ...]
    store: StoreId = b""
    """The store that numbered them; empty from a leader of the version before, which does not know."""
    account: Account = Account()


class Observation(msgspec.Struct, frozen=True, array_like=True):
    """What a leader saw of a device since its last contribution; zeros where it saw nothing."""

    device: Id
    trainings: Count
    """Number of intervals between the first chunks of one update and of the next."""
    training_s: Seconds
    """Median of these intervals: a training with all that goes with it."""
    size_bytes: Count = 0
    """Chunks that followed others of the same update,"""
    arrival_s: Seconds = 0.0
    """and the time in which they came."""


class Contribution(msgspec.Struct, frozen=True, array_like=True, tag="contribution"):
    """The body of a leader's contribution: its protected update and what was merged into it."""

    payload: bytes
    merged: tuple[Settlement, ...]
    sample_count: Count
    updates: Count
    """Number of chunks merged."""
    observed: tuple[Observation, ...] = ()
    effort: Annotated[float, msgspec.Meta(ge=0, le=1e12)] = 0.0
    """Training steps behind what was merged, each by the share of the model it told of; 0 from who does not know."""


class Part(msgspec.Struct, frozen=True, array_like=True, tag="part"):
    """A slice of a large body: a contribution, a decryption request or share, the global model."""

    term: Count
    round_no: Count
    stage: Text
    part: Count
    parts: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
    digest: BodyDigest
    """Digest of the whole body, so that parts of different bodies never mix."""
    body: bytes

    def __post_init__(self) -> None:
        if self.part >= self.parts:
            raise ValueError(f"part {self.part} of {self.parts}")


class Inclusion(msgspec.Struct, frozen=True, array_like=True):
    """The last contribution of a leader that is part of the global model, known by its digest."""

    leader: Id
    round_no: Count
    digest: BodyDigest


class Manifest(msgspec.Struct, frozen=True, array_like=True, tag="manifest"):
    """A new global model is complete."""

    round_no: Count
    model: ModelDigest
    size: Count
    digest: BodyDigest
    included: tuple[Inclusion, ...]
    """The last included contribution of every leader, of this or an earlier round: a leader that missed a manifest
    learns from any later one that what it had contributed is settled."""
    final: bool = False
    term: Count = 0
    """The highest term that the coordinator has given: who stands in a lower one yields."""
    incarnation: Incarnation = b""
    books: bytes = b""
    """Digest of the books that belong to this model, for a coordinator that takes over; b"" from who kept none."""


class Books(msgspec.Struct, frozen=True, array_like=True, tag="books"):
    """What the global model holds, beside its values."""

    completed: Count
    """Rounds closed."""
    settled: dict[Id, SeqSet]
    """The chunks in it, by device."""
    stores: dict[Id, StoreId] = {}
    """The store that each device's settled chunks are about."""
    accounts: dict[Id, Account] = {}


class Card(msgspec.Struct, frozen=True, array_like=True, tag="card"):
    """The federation's model, as `protocol/model_card.py` describes it."""

    model: Annotated[bytes, msgspec.Meta(max_length=MAX_CARD_BYTES)]


class Echo(msgspec.Struct, frozen=True, array_like=True, tag="echo"):
    """A link's ping to itself."""

    nonce: Count


Message: TypeAlias = (
    Status
    | Telemetry
    | Echo
    | Assignment
    | Receipt
    | PartReceipt
    | Pull
    | Blocks
    | ClusterChange
    | Chunk
    | RoundOpen
    | Part
    | Manifest
    | Card
    | Vitals
    | Refusal
    | ClusterNote
    | RoundNote
    | Order
)

MESSAGES_ON: dict[Kind, type[Message]] = {
    Kind.STATUS: Status,
    Kind.TELEMETRY: Telemetry,
    Kind.ECHO: Echo,
    Kind.ASSIGNMENT: Assignment,
    Kind.RECEIPT: Receipt | PartReceipt,  # type: ignore[dict-item]  # a union of structs is what msgspec decodes
    Kind.BLOCKS: Blocks,
    Kind.CLUSTER_CHANGE: ClusterChange,
    Kind.UPDATE: Chunk,
    Kind.PULL: Pull,
    Kind.ROUND_OPEN: RoundOpen,
    Kind.CONTRIBUTION: Part,
    Kind.DECRYPT: Part,
    Kind.SHARE: Part | PartReceipt,  # type: ignore[dict-item]
    Kind.KEYS: Part | PartReceipt,  # type: ignore[dict-item]
    Kind.SERVERDEC: Part | PartReceipt,  # type: ignore[dict-item]
    Kind.MANIFEST: Manifest,
    Kind.GLOBAL_PART: Part,
    Kind.CARD: Card,
    Kind.BOOKS: Part,
    Kind.VITALS: Vitals,
    Kind.REFUSAL: Refusal,
    Kind.CLUSTER_NOTE: ClusterNote,
    Kind.ROUND_NOTE: RoundNote,
    Kind.ORDER: Order,
}
