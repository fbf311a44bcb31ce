"""Messages to bytes and back: `[version, message]` in msgpack, decoded strictly by schema.

Whatever arrives, the outcome is a valid message or a DecodeError.
"""

from __future__ import annotations

from typing import Any, TypeAlias, TypeVar, get_args

import msgspec

from ofl_iot.errors import DecodeError
from ofl_iot.protocol.messages import (
    MESSAGES_ON,
    Books,
    Contribution,
    KeyOne,
    KeyOpen,
    Message,
    PartDecAsk,
    ServerDecAnswer,
    ServerDecAsk,
)
from ofl_iot.protocol.telemetry import Telemetry, check
from ofl_iot.protocol.topics import Kind

VERSION = 1
MAX_MESSAGE_BYTES = 1 << 20
"""Above every message's own limit; the MQTT link refuses larger packets as well."""

_PREFIX = bytes([0x92, VERSION])  # a msgpack array of two, its first item the version
_encoder = msgspec.msgpack.Encoder()
_decoders = {kind: msgspec.msgpack.Decoder(message) for kind, message in MESSAGES_ON.items()}

Body: TypeAlias = Contribution | KeyOpen | KeyOne | ServerDecAsk | ServerDecAnswer | PartDecAsk | Books
B = TypeVar("B", Contribution, KeyOpen, KeyOne, ServerDecAsk, ServerDecAnswer, PartDecAsk, Books)
_bodies: dict[type, msgspec.msgpack.Decoder[Any]] = {each: msgspec.msgpack.Decoder(each) for each in get_args(Body)}


def encode(message: Message) -> bytes:
    """The message's bytes."""
    return _PREFIX + _encoder.encode(message)


def decode(kind: Kind, payload: bytes) -> Message:
    """The message that `payload` carries on a topic of this kind, or DecodeError."""
    if len(payload) > MAX_MESSAGE_BYTES:
        raise DecodeError(f"{len(payload)} bytes, more than the {MAX_MESSAGE_BYTES} a message may have")
    if payload[:1] != _PREFIX[:1]:
        raise DecodeError("not an envelope of version and message")
    if payload[1:2] != _PREFIX[1:]:
        raise DecodeError(f"version {payload[1:2].hex() or 'missing'}; this program speaks {VERSION}")
    try:
        message: Message = _decoders[kind].decode(memoryview(payload)[2:])
    except (msgspec.DecodeError, ValueError, OverflowError, RecursionError) as error:
        raise DecodeError(f"not a {kind.name} message: {error}") from None
    return check(message) if isinstance(message, Telemetry) else message


def encode_body(body: Body) -> bytes:
    """What is inside a body that travels in parts."""
    return _PREFIX + _encoder.encode(body)


def decode_body(kind: type[B], body: bytes) -> B:
    """The content of a joined body, or DecodeError."""
    if body[:2] != _PREFIX:
        raise DecodeError(f"not a {kind.__name__} of version {VERSION}")
    try:
        decoded: B = _bodies[kind].decode(memoryview(body)[2:])
    except (msgspec.DecodeError, ValueError, OverflowError, RecursionError) as error:
        raise DecodeError(f"not a {kind.__name__}: {error}") from None
    return decoded
