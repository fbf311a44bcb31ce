"""Values of mixed scale survive as bytes: each segment has its own scale, and no table can mislead a reader."""

from __future__ import annotations

import struct

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofl_iot.jobs.rounding import RoundingWatch
from ofl_iot.protocol.chunks import Chunk, ChunkHead, split_update
from ofl_iot.protocol.codec import decode, encode
from ofl_iot.protocol.model_card import TensorCard
from ofl_iot.protocol.topics import Kind
from ofl_iot.protocol.values import (
    MAX_SEGMENT,
    check_values,
    count_values,
    decode_values,
    encode_values,
    segments_between,
)

SCALES = (1e-4, 3e2, 1.0)


def mixed(count: int, seed: int = 0) -> np.ndarray:
    """Three parts of very different size."""
    rng = np.random.default_rng(seed)
    return np.concatenate([scale * rng.normal(size=count) for scale in SCALES]).astype(np.float32)


def worst_error(values: np.ndarray, read: np.ndarray, count: int) -> float:
    parts = [slice(start, start + count) for start in range(0, 3 * count, count)]
    return max(float(np.linalg.norm(read[p] - values[p]) / np.linalg.norm(values[p])) for p in parts)


def table(*rows: tuple[int, float], count: int | None = None, values: bytes = b"") -> bytes:
    packed = b"".join(struct.pack("<Hf", *row) for row in rows)
    return struct.pack("<I", len(rows) if count is None else count) + packed + values


@pytest.mark.parametrize(
    "coded",
    [
        b"",
        b"\1\0",
        table(),
        table(values=b"\1"),
        table((1, 1.0)),
        table((2, 1.0), values=b"\1"),
        table((1, 1.0), values=b"\1\2"),
        table((0, 1.0), (1, 1.0), values=b"\1"),
        table((1, 1.0), count=2**32 - 1, values=b"\1"),
        table((1, 1.0), count=2, values=b"\1"),
        table((MAX_SEGMENT + 1, 1.0), values=bytes(MAX_SEGMENT + 1)),
        table((1, 0.0), values=b"\1"),
        table((1, -1.0), values=b"\1"),
        table((1, float("nan")), values=b"\1"),
        table((1, float("inf")), values=b"\1"),
        table((1, 1e30), values=b"\1"),
        table((1, 1.0), values=b"\x80"),
    ],
)
def test_a_table_that_does_not_fit_its_values_is_refused(coded: bytes) -> None:
    with pytest.raises(ValueError, match=r"segment|scale|table"):
        check_values("s", coded)


@given(st.binary(max_size=60))
def test_no_bytes_are_read_that_were_not_checked(coded: bytes) -> None:
    try:
        check_values("s", coded)
    except ValueError:
        return
    values = decode_values("s", coded)
    assert len(values) == count_values("s", coded) > 0
    assert np.isfinite(values).all()


def test_each_tensor_keeps_its_own_scale() -> None:
    values = mixed(500)
    bounds = np.array([0, 500, 1000])
    edges = segments_between(bounds, np.arange(1500))
    assert edges.tolist() == [0, 500, 1000]
    dtype, coded = encode_values(values, "byte", edges)
    check_values(dtype, coded)
    assert dtype == "s"
    assert len(coded) == 4 + 3 * 6 + 1500
    assert worst_error(values, decode_values(dtype, coded), 500) < 0.02
    assert worst_error(values, decode_values(*encode_values(values, "byte")), 500) == 1.0, "one scale ruins the small"


def test_one_segment_is_coded_as_before() -> None:
    values = mixed(3)[:3]
    assert encode_values(values, "byte", np.array([0])) == encode_values(values, "byte")
    assert encode_values(values, "half", np.array([0, 1])) == encode_values(values, "half")


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 9000), min_size=1, max_size=6),
    share=st.sampled_from([0.01, 0.3, 1.0]),
    seed=st.integers(0, 99),
)
def test_segments_cross_no_edge_and_are_never_too_long(sizes: list[int], share: float, seed: int) -> None:
    total = sum(sizes)
    indices = np.flatnonzero(np.random.default_rng(seed).random(total) < share)
    if not len(indices):
        return
    bounds = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    edges = segments_between(bounds, indices)
    assert edges[0] == 0
    ends = np.append(edges[1:], len(indices))
    assert ((ends - edges > 0) & (ends - edges <= MAX_SEGMENT)).all()
    tensors = np.searchsorted(bounds, indices, side="right")
    assert all(len(set(tensors[low:high])) == 1 for low, high in zip(edges, ends, strict=True))


def test_a_sparse_update_of_mixed_scale_survives_the_wire() -> None:
    values = mixed(2000)
    size = len(values)
    indices = np.sort(np.random.default_rng(1).permutation(size)[: size // 3])
    bounds = np.array([0, 2000, 4000])
    head = ChunkHead(term=3, model=b"\1" * 8, size=size, base_round=7, weight=1.0)
    pieces = split_update(
        head, indices, values[indices], np.abs(values[indices]), precision="byte", target_bytes=2048, bounds=bounds
    )
    assert len(pieces) > 1
    read = np.zeros(size, np.float32)
    for piece in pieces:
        chunk = decode(Kind.UPDATE, encode(msgspec.structs.replace(piece.chunk, seq=5)))
        assert isinstance(chunk, Chunk)
        read[chunk.read_indices()] = chunk.read_values()
    wanted = np.zeros(size, np.float32)
    wanted[indices] = values[indices]
    assert worst_error(wanted, read, 2000) < 0.02


def test_a_tensor_that_rounding_ruins_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    watch = RoundingWatch([TensorCard("norm.weight", (50,)), TensorCard("head.weight", (100,))])
    head = ChunkHead(term=1, model=b"\1" * 8, size=150, base_round=0, weight=1.0)
    indices = np.arange(150)
    values = np.concatenate([np.full(50, 1.0), np.full(100, 1e-4)]).astype(np.float32)
    ruined = split_update(head, indices, values, values)
    for _ in range(2):
        assert watch.check(indices, values, ruined) == {"head.weight": 1.0}
    assert caplog.text.count("tensor=head.weight") == 1
    assert watch.check(indices, values, split_update(head, indices, values, values, bounds=watch.bounds)) == {}
