"""Chunks: any of them, in any order, any subset, is a part of the update and nothing else."""

from __future__ import annotations

import itertools
import struct
import tracemalloc
from collections.abc import Iterable
from typing import get_args

import msgpack
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofl_iot.errors import DecodeError
from ofl_iot.protocol.chunks import (
    BYTES_PER_PARAMETER,
    MAX_MODEL_SIZE,
    Chunk,
    ChunkHead,
    Piece,
    split_update,
)
from ofl_iot.protocol.codec import decode, encode
from ofl_iot.protocol.topics import Kind
from ofl_iot.protocol.values import MAX_VALUE, Precision
from tests.protocol.samples import precisions, sparse_updates

HALF_STEP = 2.0**-11
"""Largest relative error of rounding to float16's 11 significant bits."""
LEAST_HALF = 2.0**-25
"""Largest absolute error below float16's normal range."""
LEAST_SCALE = 2.0**-126
"""Float32's least normal number."""
SCALE_ROUNDING = 1 + 2.0**-10 + 1e-4
"""A scale has 11 significant bits; each product and quotient of 127 of them is rounded to 24."""


def head(size: int) -> ChunkHead:
    return ChunkHead(term=1, model=b"12345678", size=size, base_round=0, weight=1.0)


def split(
    size: int, places: np.ndarray, values: np.ndarray, *, precision: Precision = "single", target_bytes: int = 200
) -> list[Piece]:
    return split_update(head(size), places, values, np.abs(values), precision=precision, target_bytes=target_bytes)


def joined(chunks: Iterable[Chunk]) -> tuple[np.ndarray, np.ndarray]:
    """The sparse update that chunks of one release hold together."""
    parts = sorted(chunks, key=lambda chunk: chunk.start)
    places = [chunk.read_indices() for chunk in parts]
    return np.concatenate([[], *places]), np.concatenate([[], *(chunk.read_values() for chunk in parts)])


# --- splitting and joining


@settings(max_examples=150)
@given(sparse_updates(), st.randoms(use_true_random=False))
def test_joined_in_any_order_the_chunks_are_the_update(update: tuple, chance: object) -> None:
    size, places, values = update
    chunks = [piece.chunk for piece in split(size, places, values)]
    chance.shuffle(chunks)  # type: ignore[attr-defined]
    joined_places, joined_values = joined(chunks)
    np.testing.assert_array_equal(joined_places, places)
    np.testing.assert_array_equal(joined_values, values)


@settings(max_examples=100)
@given(sparse_updates(), st.data())
def test_any_subset_of_the_chunks_is_a_part_of_the_update(update: tuple, data: st.DataObject) -> None:
    size, places, values = update
    whole = dict(zip(places.tolist(), values.tolist(), strict=True))
    chunks = [piece.chunk for piece in split(size, places, values)]
    subset = [chunk for chunk in chunks if data.draw(st.booleans())]
    joined_places, joined_values = joined(subset)
    assert len(joined_places) == sum(chunk.count for chunk in subset)
    assert all(whole[p] == v for p, v in zip(joined_places.tolist(), joined_values.tolist(), strict=True))


@settings(max_examples=100)
@given(sparse_updates(), precisions, st.randoms(use_true_random=False))
def test_merged_in_any_order_the_chunks_do_what_they_hold_together(
    update: tuple, precision: Precision, chance: object
) -> None:
    size, places, values = update
    chunks = [piece.chunk for piece in split(size, places, values, precision=precision)]
    _, values = joined(chunks)
    chance.shuffle(chunks)  # type: ignore[attr-defined]
    model, expected = np.ones(size, np.float32), np.ones(size, np.float32)
    for chunk in chunks:
        model[chunk.read_indices()] += np.float32(0.5) * chunk.read_values()
    expected[places] += np.float32(0.5) * values
    np.testing.assert_array_equal(model, expected)


@settings(max_examples=100)
@given(sparse_updates(), precisions)
def test_chunks_are_numbered_from_one_the_most_useful_first(update: tuple, precision: Precision) -> None:
    size, places, values = update
    pieces = split(size, places, values, precision=precision)
    assert [piece.chunk.seq for piece in pieces] == list(range(1, len(pieces) + 1))
    assert all(a.utility >= b.utility for a, b in itertools.pairwise(pieces))
    assert all(decode(Kind.UPDATE, encode(piece.chunk)) == piece.chunk for piece in pieces)


