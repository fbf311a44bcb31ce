"""Batches of blocks: small errors whatever is in a block, and nothing that a stranger can make of them does harm."""

from __future__ import annotations

from itertools import pairwise

import msgpack
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofl_iot.errors import DecodeError
from ofl_iot.protocol.block_batch import BlockBatch, encode_batches
from ofl_iot.protocol.codec import decode, encode
from ofl_iot.protocol.messages import Block, Blocks, Pull
from ofl_iot.protocol.topics import Kind
from ofl_iot.protocol.values import MAX_VALUE, Precision, encode_values, join_segments
from ofl_iot.roles.block_layout import BlockLayout


def packed(blocks: list[np.ndarray], precision: Precision) -> tuple[BlockBatch, ...]:
    lengths = np.array([len(block) for block in blocks])
    return encode_batches(np.arange(len(blocks)), np.ones(len(blocks)), lengths, np.concatenate(blocks), precision)


def unpacked(batches: tuple[BlockBatch, ...], lengths: list[int]) -> dict[int, tuple[str, np.ndarray]]:
    found: dict[int, tuple[str, np.ndarray]] = {}
    for batch in batches:
        index = batch.read_index()
        its = np.array(lengths)[index]
        ends = [0, *np.cumsum(its)]
        values = batch.read_values(its)
        assert len(values) == batch.count == ends[-1]
        found |= {int(i): (batch.dtype, values[a:b]) for i, (a, b) in zip(index, pairwise(ends), strict=True)}
    return found


@given(
    seed=st.integers(0, 2**32 - 1),
    lengths=st.lists(st.integers(1, 600), min_size=1, max_size=5),
    loud=st.lists(st.sampled_from([0.0, 1.0, 30.0, 1e4]), min_size=5, max_size=5),
    size=st.sampled_from([1e-30, 1e-12, 0.05, 1.0, 1e6]),
    precision=st.sampled_from(["byte", "half", "single"]),
)
def test_blocks_come_down_with_small_errors_whatever_is_in_them(
    seed: int, lengths: list[int], loud: list[float], size: float, precision: Precision
) -> None:
    rng = np.random.default_rng(seed)
    blocks = [rng.normal(0, size, length).astype(np.float32) for length in lengths]
    for block, factor in zip(blocks, loud, strict=False):
        block[0] = factor * size
    message = decode(Kind.BLOCKS, encode(Blocks(1, 1, (), True, packed(blocks, precision))))
    assert isinstance(message, Blocks)
    found = unpacked(message.batches, lengths)
    least_half = 2.0**-25
    for number, block in enumerate(blocks):
        deviation = np.sqrt(np.mean(np.square(block, dtype=np.float64)))
        error = np.abs(found[number][1] - block)
        assert np.all(error <= 0.051 * deviation + 2.0**-11 * np.abs(block) + least_half)


def test_a_loud_parameter_does_not_blur_its_neighbours_nor_other_blocks() -> None:
    quiet, loud, louder = (np.random.default_rng(seed).normal(0, 0.05, 1024).astype(np.float32) for seed in range(3))
    loud[7], louder[7] = 10.0, 1e6
    found = unpacked(packed([quiet, loud, louder], "byte"), [1024] * 3)
    assert [found[number][0] for number in range(3)] == ["b", "e", "f"]
    np.testing.assert_allclose(found[1][1], loud, rtol=2.0**-11, atol=2.0**-25)
    np.testing.assert_array_equal(found[2][1], louder)


@pytest.mark.parametrize(
    "values", [[0.0], [0.0] * 5, [1e-45], [-3.0], [MAX_VALUE, -MAX_VALUE], [MAX_VALUE, *[0.0] * 999]]
)
def test_odd_blocks_have_a_code(values: list[float]) -> None:
    block = np.array(values, np.float32)
    found = unpacked(packed([block, block], "byte"), [len(block)] * 2)
    np.testing.assert_allclose(found[1][1], block, rtol=0.01, atol=1e-37)


@given(seed=st.integers(0, 2**32 - 1), precision=st.sampled_from(["byte", "half", "single"]))
def test_a_block_alone_is_a_batch_of_one(seed: int, precision: Precision) -> None:
    values = np.random.default_rng(seed).normal(0, 1, 40).astype(np.float32)
    dtype, coded = encode_values(values, precision)
    batch = Block(0, 1.0, dtype, coded).as_batch()
    assert packed([values], precision) == (batch,)
    np.testing.assert_array_equal(batch.read_values(np.array([40])), Block(0, 1.0, dtype, coded).read_values())


SOUND = BlockBatch("b", b"\x01\0\0\0\x02\0\0\0", bytes(16), 2 * np.array([1], "<f4").tobytes(), b"\x01\x02\x03")
SEGMENTS = join_segments(np.ones(3, np.float32), np.array([1, 2]), np.ones(2, np.float32))
NAN4, NAN8 = np.array([np.nan], "<f4").tobytes(), np.array([np.nan], "<f8").tobytes()


