"""Messages to bytes and back: `[version, message]` in msgpack, decoded strictly by schema.

Whatever arrives, the outcome is a valid message or a DecodeError; whatever is sent decodes, or it is an EncodeError.
"""

from __future__ import annotations

from typing import Any, TypeAlias, TypeVar, get_args

import msgspec

from ofl_iot.errors import DecodeError, EncodeError
from ofl_iot.protocol.key_messages import KeyOne, KeyOpen, PartDecAsk, ServerDecAnswer, ServerDecAsk
from ofl_iot.protocol.lean import LeanAnswer, LeanUpload, OpenAsk, ScoresAsk, SketchAsk, VouchAsk
from ofl_iot.protocol.messages import MESSAGES_ON, Books, Contribution, Message
from ofl_iot.protocol.telemetry import Telemetry, check
from ofl_iot.protocol.topics import Kind

VERSION = 1
MAX_MESSAGE_BYTES = 1 << 20
"""Above every message's own limit; the MQTT link refuses larger packets as well."""

_PREFIX = bytes([0x92, VERSION])  # a msgpack array of two, its first item the version
_encoder = msgspec.msgpack.Encoder()
_decoders = {kind: msgspec.msgpack.Decoder(message) for kind, message in MESSAGES_ON.items()}

LeanBody: TypeAlias = LeanUpload | SketchAsk | ScoresAsk | VouchAsk | OpenAsk | LeanAnswer
Body: TypeAlias = Contribution | KeyOpen | KeyOne | ServerDecAsk | ServerDecAnswer | PartDecAsk | Books | LeanBody
B = TypeVar("B", bound=Body)
_bodies: dict[type, msgspec.msgpack.Decoder[Any]] = {each: msgspec.msgpack.Decoder(each) for each in get_args(Body)}
_readers: dict[type, msgspec.msgpack.Decoder[Any]] = {each: msgspec.msgpack.Decoder(each) for each in get_args(Message)}
_UNREADABLE = (msgspec.MsgspecError, ValueError, OverflowError, RecursionError, TypeError)
_MAX_REASON = 200


def encode(message: Message) -> bytes:
    """The message's bytes, which `decode` accepts, or EncodeError."""
    name = type(message).__name__
    try:
        payload = _PREFIX + _encoder.encode(message)
        if len(payload) > MAX_MESSAGE_BYTES:
            raise EncodeError(f"a {name} of {len(payload)} bytes, more than the {MAX_MESSAGE_BYTES} a message may have")
        read = _readers[type(message)].decode(memoryview(payload)[2:])
        if isinstance(read, Telemetry):
            check(read)
    except (*_UNREADABLE, DecodeError) as error:
        raise EncodeError(f"a {name} that nobody would read: {_reason(error)}") from None
    return payload


def decode(kind: Kind, payload: bytes) -> Message:
    """The message that `payload` carries on a topic of this kind, or DecodeError."""
    if len(payload) > MAX_MESSAGE_BYTES:
        raise DecodeError(f"{len(payload)} bytes, more than the {MAX_MESSAGE_BYTES} a message may have")
    if payload[:1] != _PREFIX[:1]:
        raise DecodeError("not an envelope of version and message")
    if payload[1:2] != _PREFIX[1:]:
        raise DecodeError(_other_version(payload))
    try:
        message: Message = _decoders[kind].decode(memoryview(payload)[2:])
    except _UNREADABLE as error:
        raise DecodeError(f"not a {kind.name} message: {_reason(error)}") from None
    return check(message) if isinstance(message, Telemetry) else message


def encode_body(body: Body) -> bytes:
    """What is inside a body that travels in parts, which `decode_body` accepts, or EncodeError."""
    name = type(body).__name__
    try:
        # As decoding does, but without another copy of the payload.
        msgspec.convert(msgspec.to_builtins(body, builtin_types=(bytes,)), type(body), builtin_types=(bytes,))
        return _PREFIX + _encoder.encode(body)
    except _UNREADABLE as error:
        raise EncodeError(f"a {name} that nobody would read: {_reason(error)}") from None


def decode_body(kind: type[B], body: bytes) -> B:
    """The content of a joined body, or DecodeError."""
    if body[:2] != _PREFIX:
        raise DecodeError(f"not a {kind.__name__} of version {VERSION}")
    try:
        decoded: B = _bodies[kind].decode(memoryview(body)[2:])
    except _UNREADABLE as error:
        raise DecodeError(f"not a {kind.__name__}: {_reason(error)}") from None
    return decoded


def _other_version(payload: bytes) -> str:
    """Return a sentence on a message of another wire version: who must be upgraded."""
    told = payload[1:2]
    advice = ": upgrade ofl-iot here" if told and told[0] > VERSION else ""
    return f"version {told.hex() or 'missing'}; this program speaks {VERSION}{advice}"


def _reason(error: Exception) -> str:
    """What is wrong, on one line and short: msgspec quotes what it read."""
    return str(error)[:_MAX_REASON].encode("unicode_escape").decode()[:_MAX_REASON]
