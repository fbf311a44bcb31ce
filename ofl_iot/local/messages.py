"""What travels over a party's local socket: one request a connection, one reply, perhaps a body behind it.

    request = length (4 bytes, big endian) | version (1 byte) | msgpack
    reply   = length | version | msgpack | body, as long as the reply says

Fields are appended with defaults; a request that a party does not know is refused in words.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec

from ofl_iot.errors import DecodeError

VERSION = 1
HEAD_BYTES = 5
MAX_REQUEST_BYTES = 4 * 1024
MAX_REPLY_BYTES = 1 << 20
MAX_BODY_BYTES = 1 << 32

Which: TypeAlias = Literal["federation", "own"]
"""A device has two models: the federation's as it knows it, and its own, which holds its unreleased training too."""
Size: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MAX_BODY_BYTES)]


class StatusRequest(msgspec.Struct, frozen=True, array_like=True, tag="status"):
    """How does the party fare?"""


class ModelRequest(msgspec.Struct, frozen=True, array_like=True, tag="model"):
    """A copy of the party's model as it is now."""

    which: Which = "federation"


class BackupRequest(msgspec.Struct, frozen=True, array_like=True, tag="backup"):
    """A copy of the party's store."""


Request: TypeAlias = StatusRequest | ModelRequest | BackupRequest


class StatusReply(msgspec.Struct, frozen=True, array_like=True, tag="status"):
    """How the party fares, as of its last event."""

    party: str
    role: str
    version: str
    """Version of ofl-iot."""
    pid: int
    up_s: float
    linked: bool
    ready: bool
    overdue: str
    """What has been under way for too long; empty when nothing is."""
    said: str
    """One line for people."""
    details: dict[str, int | float | bool | str | None] = {}
    """What belongs to the role: round, leader, budget left."""
    body_bytes: Size = 0


class ModelReply(msgspec.Struct, frozen=True, array_like=True, tag="model"):
    """What the body holds: float32, little endian, `size` values that travel and then those of the device alone."""

    party: str
    role: str
    which: Which
    round_no: int
    model: bytes
    """Digest of the model's card."""
    size: Size
    complete: bool
    """Whether every block has arrived at least once."""
    final: bool
    card: bytes = b""
    """Names and shapes as JSON; empty if the party has none."""
    app: bytes = b""
    """Where the party's app and data are, as JSON; empty if it has none."""
    body_bytes: Size = 0


class BackupReply(msgspec.Struct, frozen=True, array_like=True, tag="backup"):
    """The body is a store: a sqlite file, with all secrets of the party."""

    party: str
    body_bytes: Size = 0


class Refused(msgspec.Struct, frozen=True, array_like=True, tag="refused"):
    """Why there is no answer, for people."""

    reason: str
    body_bytes: Size = 0


Reply: TypeAlias = StatusReply | ModelReply | BackupReply | Refused

_REQUESTS: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_REPLIES: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


def frame(message: Request | Reply) -> bytes:
    """Return a message with its length and version before it."""
    packed = msgspec.msgpack.encode(message)
    return len(packed).to_bytes(4, "big") + bytes((VERSION,)) + packed


def parse_head(head: bytes, max_bytes: int) -> int:
    """Return how many bytes the message has; DecodeError if they are too many or of another version."""
    size, version = int.from_bytes(head[:4], "big"), head[4]
    if version != VERSION:
        raise DecodeError(f"version {version} of the local protocol, this side speaks {VERSION}: use the same ofl-iot")
    if size > max_bytes:
        raise DecodeError(f"a message of {size} bytes: at most {max_bytes} are read")
    return size


def decode_request(packed: bytes) -> Request:
    """Return the request, or DecodeError for one that this version does not know."""
    try:
        return _REQUESTS.decode(packed)
    except msgspec.DecodeError as error:
        raise DecodeError(f"not a request that this party knows ({error}): use the same version of ofl-iot") from error


def decode_reply(packed: bytes) -> Reply:
    """Return the reply, or DecodeError."""
    try:
        return _REPLIES.decode(packed)
    except msgspec.DecodeError as error:
        raise DecodeError(f"not a reply that this program knows ({error}): use the same version of ofl-iot") from error
