"""SeqSet behaves as a plain set of positive numbers, and takes room by its gaps."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofl_iot.errors import DecodeError
from ofl_iot.protocol.codec import decode
from ofl_iot.protocol.seqset import SeqSet
from ofl_iot.protocol.topics import Kind

numbers = st.integers(1, 30)
sets = st.sets(numbers, max_size=30)


def of(seqs: set[int]) -> SeqSet:
    return SeqSet().union(seqs)


@given(st.lists(sets, max_size=6))
def test_any_sequence_of_unions_holds_what_a_set_holds(steps: list[set[int]]) -> None:
    ours, model = SeqSet(), set[int]()
    for step in steps:
        ours, model = ours.union(step), model | step
        assert {seq for seq in range(-1, 40) if seq in ours} == model
        assert len(ours) == len(model)
        assert ours.highest == max(model, default=0)


@given(sets, sets)
def test_merged_is_the_union_whatever_the_order(a: set[int], b: set[int]) -> None:
    assert of(a).merged(of(b)) == of(b).merged(of(a)) == of(a | b)


@given(sets, st.randoms(use_true_random=False))
def test_equal_sets_have_one_form(seqs: set[int], chance: object) -> None:
    order = sorted(seqs)
    chance.shuffle(order)  # type: ignore[attr-defined]
    one_by_one = SeqSet()
    for seq in order:
        one_by_one = one_by_one.union((seq,))
    assert one_by_one == of(seqs)


@given(st.integers(0, 10**6))
def test_a_contiguous_set_is_a_watermark(upto: int) -> None:
    assert SeqSet(upto).union((upto + 1, upto + 2)) == SeqSet(upto + 2)


@pytest.mark.parametrize("seq", [0, -1])
def test_numbers_start_at_one(seq: int) -> None:
    assert seq not in SeqSet(5)
    with pytest.raises(ValueError, match="start at 1"):
        SeqSet(5).union((seq,))


@given(st.integers(0, 5), st.integers(2, 10**6))
def test_a_gap_that_is_never_filled_takes_no_more_room_than_one(upto: int, count: int) -> None:
    run = SeqSet(upto, (upto + 2, upto + count)).union((upto + count + 1,))
    assert run == SeqSet(upto, (upto + 2, upto + count + 1))
    assert len(run) == upto + count


@pytest.mark.parametrize(
    "beyond", [(5,), (3, 3), (4, 5), (6, 5), (6, 7, 8, 9), (6, 7, 7, 9), (9, 9, 6, 6), (0, 0), (-1, 5)]
)
def test_another_form_is_refused(beyond: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="run"):
        SeqSet(3, beyond)
    with pytest.raises(DecodeError):
        decode(Kind.RECEIPT, msgpack.packb([1, ["receipt", 1, [], [3, list(beyond)], 1]]))
