"""How much a chunk counts: by data, by how often its device is heard, and never for a suspected device."""

from __future__ import annotations

import numpy as np
import pytest

from ofl_iot.protocol.chunks import Chunk, ChunkHead, split_update
from ofl_iot.roles.leader.merging import MergeRules, WeightedMerging
from tests.counting import count_calls
from tests.roles.parties import A, B, C

SIZE = 400
PLAIN = MergeRules(compensate_rate=False, gate=False)


def update(values: np.ndarray, *, update_no: int = 1, base_round: int = 0, steps: float = 1.0) -> Chunk:
    head = ChunkHead(1, b"tinytiny", SIZE, base_round, steps, update_no)
    numbers = values.astype(np.float32)
    (piece,) = split_update(head, np.arange(SIZE), numbers, np.abs(numbers))
    return piece.chunk


ONES = np.ones(SIZE)


def test_without_compensation_a_device_counts_by_its_data() -> None:
    merging = WeightedMerging(PLAIN, salt=1)
    assert merging.step(A, update(ONES), 0.0, {A: 30, B: 70}, 0) == pytest.approx(0.3)
    assert merging.step(B, update(ONES), 0.0, {A: 30, B: 70}, 0) == pytest.approx(0.7)


def test_a_chunk_costs_the_same_work_however_many_devices_are_in_the_cluster() -> None:
    def calls(count: int) -> int:
        members = {f"d{number}": 10 for number in range(count)}
        merging, chunk = WeightedMerging(MergeRules(), salt=1), update(ONES)
        for second in (0.0, 1.0):
            for number, name in enumerate(members):
                merging.step(name, update(ONES, update_no=number), second, members, 0)
        return count_calls(lambda: merging.step("d1", chunk, 2.0, members, 0))

    assert calls(200) <= calls(20) + 5


def test_a_device_without_data_still_counts_a_little() -> None:
    assert WeightedMerging(PLAIN, salt=1).step(A, update(ONES), 0.0, {A: 0, B: 3}, 0) == pytest.approx(0.25)


def test_a_slow_device_counts_more_per_update_and_chunks_of_one_update_count_alike() -> None:
    merging = WeightedMerging(MergeRules(gate=False), salt=1)
    members = {A: 10, B: 10}
    steps: dict[str, float] = {}
    for second in range(40):
        steps[A] = merging.step(A, update(ONES, update_no=second), float(second), members, 0)
        if second % 4 == 0:
            steps[B] = merging.step(B, update(ONES, update_no=second), float(second), members, 0)
            again = merging.step(B, update(ONES, update_no=second), second + 0.5, members, 0)
            assert again == pytest.approx(steps[B])
    assert steps[B] > 2 * steps[A]


def test_a_noisy_update_after_a_pause_counts_no_more_than_its_data() -> None:
    members = dict.fromkeys((A, B, C), 10)
    weights = {}
    for noisy in (False, True):
        merging = WeightedMerging(MergeRules(gate=False), salt=1, noisy=noisy)
        for number in range(10):
            for name in members:
                merging.step(name, update(ONES, update_no=number), float(number), members, 0)
        for number in range(10, 40):
            for name in (A, B):
                merging.step(name, update(ONES, update_no=number), float(number), members, 0)
        weights[noisy] = merging.step(C, update(ONES, update_no=99), 40.0, members, 0)
    assert weights[False] == 1.0
    assert weights[True] == pytest.approx(1 / 3)


def test_an_update_of_few_steps_counts_more_and_no_claim_goes_beyond_a_training() -> None:
    members = {A: 10, B: 10}
    for claim, factor in ((2.0, 5.0), (10.0, 1.0), (1e12, 1.0), (1e-9, 10.0)):
        merging = WeightedMerging(MergeRules(gate=False, max_weight=1.0), salt=1, steps=10)
        steps: dict[str, float] = {}
        for number in range(20):
            steps[A] = merging.step(A, update(ONES, update_no=number, steps=10.0), float(number), members, 0)
            steps[B] = merging.step(B, update(ONES, update_no=number, steps=claim), float(number), members, 0)
        assert steps[B] / steps[A] == pytest.approx(factor, rel=0.01) or steps[B] == 1.0


def test_effort_is_steps_by_the_share_of_the_model_and_no_claim_goes_beyond_a_training() -> None:
    merging = WeightedMerging(PLAIN, salt=1, steps=10)
    assert [merging.effort(update(ONES, steps=steps)) for steps in (1e-9, 4.0, 10.0, 1e9)] == [1.0, 4.0, 10.0, 10.0]
    sparse = split_update(ChunkHead(1, b"tinytiny", SIZE, 0, 10.0, 2), np.arange(40), np.ones(40), np.ones(40))
    assert merging.effort(sparse[0].chunk) == pytest.approx(10 * 40 / SIZE)


def test_who_claims_few_steps_for_a_whole_training_is_found_loud() -> None:
    rng = np.random.default_rng(4)
    members = {A: 1, B: 1, C: 1, "e": 1, "f": 1}
    merging = WeightedMerging(MergeRules(), salt=7, steps=10)
    steps: dict[str, float] = {}
    for number in range(20):
        for device in members:
            claim = 1.0 if device == C else 10.0
            chunk = update(rng.normal(size=SIZE), update_no=number, steps=claim)
            steps[device] = merging.step(device, chunk, float(number), members, 0)
    assert [device for device, step in steps.items() if step == 0] == [C]


def test_an_update_that_lags_is_discounted_only_when_asked_for() -> None:
    members = {A: 1}
    assert WeightedMerging(PLAIN, salt=1).step(A, update(ONES), 0.0, members, 50) == 1.0
    rules = MergeRules(compensate_rate=False, gate=False, max_lag=2.0)
    assert WeightedMerging(rules, salt=1).step(A, update(ONES), 0.0, members, 5) == pytest.approx(0.5)


def test_the_gates_memory_survives_a_restart() -> None:
    """A device that pushes against the others is kept out, and a restart forgives nobody."""
    rules, rng = MergeRules(compensate_rate=False), np.random.default_rng(3)
    direction, members = rng.normal(size=SIZE), {A: 1, B: 1, C: 1, "e": 1, "f": 1}
    merging = WeightedMerging(rules, salt=7)
    steps: dict[str, float] = {}
    for number in range(40):
        for device in members:
            sign = -3.0 if device == C else 1.0
            noisy = sign * direction + 0.3 * rng.normal(size=SIZE)
            steps[device] = merging.step(device, update(noisy, update_no=number), float(number), members, 0)
    assert steps[C] == 0.0
    assert all(step > 0 for device, step in steps.items() if device != C)
    again = WeightedMerging(rules, salt=99)
    again.restore(merging.snapshot())
    assert again.snapshot() == merging.snapshot()
    assert again.step(C, update(-3 * direction, update_no=99), 99.0, members, 0) == 0.0
