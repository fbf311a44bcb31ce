"""What is stored of a device's model: little, enough, and what 0.1.0 stored is read."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofl_iot.errors import RefusedError
from ofl_iot.protocol.messages import Block
from ofl_iot.roles.block_layout import BlockLayout
from ofl_iot.roles.device.local_model import LocalModel
from ofl_iot.roles.device.model_store import BASE_EVERY, TABLE, ModelSnapshot, ModelStore, read_stored
from ofl_iot.roles.device.residual_code import decode_residual, encode_residual
from ofl_iot.roles.storage import Delete, Put, StoreOp
from ofl_iot.runtime.store import MemoryStore
from tests.roles.parties import BLOCK, MODEL, SIZE

LAYOUT = BlockLayout(SIZE, BLOCK)


def held_model(layout: BlockLayout, seed: int = 0) -> LocalModel:
    """A device that has seen all of a leader's model."""
    model, rng = LocalModel(layout, MODEL), np.random.default_rng(seed)
    for block in range(layout.count):
        place = layout.bounds(block)
        values = rng.normal(0, 1, place.stop - place.start).astype("<f4").tobytes()
        model.downloaded(Block(block, 1.0, "f", values).as_batch(), 3)
    return model


def size_of(ops: list[StoreOp]) -> int:
    return sum(len(op.value) for op in ops if isinstance(op, Put))


# --- the code of unreleased work


@settings(max_examples=100)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 700),
    st.sampled_from([0.0, 1e-44, 1e-12, 1e-3, 1.0, 1e14]),
    st.sampled_from([0.0, 1.0, 100.0]),
)
def test_work_is_stored_with_small_errors_whatever_it_is(seed: int, count: int, size: float, loud: float) -> None:
    values = np.random.default_rng(seed).normal(0, size, count).astype(np.float32)
    values[count // 2] = loud * size
    error = np.abs(decode_residual(encode_residual(values)) - values)
    for start in range(0, count, 256):
        block = values[start : start + 256].astype(np.float64)
        # the tail is a block with zeros behind it
        deviation = np.sqrt(np.square(block).sum() / 256)
        assert error[start : start + 256].max() <= 6.01 * deviation / 127 + 2.0**-126


@given(st.lists(st.integers(-127, 127), min_size=1, max_size=600))
def test_small_whole_numbers_are_stored_exactly(numbers: list[int]) -> None:
    values = np.array(numbers, np.float32)
    np.testing.assert_array_equal(decode_residual(encode_residual(values)), values)


@given(st.binary(max_size=60))
def test_what_is_no_code_is_refused(stored: bytes) -> None:
    with pytest.raises(RefusedError):
        decode_residual(stored)


# --- snapshots


def test_a_training_writes_about_a_byte_a_parameter() -> None:
    """0.1.0 wrote 8. All parameters change with each training, a tenth is released, half of the blocks come down."""
    layout, rng = BlockLayout(40_000, 256), np.random.default_rng(1)
    model = held_model(layout)
    store = ModelStore(model, segment=5000)
    written = [size_of(store.snapshot(1))]
    for seq in range(2, 2 + 2 * BASE_EVERY):
        model.trained(model.local, model.local + rng.normal(0, 0.01, layout.size).astype(np.float32))
        model.base[rng.random(layout.size) < 0.1] += 0.01
        model.base[: layout.size // 2] += 0.001
        written.append(size_of(store.snapshot(seq)))
    assert written[0] < 5.3 * layout.size
    assert np.mean(written[1:]) < 1.35 * layout.size
    assert max(written[1:]) < 5.3 * layout.size


def test_the_last_snapshot_is_up_to_date() -> None:
    model, disk = held_model(LAYOUT), MemoryStore()
    store = ModelStore(model)
    disk.apply(store.snapshot(1))
    model.base += 1
    model.local += 2
    disk.apply(store.snapshot(2))
    assert not np.array_equal(stored_base(disk), model.base)
    disk.apply(store.snapshot(3, whole=True))
    np.testing.assert_array_equal(stored_base(disk), model.base)


def stored_base(disk: MemoryStore) -> np.ndarray:
    found = read_stored(disk.load())
    assert found is not None
    return found.base


def test_what_did_not_change_is_not_written_again() -> None:
    layout = BlockLayout(40_000, 256)
    model = held_model(layout)
    store = ModelStore(model, segment=10_000)
    store.snapshot(1)
    for seq in range(2, 40):
        assert size_of(store.snapshot(seq)) < 300
    model.local[12_000] += 1.0
    assert {op.key for op in store.snapshot(40) if isinstance(op, Put)} == {"head", "unreleased 1"}


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from(["train", "release", "download", "snapshot", "restart"]), max_size=60), st.integers(0, 9)
)
def test_unreleased_work_survives_whatever_is_written_when(story: list[str], seed: int) -> None:
    """Of the leader's model an older one may come back, of unreleased work the one of the last snapshot."""
    rng, disk = np.random.default_rng(seed), MemoryStore()
    model = LocalModel(LAYOUT, MODEL)
    store = ModelStore(model, segment=5)
    stored, held = model.unreleased, model.held.copy()
    for what in story:
        if what == "train":
            model.trained(model.local, model.local + rng.integers(-2, 3, SIZE).astype(np.float32))
        elif what == "release":
            model.base[rng.integers(SIZE)] += 1.0
        elif what == "download":
            block = int(rng.integers(LAYOUT.count))
            model.downloaded(Block(block, 1.0, "f", np.full(BLOCK, rng.integers(1, 9), "<f4").tobytes()).as_batch(), 1)
        elif what == "snapshot":
            disk.apply(store.snapshot(1))
            stored, held = model.unreleased, model.held.copy()
        else:
            model = LocalModel(LAYOUT, MODEL)
            store = ModelStore(model, segment=5)
            store.restore(disk.load())
            np.testing.assert_array_equal(model.unreleased, stored)
            np.testing.assert_array_equal(model.held, held)
            for block in np.flatnonzero(held):  # a block that was seen is not the nothing it was before
                assert model.base[LAYOUT.bounds(int(block))].any() or model.unreleased.any()


