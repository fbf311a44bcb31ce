"""Four bits a value, an index near its entropy: nothing is off by more than a step, and no code misleads a reader."""

from __future__ import annotations

import math
import struct

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofl_iot.errors import DecodeError
from ofl_iot.protocol.chunks import BYTES_PER_PARAMETER, Chunk, ChunkHead, split_update
from ofl_iot.protocol.codec import decode, encode
from ofl_iot.protocol.rice import MAX_BITS, best_bits, decode_gaps, encode_gaps
from ofl_iot.protocol.topics import Kind
from ofl_iot.protocol.values import check_values, count_values, decode_values, encode_values
from tests.protocol.samples import sparse_updates

HEAD = ChunkHead(1, b"8 bytes.", 100_000, 0, 1.0)


def drawn(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def table(*rows: tuple[int, float], count: int | None = None, values: bytes = b"") -> bytes:
    packed = b"".join(struct.pack("<Hf", *row) for row in rows)
    return struct.pack("<I", len(rows) if count is None else count) + packed + values


# --- values


@settings(max_examples=150)
@given(st.integers(0, 2**32 - 1), st.integers(1, 3000), st.sampled_from([0.0, 1e-30, 1e-6, 1.0, 1e15]), st.booleans())
def test_no_value_is_off_by_more_than_a_step(seed: int, count: int, size: float, at_random: bool) -> None:
    values = (size * drawn(seed).uniform(-1, 1, count)).astype(np.float32)
    dtype, coded = encode_values(values, "nibble", rng=drawn(seed) if at_random else None)
    check_values(dtype, coded)
    assert count_values(dtype, coded) == count
    read = decode_values(dtype, coded)
    for start in range(0, count, 1024):
        part = slice(start, start + 1024)
        step = max(np.abs(values[part]).max() / 7 * (1 + 2**-10), np.finfo(np.float32).tiny)
        assert np.abs(read[part] - values[part]).max() <= step * (1.0 if at_random else 0.5001)


def test_rounding_at_random_keeps_the_mean() -> None:
    values = np.array([1.0, 0.01, -0.03, 0.2], np.float32)
    rng = drawn()
    read = np.mean([decode_values(*encode_values(values, "nibble", rng=rng)) for _ in range(20_000)], axis=0)
    np.testing.assert_allclose(read, values, atol=0.003)
    (nearest,) = (decode_values(*encode_values(values, "nibble")),)
    assert nearest[1] == 0.0, "which rounding to the nearest does not"


def test_a_segment_ends_where_its_tensor_does() -> None:
    values = np.concatenate([np.full(5, 1e-4), np.full(1500, 300.0)]).astype(np.float32)
    (piece,) = split_update(HEAD, np.arange(1505), values, values, precision="nibble", bounds=np.array([0, 5]))
    np.testing.assert_allclose(piece.chunk.read_values(), values, rtol=1e-3)


@pytest.mark.parametrize(
    "coded",
    [
        b"",
        table(),
        table((1, 1.0)),
        table((2, 1.0), values=b"\x99\x99"),
        table((0, 1.0), (1, 1.0), values=b"\x09"),
        table((1, 1.0), count=2**32 - 1, values=b"\x09"),
        table((1025, 1.0), values=b"\x99" * 512 + b"\x09"),
        table((1, 0.0), values=b"\x09"),
        table((1, float("nan")), values=b"\x09"),
        table((1, 1e30), values=b"\x09"),
        table((1, 1.0), values=b"\x00"),
        table((2, 1.0), values=b"\x09"),
        table((1, 1.0), values=b"\x99"),
    ],
)
def test_a_table_that_does_not_fit_its_values_is_refused(coded: bytes) -> None:
    with pytest.raises(ValueError, match=r"segment|scale|table"):
        check_values("n", coded)
    check_values("n", table((1, 1.0), values=b"\x09"))


# --- positions


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=400))
def test_gaps_are_read_as_they_were_written(gaps: list[int]) -> None:
    coded = encode_gaps(np.array(gaps))
    assert decode_gaps(coded, len(gaps)).tolist() == gaps


@settings(max_examples=300)
@given(st.binary(max_size=60), st.integers(1, 100))
def test_random_bytes_are_gaps_or_refused(coded: bytes, count: int) -> None:
    try:
        gaps = decode_gaps(coded, count)
    except ValueError:
        return
    assert len(gaps) == count
    assert (gaps >= 0).all()


@pytest.mark.parametrize("share", [0.01, 0.05, 0.1, 0.3])
def test_an_index_takes_little_more_than_its_entropy(share: float) -> None:
    places = np.flatnonzero(drawn().random(200_000) < share)
    gaps = np.diff(places, prepend=-1) - 1
    bits = 8 * len(encode_gaps(gaps)) / len(gaps)
    entropy = -(share * math.log2(share) + (1 - share) * math.log2(1 - share)) / share
    assert bits < (1.03 if share < 0.2 else 1.13) * entropy
    best = min(8 * (len(gaps) * k + (gaps >> k).sum() + len(gaps)) / 8 / len(gaps) for k in range(MAX_BITS))
    assert bits <= 1.02 * best, f"k = {best_bits(gaps)}"


@pytest.mark.parametrize(
    "index",
    [b"", b"\x00", b"\xff" * 9, b"\x21" + bytes(40), b"\x00\x03\x00", b"\x00\x01", b"\x1f" + b"\xff" * 16 + b"\x07"],
)
def test_a_chunk_whose_gaps_do_not_fit_is_refused(index: bytes) -> None:
    (piece,) = split_update(HEAD, np.array([0, 300, 900]), np.ones(3, np.float32), np.ones(3), precision="nibble")
    assert piece.chunk.coding == "r"
    sound = encode(piece.chunk)
    wire = msgpack.unpackb(sound)
    wire[1][wire[1].index(piece.chunk.index)] = index
    with pytest.raises(DecodeError):
        decode(Kind.UPDATE, msgpack.packb(wire))
    decode(Kind.UPDATE, sound)


# --- chunks


@settings(max_examples=100)
@given(sparse_updates(), st.booleans())
def test_an_update_in_nibbles_comes_back_at_its_places(update: tuple, tensors: bool) -> None:
    size, places, values = update
    head = ChunkHead(1, b"8 bytes.", size, 0, 1.0)
    bounds = np.array([0, size // 3]) if tensors and size >= 3 else None
    pieces = split_update(
        head, places, values, np.abs(values), precision="nibble", target_bytes=300, bounds=bounds, rng=drawn()
    )
    found: dict[int, float] = {}
    for piece in pieces:
        chunk = decode(Kind.UPDATE, encode(piece.chunk))
        assert isinstance(chunk, Chunk)
        found.update(zip(chunk.read_indices().tolist(), chunk.read_values().tolist(), strict=True))
    assert sorted(found) == places.tolist()


def test_a_selected_parameter_takes_what_is_planned_with() -> None:
    rng = drawn()
    places = np.flatnonzero(rng.random(500_000) < 0.1)
    values = rng.normal(0, 0.01, len(places)).astype(np.float32)
    head = ChunkHead(1, b"8 bytes.", 500_000, 0, 1.0)
    pieces = split_update(head, places, values, np.abs(values), precision="nibble", target_bytes=32 * 1024, rng=rng)
    sent = sum(len(encode(piece.chunk)) for piece in pieces)
    assert sent / len(places) == pytest.approx(BYTES_PER_PARAMETER["nibble"], abs=0.02)
