"""A step's writes become one transaction, and nothing that stood behind one of them comes before it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ofl_iot.roles.commands import CancelTimer, Command, Persist, one_transaction
from ofl_iot.roles.storage import Delete, Put

commands = st.lists(
    st.one_of(
        st.integers(0, 9).map(lambda number: CancelTimer(str(number))),
        st.lists(st.integers(0, 9).map(lambda key: Put("t", key, b"x")), max_size=3).map(
            lambda ops: Persist(tuple(ops))
        ),
        st.integers(0, 9).map(lambda key: Persist((Delete("t", key),))),
    ),
    max_size=9,
)


@given(commands)
def test_all_is_done_in_order_with_at_most_one_transaction(step: list[Command]) -> None:
    done = one_transaction(step)
    assert [each for each in done if not isinstance(each, Persist)] == [
        each for each in step if not isinstance(each, Persist)
    ]
    written = [op for each in done if isinstance(each, Persist) for op in each.ops]
    assert written == [op for each in step if isinstance(each, Persist) for op in each.ops]
    assert sum(isinstance(each, Persist) for each in done) == min(1, sum(isinstance(each, Persist) for each in step))


@given(commands)
def test_what_stood_behind_a_transaction_stands_behind_the_one(step: list[Command]) -> None:
    first = next((place for place, each in enumerate(step) if isinstance(each, Persist)), len(step))
    done = one_transaction(step)
    assert done[:first] == step[:first]
    assert not any(isinstance(each, Persist) for each in done[first + 1 :])