@pytest.mark.parametrize(
    "change",
    [
        {"index": b""},
        {"index": b"\x01\0\0\0"},
        {"index": b"\x01\0\0\0\x02\0\0"},
        {"index": b"\x01\0\0\0\x01\0\0\0"},
        {"index": b"\x02\0\0\0\x01\0\0\0"},
        {"cumulative_change": bytes(8)},
        {"cumulative_change": bytes(17)},
        {"cumulative_change": bytes(8) + NAN8},
        {"cumulative_change": bytes(8) + np.array([-1.0], "<f8").tobytes()},
        {"cumulative_change": bytes(8) + np.array([np.inf], "<f8").tobytes()},
        {"scales": b""},
        {"scales": SOUND.scales[:4]},
        {"scales": SOUND.scales[:4] + NAN4},
        {"scales": SOUND.scales[:4] + bytes(4)},
        {"values": b""},
        {"values": b"\x01\x80"},
        {"dtype": "e"},
        {"dtype": "d"},
        {"dtype": "s", "scales": b""},
        {"dtype": "s"},
        {"dtype": "s", "scales": b"", "values": SEGMENTS[:-1]},
        {"dtype": "s", "scales": b"", "values": SEGMENTS + b"\x01"},
        {"dtype": "s", "scales": b"", "values": SEGMENTS[:-1] + b"\x80"},
        {"dtype": "e", "scales": b"", "values": b"\x00\x7e\x00\x00"},
        {"dtype": "e", "scales": b"", "values": b"\x00\x00\x00"},
        {"dtype": "f", "scales": b"", "values": np.array([1e16], "<f4").tobytes()},
        {"dtype": "f", "scales": b"", "values": NAN4},
    ],
)
def test_a_batch_that_cannot_be_trained_on_is_refused(change: dict[str, object]) -> None:
    fields = {**msgspec.structs.asdict(SOUND), **change}
    sound = encode(Blocks(1, 1, (), True, (SOUND,)))
    wire = msgpack.unpackb(sound)
    wire[1][5][0] = [fields[name] for name in SOUND.__struct_fields__]
    with pytest.raises(DecodeError):
        decode(Kind.BLOCKS, msgpack.packb(wire))
    decode(Kind.BLOCKS, sound)


def test_what_the_first_release_wrote_is_still_read() -> None:
    old_blocks = bytes.fromhex("920195a6626c6f636b73030b919402cb3fe0000000000000a165c402003cc3")
    assert decode(Kind.BLOCKS, old_blocks) == Blocks(3, 11, (Block(2, 0.5, "e", b"\x00\x3c"),), last=True)
    old_pull = bytes.fromhex("920194a470756c6c03c408000000000000f0bf10")
    assert decode(Kind.PULL, old_pull) == Pull(3, bytes.fromhex("000000000000f0bf"), 16, packed=False)
    later_pull = bytes.fromhex("920195a470756c6c03c408000000000000f0bf10c3")
    assert decode(Kind.PULL, later_pull) == Pull(3, bytes.fromhex("000000000000f0bf"), 16, packed=True)


@given(
    seed=st.integers(0, 2**32 - 1),
    tensors=st.lists(st.tuples(st.integers(1, 700), st.sampled_from([1e-6, 0.05, 1.0, 1e5])), min_size=1, max_size=8),
    precision=st.sampled_from(["byte", "half"]),
)
def test_no_tensor_blurs_another_on_its_way_down(
    seed: int, tensors: list[tuple[int, float]], precision: Precision
) -> None:
    """A raw-scale bias beside small weights: each tensor keeps its own error, at most a twentieth of its deviation."""
    rng = np.random.default_rng(seed)
    parts = [rng.normal(0, size, length).astype(np.float32) for length, size in tensors]
    model = np.concatenate(parts)
    ends = np.cumsum([len(part) for part in parts])
    layout = BlockLayout(len(model), 256, tuple(ends[:-1].tolist()))
    blocks = np.arange(layout.count)
    lengths = layout.lengths(blocks)
    batches = encode_batches(blocks, np.ones(len(blocks)), lengths, model, precision, cuts=layout.cuts(blocks))
    message = decode(Kind.BLOCKS, encode(Blocks(1, 1, (), True, batches)))
    assert isinstance(message, Blocks)
    came = np.full_like(model, np.nan)
    for batch in message.batches:
        layout.scatter(came, batch.read_index(), batch.read_values(lengths[batch.read_index()]))
    for part, got in zip(parts, np.split(came, ends[:-1]), strict=True):
        # A tensor may lie in several blocks: of each piece the largest deviation counts.
        deviation = np.abs(part).max() if len(part) < 8 else 4 * part.std()
        assert np.all(np.abs(got - part) <= 0.051 * deviation + 2.0**-11 * np.abs(part) + 2.0**-25)


def test_the_places_where_tensors_begin_within_blocks_are_found_whatever_is_asked_for() -> None:
    layout = BlockLayout(40, 8, (3, 8, 17, 18, 33, 39))
    for asked in ([0], [1], [2, 4], [0, 2, 4], [0, 1, 2, 3, 4]):
        blocks = np.array(asked)
        places = layout.gather(np.arange(40), blocks)
        wanted = [edge for edge in (3, 17, 18, 33, 39) if edge in places]
        assert places[layout.cuts(blocks)].tolist() == wanted


def test_many_small_tensors_come_down_as_halves() -> None:
    values = np.ones(256, np.float32)
    batches = encode_batches(np.arange(1), np.ones(1), np.array([256]), values, "byte", cuts=np.arange(4, 256, 4))
    assert [batch.dtype for batch in batches] == ["e"]
