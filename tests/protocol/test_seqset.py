"""SeqSet behaves as a plain set of positive numbers, and takes little room when they are nearly contiguous."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofl_iot.errors import DecodeError
from ofl_iot.protocol.codec import decode, encode
from ofl_iot.protocol.messages import Receipt
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


@pytest.mark.parametrize("beyond", [(3,), (4,), (6, 6), (7, 6), (0,), (-1,)])
def test_another_form_is_refused(beyond: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="ascend"):
        SeqSet(3, beyond)
    payload = encode(Receipt(1, (), SeqSet(3, (99,)), 1)).replace(b"\x91\x63", bytes([0x90 + len(beyond)]))
    with pytest.raises(DecodeError):
        decode(Kind.RECEIPT, payload)
