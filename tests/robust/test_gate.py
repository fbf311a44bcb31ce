"""The leader's gate: laws of its account, and clusters with honest, slow and poisoned devices."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofl_iot.errors import RefusedError, StoreError
from ofl_iot.ids import DeviceId
from ofl_iot.robust.gate import Admission, Gate, GateRules

SIZE = 3000
Update = tuple[DeviceId, npt.NDArray[np.int64], npt.NDArray[np.float64]]


def device(i: int) -> DeviceId:
    return DeviceId(f"device-{i}")


def updates(devices: int, turns: int, seed: int, shared: float = 0.5, density: float = 0.1) -> list[Update]:
    """Sparse updates of devices that share a direction and have one of their own, in random order."""
    rng = np.random.default_rng(seed)
    common, own = rng.normal(size=SIZE), rng.normal(size=(devices, SIZE))
    released = []
    for i in rng.integers(0, devices, devices * turns):
        full = shared * common + own[i] + rng.normal(size=SIZE)
        indices = np.sort(rng.choice(SIZE, round(density * SIZE), replace=False))
        released.append((device(int(i)), indices, 0.01 * full[indices]))
    return released


def observe_all(gate: Gate, released: list[Update]) -> list[Admission]:
    return [gate.observe(*update) for update in released]


def share_refused(released: list[Update], admissions: list[Admission], of: set[DeviceId]) -> float:
    mine = [not answer.accept for (who, _, _), answer in zip(released, admissions, strict=True) if who in of]
    return sum(mine) / len(mine)


@settings(deadline=None, max_examples=15)
@given(st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_the_gate_never_blocks_a_majority(devices: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    gate = Gate(salt=seed)
    for _ in range(20 * devices):
        indices = rng.choice(SIZE, 50, replace=False)
        answer = gate.observe(
            device(int(rng.integers(devices))), indices, rng.normal(size=50) * rng.lognormal(0.0, 4.0)
        )
        assert 0.0 <= answer.scale <= 1.0
        assert 0.0 <= answer.suspicion <= gate.rules.fullest_account
        assert len(gate.blocked()) <= max(0, (len(gate.records) - 1) // 2)


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 2**32 - 1), st.integers(0, 60))
def test_a_gate_restored_from_its_records_answers_the_same(seed: int, cut: int) -> None:
    released = updates(4, 20, seed)
    whole = observe_all(Gate(salt=7), released)
    first = Gate(salt=7)
    begun = observe_all(first, released[:cut])
    assert begun + observe_all(Gate(salt=7, records=first.records), released[cut:]) == whole


def test_honest_devices_pass() -> None:
    released = updates(8, 40, seed=1)
    assert all(answer.accept for answer in observe_all(Gate(salt=1), released))


def test_an_honest_device_that_shares_nothing_passes() -> None:
    released = updates(8, 40, seed=2)
    stranger = np.random.default_rng(9).normal(size=SIZE)
    released = [(w, i, 0.01 * stranger[i]) if w == device(0) else (w, i, v) for w, i, v in released]
    assert all(answer.accept for answer in observe_all(Gate(salt=1), released))


def test_a_rare_device_that_opposes_everyone_passes() -> None:
    """It may be the only one that holds a class; ten times rarer, its account is relieved before it fills."""
    rng = np.random.default_rng(3)
    released = []
    for who, indices, values in updates(8, 60, seed=3, shared=1.5, density=0.5):
        if who != device(0):
            released.append((who, indices, values))
        elif rng.random() < 0.1:
            released.append((who, indices, -values))
    answers = observe_all(Gate(salt=1), released)
    assert all(answer.accept for answer in answers)


@pytest.mark.parametrize("strength", [1.0, 3.0])
def test_a_sign_flipper_is_blocked(strength: float) -> None:
    released = updates(8, 60, seed=4, shared=1.0, density=0.5)
    bad = {device(0), device(1)}
    released = [(w, i, -strength * v if w in bad else v) for w, i, v in released]
    answers = observe_all(Gate(salt=1), released)
    assert share_refused(released, answers, bad) > 0.6
    assert share_refused(released, answers, {device(i) for i in range(2, 8)}) == 0.0


def test_a_loud_device_is_scaled_down_at_once_and_soon_blocked() -> None:
    released = updates(8, 30, seed=5)
    released = [(w, i, 10.0 * v if w == device(0) else v) for w, i, v in released]
    gate = Gate(salt=1)
    answers = observe_all(gate, released)
    late = [a for (w, _, _), a in zip(released, answers, strict=True) if w == device(0)][5:]
    assert all(answer.scale == pytest.approx(0.3, rel=0.3) for answer in late)
    assert share_refused(released, answers, {device(0)}) > 0.7
    assert gate.blocked() == {device(0)}


def test_only_the_first_of_several_loud_updates_is_let_in() -> None:
    gate = Gate(salt=1)
    observe_all(gate, updates(6, 10, seed=6))
    loud = [(w, i, 10.0 * v) for w, i, v in updates(6, 5, seed=9) if w == device(0)]
    assert [answer.accept for answer in observe_all(gate, loud[:1])] == [True]
    for released in loud[1:]:
        observe_all(gate, [update for update in updates(6, 1, seed=10) if update[0] != device(0)])
        assert not gate.observe(*released).accept


def test_where_honest_devices_cancel_each_other_nobody_is_accused_of_a_direction() -> None:
    """Near rest the updates sum to nothing, so that each points away from the sum of the others."""
    rng = np.random.default_rng(12)
    own = rng.normal(size=(4, SIZE))
    own -= own.mean(axis=0)
    gate, indices = Gate(salt=1), np.arange(SIZE)
    for _ in range(40):
        for i in range(4):
            assert gate.observe(device(i), indices, own[i] + 0.3 * rng.normal(size=SIZE)).suspicion == 0.0


def test_a_blocked_device_that_behaves_again_is_admitted() -> None:
    gate = Gate(salt=1)
    loud = [(w, i, 10.0 * v if w == device(0) else v) for w, i, v in updates(6, 10, seed=6)]
    observe_all(gate, loud)
    assert device(0) in gate.blocked()
    observe_all(gate, updates(6, 60, seed=6))
    assert not gate.blocked()


def test_chunks_of_one_turn_are_charged_once() -> None:
    gate = Gate(salt=1)
    observe_all(gate, updates(6, 10, seed=7))
    indices, values = np.arange(100), np.full(100, 1.0)
    first = gate.observe(device(0), indices, values)
    rest = [gate.observe(device(0), indices + 100 * k, values) for k in range(1, 20)]
    assert all(answer.suspicion == first.suspicion for answer in rest)


def test_switched_off_it_admits_everything_and_remembers_nothing() -> None:
    gate = Gate(salt=1, rules=GateRules(enabled=False))
    released = [(w, i, -1e6 * v) for w, i, v in updates(4, 5, seed=8)]
    assert all(answer == Admission(accept=True, scale=1.0, suspicion=0.0) for answer in observe_all(gate, released))
    assert not gate.records


def test_an_update_of_nothing_changes_nothing() -> None:
    gate = Gate(salt=1)
    gate.observe(device(0), np.arange(3), np.ones(3))
    before = gate.records
    assert gate.observe(device(0), np.arange(3), np.zeros(3)).accept
    assert gate.observe(device(0), np.arange(0), np.zeros(0)).accept
    assert gate.records == before


def test_updates_that_cannot_be_are_refused() -> None:
    gate = Gate(salt=1)
    with pytest.raises(RefusedError, match="indices for"):
        gate.observe(device(0), np.arange(3), np.ones(4))
    with pytest.raises(RefusedError, match="not finite"):
        gate.observe(device(0), np.arange(2), np.array([1.0, np.inf]))


def test_records_of_another_sketch_size_are_refused() -> None:
    gate = Gate(salt=1)
    gate.observe(device(0), np.arange(3), np.ones(3))
    with pytest.raises(StoreError, match="sketch size"):
        Gate(salt=1, rules=GateRules(sketch_size=64), records=gate.records)