@settings(max_examples=100)
@given(sparse_updates(max_value=1e3))
def test_half_precision_rounds_each_value_by_at_most_half_a_step(update: tuple) -> None:
    size, places, values = update
    _, rounded = joined(piece.chunk for piece in split(size, places, values, precision="half"))
    assert np.all(np.abs(rounded - values) <= np.maximum(HALF_STEP * np.abs(values), LEAST_HALF))


def test_values_beyond_float16_make_the_chunk_float32() -> None:
    values = np.array([1.0, 65504.0, -65505.0], np.float32)
    (piece,) = split(10, np.array([1, 2, 3]), values, precision="half")
    assert piece.chunk.dtype == "f"
    np.testing.assert_array_equal(piece.chunk.read_values(), values)
    (largest,) = split(10, np.array([1, 2]), np.array([1.0, -65504.0], np.float32), precision="half")
    assert largest.chunk.dtype == "e"


@settings(max_examples=150)
@given(sparse_updates(max_value=MAX_VALUE))
def test_a_byte_rounds_each_value_by_at_most_half_a_127th_of_the_chunks_largest(update: tuple) -> None:
    size, places, values = update
    for piece in split(size, places, values, precision="byte"):
        chunk = piece.chunk
        exact = values[np.searchsorted(places, chunk.read_indices())].astype(np.float64)
        scale = max(np.abs(exact).max() / 127, LEAST_SCALE)
        assert chunk.dtype == "b"
        assert len(chunk.values) == 4 + chunk.count
        assert np.all(np.abs(chunk.read_values() - exact) <= scale * SCALE_ROUNDING / 2)


def test_byte_values_are_rounded_to_the_nearest_and_the_largest_is_kept() -> None:
    values = np.array([127.0, -126.6, 0.4, -0.6, 0.0], np.float32)
    (piece,) = split(10, np.arange(5), values, precision="byte")
    np.testing.assert_array_equal(piece.chunk.read_values(), [127, -127, 0, -1, 0])


@given(st.floats(2.0**-100, 2.0**40, width=32))
def test_the_scale_tells_no_more_of_the_largest_value_than_float16_would(largest: float) -> None:
    (piece,) = split(10, np.array([3]), np.array([largest], np.float32), precision="byte")
    (bits,) = struct.unpack("<I", piece.chunk.values[:4])
    assert bits % 2**13 == 0


@pytest.mark.parametrize("value", [0.0, 1.0, -0.3, 1e-45, 1e-38, -1e-30, 65504.0, 7e4, MAX_VALUE, -MAX_VALUE])
@pytest.mark.parametrize("count", [1, 3])
def test_zeros_single_values_and_values_at_the_ends_of_the_range_fit_into_bytes(value: float, count: int) -> None:
    values = np.full(count, value, np.float32)
    (piece,) = split(10, np.arange(count), values, precision="byte")
    assert decode(Kind.UPDATE, encode(piece.chunk)) == piece.chunk
    np.testing.assert_allclose(piece.chunk.read_values(), values, rtol=2.0**-10, atol=LEAST_SCALE)


@pytest.mark.parametrize(
    ("places", "coding"),
    [([4], "d"), (range(100), "d"), ([3, 900], "g"), (range(0, 1000, 5), "b"), ([0, *range(500, 999, 7)], "g")],
)
def test_one_some_or_all_parameters_are_coded_the_shortest_way(places: object, coding: str) -> None:
    at = np.array(list(places))  # type: ignore[call-overload]
    (piece,) = split(1000, at, np.ones(len(at), np.float32), target_bytes=10**6)
    assert piece.chunk.coding == coding
    np.testing.assert_array_equal(piece.chunk.read_indices(), at)


