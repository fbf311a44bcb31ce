"""The local model: unreleased work is what was trained and has not left, whatever else happens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofl_iot.errors import RefusedError
from ofl_iot.protocol.block_batch import BlockBatch
from ofl_iot.protocol.chunks import ChunkHead, split_update
from ofl_iot.protocol.messages import Block
from ofl_iot.protocol.values import Precision
from ofl_iot.roles.block_layout import BlockLayout
from ofl_iot.roles.device.local_model import LocalModel
from ofl_iot.roles.device.model_store import ModelStore
from ofl_iot.runtime.store import MemoryStore
from tests.protocol.samples import precisions
from tests.roles.parties import BLOCK, MODEL, SIZE, chunk_of

LAYOUT = BlockLayout(SIZE, BLOCK)
whole = st.integers(-2, 2).map(float)
vectors = st.lists(whole, min_size=SIZE, max_size=SIZE).map(lambda each: np.array(each, np.float32))
steps = st.one_of(
    st.tuples(st.just("train"), vectors),
    st.tuples(st.just("release"), st.dictionaries(st.integers(0, SIZE - 1), whole, min_size=1, max_size=4)),
    st.tuples(st.just("download"), st.integers(0, SIZE // BLOCK - 1), vectors),
    st.tuples(st.just("restart"), st.none()),
)


def restarted(model: LocalModel, next_seq: int) -> tuple[LocalModel, int | None]:
    """The model in another process that starts from a snapshot."""
    store, again = MemoryStore(), LocalModel(LAYOUT, MODEL)
    store.apply(ModelStore(model, segment=5).snapshot(next_seq))
    return again, ModelStore(again).restore(store.load())


@settings(max_examples=150)
@given(st.lists(steps, max_size=25), st.booleans())
def test_trained_work_is_released_or_unreleased_never_lost(story: list[tuple], residual_apart: bool) -> None:
    """Small whole numbers are exact in float32 and in what is stored, so the law holds to the last bit."""
    model = LocalModel(LAYOUT, MODEL, residual_apart=residual_apart)
    trained, released = np.zeros(SIZE, np.float32), np.zeros(SIZE, np.float32)
    seq = 1
    for what, *with_ in story:
        if what == "train":
            start = model.start_training()
            model.trained(start, start + with_[0])
            trained += with_[0]
        elif what == "release":
            chunk = chunk_of(seq, with_[0])
            model.released(chunk, perturbed=False)
            released[chunk.read_indices()] += chunk.read_values()
            seq += 1
        elif what == "download":
            block, values = with_
            model.downloaded(Block(block, 1.0, "f", values[LAYOUT.bounds(block)].astype("<f4").tobytes()).as_batch(), 3)
            np.testing.assert_array_equal(model.base[LAYOUT.bounds(block)], values[LAYOUT.bounds(block)])
        else:
            model, next_seq = restarted(model, seq)
            assert next_seq == seq
        np.testing.assert_array_equal(model.unreleased, trained - released)


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1), precisions, st.sampled_from([1e-3, 1.0, 1e5]))
def test_what_rounding_takes_from_a_release_leaves_with_a_later_one(
    seed: int, precision: Precision, size: float
) -> None:
    """trained = released + unreleased, up to the rounding of float32."""
    rng, model = np.random.default_rng(seed), LocalModel(LAYOUT, MODEL)
    trained, released, largest = np.zeros(SIZE), np.zeros(SIZE), 0.0
    head = ChunkHead(term=1, model=MODEL, size=SIZE, base_round=0, weight=1.0)
    for _ in range(10):
        change = (size * rng.standard_normal(SIZE)).astype(np.float32)
        model.trained(model.local, model.local + change)
        trained += change
        places = np.sort(rng.choice(SIZE, rng.integers(1, SIZE), replace=False))
        values = model.unreleased[places]
        (piece,) = split_update(head, places, values, np.abs(values), precision=precision)
        model.released(piece.chunk, perturbed=False)
        released[places] += piece.chunk.read_values()
        largest = max(largest, float(np.abs(model.local).max()), float(np.abs(model.base).max()))
        np.testing.assert_allclose(released + model.unreleased, trained, rtol=0, atol=1e-5 * largest)


def test_a_value_below_half_a_step_waits_until_it_is_large_enough_to_leave() -> None:
    model = LocalModel(LAYOUT, MODEL)
    head = ChunkHead(term=1, model=MODEL, size=SIZE, base_round=0, weight=1.0)
    arrived = []
    for _ in range(6):
        change = np.zeros(SIZE, np.float32)
        change[:2] = 127.0, 0.25
        model.trained(model.local, model.local + change)
        (piece,) = split_update(head, np.array([0, 1]), model.unreleased[:2], np.ones(2, np.float32), precision="byte")
        model.released(piece.chunk, perturbed=False)
        arrived.append(float(piece.chunk.read_values()[1]))
    assert arrived == [0, 0, 1, 0, 0, 0]
    assert model.unreleased[1] == 0.5


def test_training_on_an_older_copy_keeps_what_was_downloaded_meanwhile() -> None:
    model = LocalModel(LAYOUT, MODEL)
    start = model.local.copy()
    model.downloaded(Block(0, 1.0, "f", np.full(BLOCK, 5, "<f4").tobytes()).as_batch(), 1)
    model.trained(start, start + 1)
    np.testing.assert_array_equal(model.local[:BLOCK], np.full(BLOCK, 6))
    np.testing.assert_array_equal(model.unreleased, np.ones(SIZE))


def test_a_model_is_complete_when_every_block_was_seen_and_stays_so_for_a_new_leader() -> None:
    model = LocalModel(LAYOUT, MODEL)
    for block in range(LAYOUT.count):
        assert not model.complete
        model.downloaded(Block(block, 2.0, "f", np.zeros(BLOCK, "<f4").tobytes()).as_batch(), 1)
    assert model.complete
    model.new_leader()
    assert model.complete
    assert (model.seen < 0).all()
    restored, _ = restarted(model, 1)
    assert restored.complete
    assert (restored.seen < 0).all()


def test_the_two_last_syncs_are_remembered() -> None:
    model = LocalModel(LAYOUT, MODEL)
    for value in (1, 2, 3):
        model.downloaded(Block(1, 1.0, "e", np.full(BLOCK, value, "<f2").tobytes()).as_batch(), 1)
    assert model.synced[BLOCK] == 3
    assert model.synced_before[BLOCK] == 2


def test_the_distance_is_relative_to_the_synced_model() -> None:
    model = LocalModel(LAYOUT, MODEL)
    assert model.distance() == 0.0
    for block in range(LAYOUT.count):
        model.downloaded(Block(block, 1.0, "f", np.full(BLOCK, 2, "<f4").tobytes()).as_batch(), 1)
    model.trained(model.local, model.local + 1)
    assert model.distance() == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("block", "complaint"),
    [
        (Block(3, 1.0, "f", bytes(16)), "block 3 of a model of 3"),
        (Block(0, 1.0, "f", bytes(12)), "3 values, not 4"),
    ],
)
def test_a_block_that_does_not_fit_is_refused_and_changes_nothing(block: Block, complaint: str) -> None:
    model = LocalModel(LAYOUT, MODEL)
    with pytest.raises(RefusedError, match=complaint):
        model.downloaded(block.as_batch(), 1)
    assert not model.local.any()
    assert not model.held.any()


@given(st.integers(1, 100), st.integers(1, 30))
def test_blocks_cover_the_model_once(size: int, block_size: int) -> None:
    layout = BlockLayout(size, block_size)
    covered = [place for block in range(layout.count) for place in range(size)[layout.bounds(block)]]
    assert covered == list(range(size))


@given(st.integers(1, 100), st.integers(1, 30), st.integers(0, 2**32 - 1))
def test_gathering_and_scattering_agree_with_the_bounds_of_each_block(size: int, block_size: int, seed: int) -> None:
    layout, rng = BlockLayout(size, block_size), np.random.default_rng(seed)
    blocks = np.flatnonzero(rng.random(layout.count) < 0.5)
    vector = rng.random(size)
    one_by_one = [vector[layout.bounds(int(block))] for block in blocks]
    np.testing.assert_array_equal(layout.gather(vector, blocks), np.concatenate([np.empty(0), *one_by_one]))
    assert layout.lengths(blocks).tolist() == [len(block) for block in one_by_one]
    copy = np.where(np.isin(np.arange(size) // block_size, blocks), -1.0, vector)
    layout.scatter(copy, blocks, layout.gather(vector, blocks))
    np.testing.assert_array_equal(copy, vector)


def test_noise_in_a_release_is_not_taken_back_by_the_next() -> None:
    model = LocalModel(LAYOUT, MODEL)
    model.trained(model.local, np.full(LAYOUT.size, 1.0, np.float32))
    head = ChunkHead(term=1, model=MODEL, size=LAYOUT.size, base_round=0, weight=1.0)
    noisy = np.full(2, 5.0, np.float32)
    (piece,) = split_update(head, np.array([0, 1]), noisy, noisy)
    model.released(piece.chunk, perturbed=True)
    assert not model.unreleased[:2].any()
    assert (model.unreleased[2:] == 1.0).all()


def blocks_of(value: float) -> BlockBatch:
    return Block(0, 1.0, "f", np.full(BLOCK, value, "<f4").tobytes()).as_batch()


def test_with_the_residual_apart_training_starts_from_the_leaders_model() -> None:
    model = LocalModel(LAYOUT, MODEL, residual_apart=True)
    start = model.start_training()
    model.trained(start, start + 1)
    model.released(chunk_of(1, {0: 1.0}), perturbed=False)
    model.downloaded(blocks_of(5), 1)
    np.testing.assert_array_equal(model.start_training()[:BLOCK], np.full(BLOCK, 5))
    assert model.unreleased[0] == 0
    np.testing.assert_array_equal(model.unreleased[1:], np.ones(SIZE - 1))


def test_with_the_residual_apart_a_device_that_hears_nothing_goes_on_from_its_own_work() -> None:
    model = LocalModel(LAYOUT, MODEL, residual_apart=True)
    for done in range(3):
        start = model.start_training()
        np.testing.assert_array_equal(start, np.full(SIZE, done))
        model.trained(start, start + 1)
    np.testing.assert_array_equal(model.unreleased, np.full(SIZE, 3))


def test_with_the_residual_apart_what_was_heard_during_a_training_is_the_next_start() -> None:
    model = LocalModel(LAYOUT, MODEL, residual_apart=True)
    start = model.start_training()
    model.downloaded(blocks_of(5), 1)
    model.trained(start, start + 1)
    np.testing.assert_array_equal(model.start_training()[:BLOCK], np.full(BLOCK, 5))


def test_dropped_work_is_in_no_later_start_even_if_it_was_dropped_during_a_training() -> None:
    model = LocalModel(LAYOUT, MODEL, residual_apart=True)
    start = model.start_training()
    model.trained(start, start + 1)
    start = model.start_training()
    model.discard_work()
    assert not model.start_training().any()
    model.discard_work()
    model.trained(start, start + 1)
    assert not model.start_training().any()


def test_a_start_is_a_copy() -> None:
    for residual_apart in (False, True):
        model = LocalModel(LAYOUT, MODEL, residual_apart=residual_apart)
        model.start_training()[:] = 7
        assert not model.start_training().any()


def test_with_the_residual_apart_the_model_for_own_use_is_the_leaders_as_last_heard() -> None:
    model = LocalModel(LAYOUT, MODEL, residual_apart=True)
    model.downloaded(blocks_of(5), 1)
    start = model.start_training()
    model.trained(start, start + 1)
    model.released(chunk_of(1, {0: 1.0}), perturbed=False)
    np.testing.assert_array_equal(model.own[:BLOCK], np.full(BLOCK, 5))
    assert not model.own[BLOCK:].any()
