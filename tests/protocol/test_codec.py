"""Whatever arrives, the outcome is a valid message or a DecodeError."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc
from typing import Any, get_args

import msgpack
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import inspect

from ofl_iot.errors import DecodeError, EncodeError
from ofl_iot.protocol import codec
from ofl_iot.protocol.codec import MAX_MESSAGE_BYTES, Body, decode, decode_body, encode, encode_body
from ofl_iot.protocol.messages import (
    MESSAGES_ON,
    Assignment,
    Block,
    Blocks,
    Contribution,
    Echo,
    Message,
    Part,
    Pull,
    Receipt,
    RoundOpen,
    Seat,
    Settlement,
    Status,
)
from ofl_iot.protocol.seqset import SeqSet
from ofl_iot.protocol.topics import Kind
from tests.protocol.samples import MESSAGES, drawn

KINDS = list(Kind)
spoken = st.sampled_from(KINDS).flatmap(lambda kind: st.tuples(st.just(kind), MESSAGES[kind]))
bodies = st.one_of(*(drawn(inspect.type_info(each)) for each in get_args(Body)))
"""What travels inside joined parts."""


def unchecked(message: object) -> bytes:
    """Bytes as a foreign program may send them."""
    return b"\x92\x01" + msgspec.msgpack.encode(message)


def decode_or_refuse(kind: Kind, payload: bytes) -> Message | None:
    """None for a DecodeError; anything else that is raised fails the test."""
    try:
        return decode(kind, payload)
    except DecodeError:
        return None


# --- laws


def test_every_kind_of_topic_has_its_message() -> None:
    assert set(MESSAGES_ON) == set(Kind)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_encoded_decodes_to_itself(kind: Kind) -> None:
    @settings(max_examples=40)
    @given(MESSAGES[kind])
    def law(message: Message) -> None:
        assert decode(kind, encode(message)) == message

    law()


_poison = st.one_of(
    st.sampled_from([-1, 2**53 - 1, 2**53, 2**62 - 1, 2**62, 2**63, 2**64 - 1, 2**64, 10**12]),
    st.sampled_from([float("nan"), float("inf"), -1.0, 1e300, None, True, "", "Truck\n", "x" * 300, "\ud800"]),
    st.sampled_from([b"", b"short", bytes(40), bytes(3000), (), (0,), (2**62,), SeqSet(2**62), SeqSet(2**53)]),
    st.sampled_from([(Seat("B\n", 1),), (Settlement("a", (2**62,)),), (Block(2**53, 0.0, "e", bytes(2)),)]),
)
"""What a field may hold though no reader accepts it there."""


@pytest.mark.parametrize("kind", KINDS)
def test_what_no_reader_accepts_is_not_encoded(kind: Kind) -> None:
    """Whatever a field holds: `encode` refuses exactly what `decode` refuses."""

    @settings(max_examples=60)
    @given(MESSAGES[kind], st.data())
    def law(message: Message, data: st.DataObject) -> None:
        poisoned = poisoned_of(message, data)
        payload = encode_or_refuse(encode, poisoned)
        try:
            unread = decode_or_refuse(kind, unchecked(poisoned)) is None
        except (msgspec.MsgspecError, OverflowError, UnicodeEncodeError):
            unread = True  # not even msgpack
        assert (payload is None) == unread

    law()


@given(bodies, st.data())
def test_no_body_is_encoded_that_no_reader_accepts(content: Any, data: st.DataObject) -> None:
    poisoned = poisoned_of(content, data)
    body = encode_or_refuse(encode_body, poisoned)
    try:
        decode_body(type(content), unchecked(poisoned))
    except (DecodeError, msgspec.MsgspecError, OverflowError, UnicodeEncodeError):
        assert body is None
    else:
        assert body is not None


def poisoned_of(message: Any, data: st.DataObject) -> Any:
    """The message with another value in one of its fields, past the checks of its own type."""
    field = data.draw(st.sampled_from(message.__struct_fields__), label="field")
    value = data.draw(_poison, label="value")
    raw = msgspec.structs.asdict(message)
    try:
        return type(message)(**{**raw, field: value})
    except (ValueError, TypeError, AttributeError):
        return message  # not even made


def encode_or_refuse(encoder: Any, message: Any) -> bytes | None:
    """None for an EncodeError; anything else that is raised fails the test."""
    try:
        encoded: bytes = encoder(message)
    except EncodeError:
        return None
    return encoded


def test_a_message_above_the_size_limit_is_not_encoded() -> None:
    with pytest.raises(EncodeError, match="more than the 1048576"):
        encode(Pull(1, bytes(MAX_MESSAGE_BYTES), 1))


def test_a_refusal_quotes_little_of_what_it_refused_on_one_line() -> None:
    with pytest.raises(DecodeError) as refused:
        decode(Kind.ECHO, msgpack.packb([1, ["x\nforged log line " + "y" * 900_000, 1]]))
    assert len(str(refused.value)) < 300
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("kind", KINDS)
def test_every_truncated_prefix_is_refused(kind: Kind) -> None:
    @settings(max_examples=5)
    @given(MESSAGES[kind])
    def law(message: Message) -> None:
        payload = encode(message)
        for end in range(len(payload)):
            with pytest.raises(DecodeError):
                decode(kind, payload[:end])

    law()


@settings(max_examples=100)
@given(spoken, st.binary(min_size=1, max_size=20))
def test_bytes_behind_the_message_are_refused(said: tuple[Kind, Message], tail: bytes) -> None:
    kind, message = said
    with pytest.raises(DecodeError):
        decode(kind, encode(message) + tail)


@settings(max_examples=300)
@given(st.sampled_from(KINDS), st.binary(max_size=200), st.booleans())
def test_random_bytes_never_raise_anything_else(kind: Kind, noise: bytes, enveloped: bool) -> None:
    message = decode_or_refuse(kind, b"\x92\x01" + noise if enveloped else noise)
    assert message is None or decode(kind, encode(message)) == message


@settings(max_examples=400)
@given(spoken, st.data())
def test_flipped_bits_give_a_valid_message_or_a_decode_error(said: tuple[Kind, Message], data: st.DataObject) -> None:
    kind, message = said
    altered = bytearray(encode(message))
    for place in data.draw(st.lists(st.integers(0, 8 * len(altered) - 1), min_size=1, max_size=6)):
        altered[place // 8] ^= 1 << place % 8
    survivor = decode_or_refuse(kind, bytes(altered))
    if survivor is not None:
        assert decode(kind, encode(survivor)) == survivor


@settings(max_examples=300)
@given(spoken, spoken, st.data())
def test_spliced_messages_give_a_valid_message_or_a_decode_error(
    first: tuple[Kind, Message], second: tuple[Kind, Message], data: st.DataObject
) -> None:
    head, tail = encode(first[1]), encode(second[1])
    spliced = head[: data.draw(st.integers(0, len(head)))] + tail[data.draw(st.integers(0, len(tail))) :]
    for kind in (first[0], second[0]):
        decode_or_refuse(kind, spliced)


@settings(max_examples=100)
@given(spoken, st.sampled_from(KINDS))
def test_a_message_on_the_wrong_topic_is_refused(said: tuple[Kind, Message], other: Kind) -> None:
    _, message = said
    understood = inspect.type_info(MESSAGES_ON[other])
    classes = understood.types if isinstance(understood, inspect.UnionType) else (understood,)
    if type(message) not in {each.cls for each in classes}:  # type: ignore[attr-defined]
        with pytest.raises(DecodeError):
            decode(other, encode(message))


@settings(max_examples=100)
@given(spoken)
def test_the_plain_msgpack_package_reads_version_tag_and_fields(said: tuple[Kind, Message]) -> None:
    _, message = said
    version, plain = msgpack.unpackb(encode(message))
    tag = inspect.type_info(type(message)).tag  # type: ignore[attr-defined]  # every message has one
    assert version == codec.VERSION
    assert plain == [tag, *(as_lists(getattr(message, name)) for name in message.__struct_fields__)]


def as_lists(value: Any) -> Any:
    """A field as plain lists: nested structs without a tag."""
    if isinstance(value, msgspec.Struct):
        return [as_lists(getattr(value, name)) for name in value.__struct_fields__]
    return [as_lists(each) for each in value] if isinstance(value, tuple) else value


@settings(max_examples=50)
@given(bodies)
def test_bodies_round_trip_and_refuse_every_prefix(content: Any) -> None:
    body = encode_body(content)
    assert decode_body(type(content), body) == content
    for end in range(len(body)):
        with pytest.raises(DecodeError):
            decode_body(type(content), body[:end])


@given(bodies, st.sampled_from(get_args(Body)))
def test_a_body_of_another_kind_is_refused(content: Any, other: Any) -> None:
    if other is not type(content):
        with pytest.raises(DecodeError):
            decode_body(other, encode_body(content))


@given(st.sampled_from(get_args(Body)), st.binary(max_size=200), st.booleans())
def test_a_body_of_random_bytes_is_refused(kind: Any, noise: bytes, enveloped: bool) -> None:
    with contextlib.suppress(DecodeError):
        decode_body(kind, b"\x92\x01" + noise if enveloped else noise)


# --- versions, sizes, numbers


def test_another_version_is_refused_and_named() -> None:
    payload = bytearray(encode(Echo(1)))
    payload[1] = 2
    with pytest.raises(DecodeError, match=r"version 02; this program speaks 1: upgrade ofl-iot here"):
        decode(Kind.ECHO, bytes(payload))
    with pytest.raises(DecodeError, match="version missing"):
        decode(Kind.ECHO, b"\x92")
    with pytest.raises(DecodeError, match="not an envelope"):
        decode(Kind.ECHO, b"")


def test_a_message_above_the_size_limit_is_refused_before_it_is_read() -> None:
    at_limit = encode(Pull(1, b"", 1))
    fill = MAX_MESSAGE_BYTES - len(at_limit) - 3  # a longer byte string has a longer header
    assert len(encode(Pull(1, bytes(fill), 1))) == MAX_MESSAGE_BYTES
    decode(Kind.PULL, encode(Pull(1, bytes(fill), 1)))
    with pytest.raises(DecodeError, match="more than the 1048576"):
        decode(Kind.PULL, unchecked(Pull(1, bytes(fill + 1), 1)))


@pytest.mark.parametrize("declared", [2**16, 2**24, 2**32 - 1])
def test_a_declared_length_allocates_nothing(declared: int) -> None:
    payload = encode(Receipt(1, (1, 2), SeqSet(), 8))
    at = payload.index(b"\x92\x01\x02")
    hostile = payload[:at] + b"\xdd" + struct.pack(">I", declared) + payload[at + 1 :]
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError):
            decode(Kind.RECEIPT, hostile)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_deep_nesting_is_refused() -> None:
    payload = encode(Echo(5))
    with pytest.raises(DecodeError):
        decode(Kind.ECHO, payload[:2] + b"\x93" + payload[3:] + b"\x91" * 100_000 + b"\xc0")
    with pytest.raises(DecodeError):
        decode_body(Contribution, b"\x92\x01" + b"\x91" * 100_000)


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("e", b"\x00\x7e"),
        ("e", b"\x00\x7c"),
        ("e", b"\x00\x3c\x00"),
        ("f", b"\x00\x00\xc0\x7f"),
        ("f", np.array([1e16], "<f4").tobytes()),
        ("b", np.array([np.nan], "<f4").tobytes() + b"\x01"),
        ("b", np.array([0.0], "<f4").tobytes() + b"\x01"),
        ("b", np.array([1.0], "<f4").tobytes() + b"\x80"),
        ("b", np.array([1.0], "<f4").tobytes()),
        ("d", bytes(8)),
    ],
)
def test_a_block_of_what_cannot_be_trained_on_is_refused(dtype: str, values: bytes) -> None:
    sound = encode(Blocks(1, 1, (Block(0, 1.0, "b", np.array([1.0], "<f4").tobytes() + b"\x01"),), last=True))
    wire = msgpack.unpackb(sound)
    wire[1][3][0][2:] = [dtype, values]
    with pytest.raises(DecodeError):
        decode(Kind.BLOCKS, msgpack.packb(wire))
    decode(Kind.BLOCKS, sound)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf"), -1.0])
def test_numbers_that_are_not_finite_or_negative_are_refused(number: float) -> None:
    with pytest.raises(DecodeError):
        decode(Kind.BLOCKS, unchecked(Blocks(1, 1, (Block(0, number, "e", bytes(2)),), last=True)))
    with pytest.raises(DecodeError):
        decode(Kind.ROUND_OPEN, unchecked(RoundOpen(1, 0, (), 0, number)))


@pytest.mark.parametrize("name", ["", "Truck", "-a", "a--b", "a-", "a/b", "a+", "é", "a\n", "x" * 49, "#"])
def test_ids_that_are_not_well_formed_are_refused(name: str) -> None:
    with pytest.raises(DecodeError):
        decode(Kind.ASSIGNMENT, unchecked(Assignment(1, 0, name, SeqSet())))
    with pytest.raises(DecodeError):
        decode(Kind.ROUND_OPEN, unchecked(RoundOpen(1, 0, (Seat(name, 1),), 0, 1.0)))
    with pytest.raises(DecodeError):
        decode_body(Contribution, unchecked(Contribution(b"", (Settlement(name, (1,)),), 1, 1)))


@pytest.mark.parametrize("number", [-1, 2**53, 2**63, 2**64 - 1, 1.5, None, "1", True])
def test_counts_of_another_type_or_range_are_refused(number: object) -> None:
    with pytest.raises(DecodeError):
        decode(Kind.ECHO, msgpack.packb([1, ["echo", number]]))


def test_digests_of_another_length_are_refused() -> None:
    with pytest.raises(DecodeError):
        decode(Kind.STATUS, unchecked(Status(online=True, term=0, sample_count=1, model=b"short", size=1)))
    with pytest.raises(DecodeError):
        decode(Kind.CONTRIBUTION, unchecked(Part(1, 1, "", 0, 1, b"short", b"")))


def test_a_part_beyond_the_last_is_refused() -> None:
    with pytest.raises(DecodeError, match="part 3 of 3"):
        decode(Kind.CONTRIBUTION, msgpack.packb([1, ["part", 1, 1, "", 3, 3, bytes(16), b""]]))


def test_fields_appended_by_a_newer_program_are_ignored() -> None:
    assert decode(Kind.ECHO, msgpack.packb([1, ["echo", 7, "a field of tomorrow"]])) == Echo(7)


def test_fields_with_a_default_may_be_missing() -> None:
    status = decode(Kind.STATUS, msgpack.packb([1, ["status", True, 0, 10, b"modelmod", 5]]))
    assert status == Status(online=True, term=0, sample_count=10, model=b"modelmod", size=5)


def test_a_report_with_absurd_numbers_is_refused() -> None:
    report = msgpack.packb([1, ["telemetry", "", "", 1, float(np.nan), 0.5, 1024, 512]])
    with pytest.raises(DecodeError, match="cpu_ghz"):
        decode(Kind.TELEMETRY, report)