def gap_bytes(offsets: np.ndarray) -> int:
    gaps = np.diff(offsets, prepend=-1) - 1
    return int((gaps // 255 + 1).sum())


@settings(max_examples=100)
@given(sparse_updates())
def test_the_index_is_the_smallest_of_the_three(update: tuple) -> None:
    size, places, values = update
    for piece in split(size, places, values):
        chunk = piece.chunk
        sizes = {"b": (chunk.span + 7) // 8, "g": gap_bytes(chunk.read_indices() - chunk.start)}
        if chunk.count == chunk.span:
            sizes["d"] = 0
        assert len(chunk.index) == sizes[chunk.coding] == min(sizes.values())


def test_gaps_of_any_length_survive() -> None:
    places = np.cumsum([0, 1, 254, 255, 256, 257, 510, 511, 512, 100_000])
    (piece,) = split(int(places[-1]) + 1, places, np.ones(len(places), np.float32))
    assert piece.chunk.coding == "g"
    np.testing.assert_array_equal(piece.chunk.read_indices(), places)


def test_an_empty_update_has_no_chunks() -> None:
    assert split(10, np.empty(0, np.int64), np.empty(0, np.float32)) == []


@pytest.mark.parametrize("precision", get_args(Precision))
def test_at_gamma_one_tenth_a_selected_parameter_takes_what_is_planned_with(precision: Precision) -> None:
    size, rng = 1_000_000, np.random.default_rng(0)
    places = np.sort(rng.choice(size, size // 10, replace=False))
    values = rng.normal(0, 0.01, len(places)).astype(np.float32)
    payloads = [
        encode(piece.chunk) for piece in split(size, places, values, precision=precision, target_bytes=32 * 1024)
    ]
    assert sum(map(len, payloads)) / len(places) == pytest.approx(BYTES_PER_PARAMETER[precision], abs=0.05)
    assert all(16 * 1024 <= len(payload) <= 64 * 1024 for payload in payloads)


@pytest.mark.parametrize(
    ("places", "values", "complaint"),
    [
        ([1, 2], [1.0], "2 indices but 1 values"),
        ([2, 1], [1.0, 1.0], "ascend"),
        ([1, 1], [1.0, 1.0], "ascend"),
        ([-1, 1], [1.0, 1.0], "ascend"),
        ([1, 10], [1.0, 1.0], "ascend"),
        ([1], [np.nan], "not finite"),
        ([1], [-np.inf], "not finite"),
        ([1], [1e16], "absurdly large"),
    ],
)
def test_an_update_that_fits_no_model_is_not_cut(places: list[int], values: list[float], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        split(10, np.array(places), np.array(values, np.float32))


# --- hostile chunks

PLAIN: dict[str, object] = {
    "term": 1,
    "seq": 1,
    "model": b"12345678",
    "size": 1000,
    "base_round": 0,
    "weight": 1.0,
    "start": 0,
    "span": 1000,
    "coding": "g",
    "index": b"\x05\x00",
    "dtype": "e",
    "values": b"\x00\x3c\x00\x3c",
    "update_no": 0,
}


def read(**changes: object) -> Chunk:
    payload = msgpack.packb([1, ["chunk", *{**PLAIN, **changes}.values()]])
    tracemalloc.start()
    try:
        chunk = decode(Kind.UPDATE, payload)
        assert isinstance(chunk, Chunk)
        return chunk
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 20 * len(payload) + 100_000, "a hostile chunk takes memory out of proportion"


def test_the_plain_chunk_is_valid() -> None:
    np.testing.assert_array_equal(read().read_indices(), [5, 6])


@pytest.mark.parametrize(
    "changes",
    [
        {"span": 1001},
        {"start": 1},
        {"start": 2**53},
        {"size": 0},
        {"size": MAX_MODEL_SIZE + 1},
        {"span": 0},
        {"seq": 0},
        {"seq": 2**62},
        {"model": b"1234567"},
        {"weight": float("nan")},
        {"weight": 0.0},
        {"weight": float("inf")},
        {"coding": "x"},
        {"coding": "g\n"},
        {"coding": "gg"},
        {"dtype": "d"},
        {"dtype": "e\n"},
        {"values": b""},
        {"values": b"\x00\x3c\x00"},
        {"values": b"\x00\x3c"},
        {"values": b"\x00\x7c\x00\x3c"},
        {"values": b"\x00\x7e\x00\x3c"},
        {"dtype": "f", "values": np.array([1.0, 2 * MAX_VALUE], "<f4").tobytes()},
        {"index": b""},
        {"index": b"\x05"},
        {"index": b"\x05\x00\x00"},
        {"index": b"\x05\x00\xff"},
        {"index": b"\xff\xff"},
        {"index": b"\xff\xff\xff\xff\x05\x00"},
        {"span": 6},
        {"span": 1000, "size": MAX_MODEL_SIZE, "coding": "d", "index": b""},
        {"span": MAX_MODEL_SIZE, "size": MAX_MODEL_SIZE, "coding": "d", "index": b""},
        {"span": MAX_MODEL_SIZE, "size": MAX_MODEL_SIZE, "coding": "b", "index": b"\x03"},
        {"span": 2, "coding": "d", "index": b"\x01"},
        {"span": 16, "coding": "b", "index": b"\x03"},
        {"span": 12, "coding": "b", "index": b"\x01\x10"},
        {"span": 12, "coding": "b", "index": b"\x01\x00"},
        {"coding": "b", "index": b""},
        {"index": bytes(256 * 1024 + 1), "values": b"\x00\x3c" * 4},
        {"index": b"\x00" * 8, "values": b"\x00\x3c" * (128 * 1024 + 1)},
    ],
)
def test_a_chunk_that_cannot_be_merged_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(DecodeError):
        read(**changes)


def byte_values(scale: float, levels: bytes = b"\x7f\x81") -> bytes:
    return struct.pack("<f", scale) + levels


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        *((byte_values(scale), "the scale is") for scale in (0.0, -0.0, -1.0, 1e-39, 1e13, -1e13, 3e38)),
        *((byte_values(scale), "the scale is") for scale in (float("nan"), float("inf"), float("-inf"))),
        (byte_values(1.0, b"\x80\x01"), "-128 scales"),
        (byte_values(1.0, b"\x01\x80"), "-128 scales"),
        (byte_values(1.0, b""), "no value behind the scale"),
        (byte_values(1.0)[:3], "no value behind the scale"),
        (byte_values(1.0, b"\x01"), "the values are 1"),
        (byte_values(1.0, b"\x01\x02\x03"), "the values are 3"),
    ],
)
def test_bytes_that_are_no_values_are_refused_with_the_reason(values: bytes, complaint: str) -> None:
    with pytest.raises(DecodeError, match=complaint):
        read(dtype="b", values=values)


@settings(max_examples=200)
@given(st.binary(min_size=6, max_size=6))
def test_whatever_bytes_are_accepted_are_bounded_values(values: bytes) -> None:
    try:
        chunk = read(dtype="b", values=values)
    except DecodeError:
        return
    assert np.all(np.abs(chunk.read_values()) <= MAX_VALUE)


def test_a_scale_within_bounds_is_accepted_though_no_device_would_choose_it() -> None:
    np.testing.assert_array_equal(read(dtype="b", values=byte_values(0.5, b"\x02\xfe")).read_values(), [1, -1])
    np.testing.assert_array_equal(read(dtype="b", values=byte_values(0.5, b"\x00\x00")).read_values(), [0, 0])


def test_a_huge_range_with_few_gaps_is_read_without_large_allocation() -> None:
    chunk = read(size=MAX_MODEL_SIZE, span=MAX_MODEL_SIZE)
    np.testing.assert_array_equal(chunk.read_indices(), [5, 6])


@settings(max_examples=200)
@given(st.binary(max_size=40), st.integers(1, 400), st.sampled_from("dbg"), st.integers(1, 60))
def test_whatever_index_is_accepted_names_ascending_places_in_the_range(
    index: bytes, span: int, coding: str, count: int
) -> None:
    try:
        chunk = read(index=index, span=span, coding=coding, values=b"\x00\x3c" * count)
    except DecodeError:
        return
    places = chunk.read_indices()
    assert len(places) == count
    assert places[0] >= 0
    assert places[-1] < span
    assert np.all(np.diff(places) > 0)


def test_a_resend_differs_in_nothing_but_its_number() -> None:
    (piece,) = split(10, np.array([1, 4]), np.ones(2, np.float32))
    renumbered = msgspec.structs.replace(piece.chunk, seq=9)
    np.testing.assert_array_equal(renumbered.read_indices(), piece.chunk.read_indices())