def test_what_the_first_release_stored_is_read_and_replaced() -> None:
    old, disk = held_model(LAYOUT), MemoryStore()
    old.trained(old.local, old.local + 1)
    snapshot = ModelSnapshot(old.local.tobytes(), old.base.tobytes(), old.held.tobytes(), 3, 17, MODEL)
    disk.apply([Put("device.state", "model", msgspec.msgpack.encode(snapshot))])
    model = LocalModel(LAYOUT, MODEL)
    store = ModelStore(model)
    assert store.restore(disk.load()) == 17
    np.testing.assert_array_equal(model.local, old.local)
    np.testing.assert_array_equal(model.synced, old.base)
    assert (model.complete, model.round_no) == (True, 3)
    ops = store.snapshot(18)
    assert Delete("device.state", "model") in ops
    disk.apply(ops)
    again = LocalModel(LAYOUT, MODEL)
    assert ModelStore(again).restore(disk.load()) == 18
    np.testing.assert_array_equal(again.base, old.base)
    assert "device.state" not in disk.load()


def test_nothing_stored_is_no_model() -> None:
    assert ModelStore(LocalModel(LAYOUT, MODEL)).restore({}) is None


def test_a_model_of_another_kind_is_refused_and_changes_nothing() -> None:
    disk = MemoryStore()
    disk.apply(ModelStore(held_model(LAYOUT)).snapshot(1))
    for layout, digest, reason in ((BlockLayout(8, BLOCK), MODEL, "shape"), (LAYOUT, b"othermod", "another one")):
        model = LocalModel(layout, digest)
        with pytest.raises(RefusedError, match=reason):
            ModelStore(model).restore(disk.load())
        assert not model.base.any()
    for key in ("base 0", "unreleased 0"):
        broken = {TABLE: {name: row for name, row in disk.load()[TABLE].items() if name != key}}
        model = LocalModel(LAYOUT, MODEL)
        with pytest.raises(RefusedError):
            ModelStore(model).restore(broken)
        assert not model.held.any()
