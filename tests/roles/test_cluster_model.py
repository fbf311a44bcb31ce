"""The leader's books: each chunk merged exactly once, nothing lost between fresh, frozen and the global model."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ofl_iot.protocol.messages import Member, Settlement
from ofl_iot.protocol.seqset import SeqSet
from ofl_iot.roles.block_layout import BlockLayout
from ofl_iot.roles.leader.cluster_model import MOST_WAITING, ClusterModel
from tests.roles.parties import BLOCK, SIZE, A, B, chunk_of

LAYOUT = BlockLayout(SIZE, BLOCK)
MEMBERS = (Member(A, SeqSet(), 10), Member(B, SeqSet(2), 10))


def cluster_at(round_no: int = 0, max_energy: float = math.inf) -> ClusterModel:
    cluster = ClusterModel(LAYOUT, 1, MEMBERS, max_energy)
    cluster.adopt(np.zeros(SIZE, np.float32), round_no, included=False)
    return cluster


class ClusterLaws(RuleBasedStateMachine):
    """Merging, rounds that include or pass over the contribution, and crashes with a journal, in any order."""

    limit = math.inf

    def __init__(self) -> None:
        super().__init__()
        self.cluster = cluster_at(max_energy=self.limit)
        self.stored, self.journal = self.cluster.snapshot(), list[tuple]()
        self.merged: dict[tuple[str, int], np.ndarray] = {}
        self.frozen: set[tuple[str, int]] = set()
        self.settled: set[tuple[str, int]] = set()
        self.base = np.zeros(SIZE, np.float32)
        self.round_no = 0

    @rule(
        device=st.sampled_from([A, B]),
        seq=st.integers(1, 12),
        values=st.dictionaries(st.integers(0, SIZE - 1), st.integers(-9, 9).map(float), min_size=1, max_size=3),
        step=st.sampled_from([0.0, 1.0, 2.0]),
    )
    def chunk_arrives(self, device: str, seq: int, values: dict[int, float], step: float) -> None:
        known = (device, seq) in self.merged or (device == B and seq <= 2)
        assert self.cluster.holds(device, seq) == known
        chunk = chunk_of(seq, values)
        if known:
            with pytest.raises(ValueError, match="merged already"):
                self.cluster.merge(device, chunk, step)
            return
        assert self.cluster.bounded(chunk, step) == step
        self.cluster.merge(device, chunk, step)
        self.journal.append((device, chunk, step))
        change = np.zeros(SIZE, np.float32)
        for place, value in values.items():
            change[place] = step * value
        self.merged[device, seq] = change

    @rule()
    def contribute(self) -> None:
        frozen = self.cluster.freeze(self.round_no + 1)
        unsettled = self.merged.keys() - self.settled
        self.frozen = {(s.device, seq) for s in self.cluster.frozen_settlements for seq in s.seqs}
        assert self.frozen == unsettled if math.isinf(self.limit) else self.frozen <= unsettled
        assert bool(self.frozen) == bool(unsettled), "what waits is contributed part by part"
        assert float(frozen @ frozen) <= self.limit
        np.testing.assert_array_equal(frozen, self.sum_of(self.frozen))
        self.store()

    @rule()
    def round_passes_without_us(self) -> None:
        self.cluster.thaw()
        self.frozen = set()
        self.store()

    @rule(elsewhere=st.integers(-5, 5))
    def global_model_without_us(self, elsewhere: int) -> None:
        self.adopt(self.base + np.float32(elsewhere), included=False)

    @precondition(lambda self: self.cluster.frozen is not None)
    @rule(elsewhere=st.integers(-5, 5))
    def global_model_with_us(self, elsewhere: int) -> None:
        included = self.base + self.sum_of(self.frozen) + np.float32(elsewhere)
        devices = {device for device, _ in self.frozen}
        self.settled |= self.frozen
        assert set(self.adopt(included, included=True)) == devices

    def adopt(self, model: np.ndarray, *, included: bool) -> list[str]:
        self.round_no += 1
        before = self.cluster.cumulative_change.copy()
        served = self.cluster.adopt(model, self.round_no, included=included)
        assert np.all(self.cluster.cumulative_change >= before)
        self.base, self.frozen = model, set()
        self.store()
        return served

    @rule()
    def crash(self) -> None:
        cumulative_change = self.cluster.cumulative_change
        self.cluster = ClusterModel.restored(LAYOUT, self.stored, self.limit)
        for device, chunk, step in self.journal:
            self.cluster.merge(device, chunk, step)
        np.testing.assert_allclose(self.cluster.cumulative_change, cumulative_change)

    @rule()
    def store(self) -> None:
        self.stored, self.journal = self.cluster.snapshot(), []

    def sum_of(self, chunks: set[tuple[str, int]]) -> np.ndarray:
        return sum((self.merged[each] for each in chunks), np.zeros(SIZE, np.float32))

    @invariant()
    def the_model_is_the_global_one_and_all_that_is_not_settled(self) -> None:
        unsettled = self.merged.keys() - self.settled
        np.testing.assert_array_equal(self.cluster.model, self.base + self.sum_of(unsettled))
        assert {(d, seq) for d, seqs in self.cluster.unsettled().items() for seq in seqs} == unsettled
        assert self.cluster.fresh_count == len(unsettled - self.frozen)

    @invariant()
    def what_is_settled_is_known(self) -> None:
        for device, first in ((A, 0), (B, 2)):
            ours = {seq for each, seq in self.settled if each == device}
            assert self.cluster.settled[device] == SeqSet(first).union(ours)

    @invariant()
    def the_contribution_names_its_chunks(self) -> None:
        named = {(s.device, seq) for s in self.cluster.frozen_settlements for seq in s.seqs}
        assert named == self.frozen


ClusterLaws.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestClusterLaws = ClusterLaws.TestCase


class LimitedClusterLaws(ClusterLaws):
    """The same where an update may not be longer than the longest chunk: it is contributed in parts."""

    limit = 3 * 18.0**2 * 1.01


LimitedClusterLaws.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestLimitedClusterLaws = LimitedClusterLaws.TestCase


def test_a_long_update_is_contributed_part_by_part_the_oldest_first() -> None:
    cluster = cluster_at(max_energy=10.0)
    for seq in range(1, 6):
        cluster.merge(A, chunk_of(seq, {0: 1.5}), 1.0)
    for round_no, (seqs, value) in enumerate([((1, 2), 3.0), ((3, 4), 3.0), ((5,), 1.5)], 1):
        assert cluster.freeze(round_no)[0] == value
        assert cluster.frozen_settlements == (Settlement(A, seqs),)
        cluster.adopt(cluster._global + cluster.frozen, round_no, included=True)
        assert cluster.model[0] == 7.5


def test_a_part_that_a_round_passed_over_is_the_first_of_the_next() -> None:
    cluster = cluster_at(max_energy=10.0)
    for seq in range(1, 4):
        cluster.merge(A, chunk_of(seq, {0: 1.5}), 1.0)
    first = cluster.freeze(1).copy()
    cluster.adopt(np.zeros(SIZE, np.float32), 1, included=False)
    np.testing.assert_array_equal(cluster.freeze(2), first)
    cluster.merge(A, chunk_of(4, {0: -1.5}), 1.0)
    cluster.thaw()
    assert cluster.freeze(3)[0] == 3.0
    assert cluster.model[0] == 3.0


def test_an_empty_contribution_is_not_what_others_wait_behind() -> None:
    cluster = cluster_at(max_energy=10.0)
    assert not cluster.freeze(1).any()
    for seq in range(1, 4):
        cluster.merge(A, chunk_of(seq, {0: 3.0}), 1.0)
    assert cluster.freeze(2)[0] == 3.0
    assert cluster.frozen_settlements == (Settlement(A, (1,)),)


def test_a_chunk_that_is_too_long_by_itself_is_weighed_down() -> None:
    cluster = cluster_at(max_energy=4.0)
    assert cluster.bounded(chunk_of(1, {0: 1.0}), 1.0) == 1.0
    assert cluster.bounded(chunk_of(1, {0: 100.0}), 1.0) == pytest.approx(0.02, rel=2e-3)
    assert cluster.bounded(chunk_of(1, {0: 100.0}), -1.0) == pytest.approx(-0.02, rel=2e-3)
    assert cluster.bounded(chunk_of(1, {0: 0.0}), 1.0) == 1.0


def full_cluster() -> ClusterModel:
    """Five parts wait, and the sixth is begun."""
    cluster = cluster_at(max_energy=4.0)
    for seq in range(1, MOST_WAITING + 3):
        assert cluster.has_room_for(chunk_of(seq, {0: 1.9}))
        cluster.merge(A, chunk_of(seq, {0: 1.9}), 1.0)
    return cluster


def test_with_too_much_waiting_there_is_room_only_for_what_begins_no_other_part() -> None:
    cluster = full_cluster()
    for long in ({0: 1.9}, {0: 0.2}, {1: 1.0}):
        assert not cluster.has_room_for(chunk_of(9, long))
    for short in ({0: 0.05}, {1: 0.5}, {0: -1.9, 1: 1.5}):
        assert cluster.has_room_for(chunk_of(9, short))
    cluster.freeze(1)
    assert cluster.has_room_for(chunk_of(9, {0: 1.9}))


@given(
    values=st.dictionaries(st.integers(0, SIZE - 1), st.floats(-2, 2, width=32), min_size=1, max_size=4),
    step=st.floats(0.0, 1.0),
)
def test_what_there_is_room_for_begins_no_part_whatever_its_step(values: dict[int, float], step: float) -> None:
    cluster, chunk = full_cluster(), chunk_of(9, values)
    if cluster.has_room_for(chunk):
        cluster.merge(A, chunk, step)
        assert len(cluster._waiting) == MOST_WAITING + 1


def test_a_cluster_without_a_global_model_is_not_ready() -> None:
    cluster = ClusterModel(LAYOUT, 1, MEMBERS)
    assert not cluster.ready
    cluster.adopt(np.ones(SIZE, np.float32), 0, included=False)
    assert cluster.ready


def test_a_member_admitted_again_keeps_what_is_known_of_it() -> None:
    cluster = cluster_at()
    cluster.merge(A, chunk_of(1, {0: 1.0}), 1.0)
    cluster.admit([Member(A, SeqSet(0, (5, 5)), 10)])
    assert cluster.settled[A] == SeqSet(0, (5, 5))
    assert [seq for seq in range(1, 7) if cluster.holds(A, seq)] == [1, 5]


def test_the_contribution_to_a_later_round_holds_the_one_that_was_passed_over() -> None:
    cluster = cluster_at()
    cluster.merge(A, chunk_of(1, {0: 1.0}), 1.0)
    cluster.freeze(1)
    cluster.merge(A, chunk_of(2, {0: 2.0}), 1.0)
    assert cluster.freeze(2)[0] == 3.0
    assert cluster.frozen_settlements == (Settlement(A, (1, 2)),)
    assert cluster.frozen_round == 2


def test_a_block_of_a_merged_chunk_travels_as_far_as_its_values() -> None:
    cluster = cluster_at()
    cluster.merge(A, chunk_of(1, {0: 1.0, 1: -2.0, 9: 4.0}), 0.5)
    np.testing.assert_allclose(cluster.cumulative_change, [1.5, 0.0, 2.0])
