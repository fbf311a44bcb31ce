"""Parts are sent a window at a time until each is confirmed."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from ofl_iot.protocol.parts import digest_of, split_body
from ofl_iot.roles.part_sender import PartSender
from tests.counting import count_calls

BODY = bytes(range(100))
PARTS = split_body(BODY, 1, 1, "s", 10)
happenings = st.one_of(
    st.tuples(st.just("due"), st.sampled_from([0.0, 1.0, 6.0])),
    st.tuples(st.just("confirm"), st.sets(st.integers(0, 12), max_size=4)),
    st.tuples(st.just("restart"), st.none()),
    st.tuples(st.just("link"), st.none()),
)


@settings(max_examples=100)
@given(st.lists(happenings, max_size=30))
def test_no_more_than_a_window_is_under_way_and_nothing_confirmed_is_sent(story: list[tuple]) -> None:
    sender, confirmed, sent_at, now = PartSender(PARTS, window=4, resend_s=5.0), set[int](), dict[int, float](), 0.0
    for what, argument in story:
        if what == "due":
            now += argument
            for part in sender.due(now):
                assert part.part not in confirmed
                assert now - sent_at.get(part.part, -99.0) >= 5.0
                sent_at[part.part] = now
            assert sum(1 for number, at in sent_at.items() if number not in confirmed and now - at < 5.0) <= 4
        elif what == "confirm":
            sender.confirm(argument)
            confirmed |= argument & set(range(10))
        else:
            sender.restart() if what == "restart" else sender.link_lost()
            confirmed = set() if what == "restart" else confirmed
            sent_at.clear()
        assert sender.done == (len(confirmed) == len(PARTS))


def test_with_every_third_message_lost_every_part_gets_through() -> None:
    sender, got, now, messages = PartSender(PARTS, window=4, resend_s=5.0), set[int](), 0.0, itertools.count(1)
    while not sender.done:
        for part in sender.due(now):
            if next(messages) % 3:
                got.add(part.part)
                sender.confirm((part.part,))
        now += 1.0
        assert now < 100
    assert got == set(range(10))
    assert sender.digest == digest_of(BODY)


def test_each_try_waits_twice_as_long_up_to_sixteen_times_and_a_lost_link_waits_no_longer() -> None:
    sender = PartSender(PARTS[:1], resend_s=5.0)
    sent = [now for now in range(400) if sender.due(float(now))]
    assert sent == [0, 5, 15, 35, 75, 155, 235, 315, 395]
    sender.link_lost()
    assert sender.due(400.0) == PARTS[:1]
    sender.restart()
    assert [now for now in range(401, 420) if sender.due(float(now))] == [401, 406, 416]


def test_a_receipt_costs_the_same_work_however_many_parts_wait() -> None:
    def calls(count: int) -> int:
        sender = PartSender(split_body(bytes(count), 1, 1, "s", 1), resend_s=5.0)

        def send_all() -> None:
            now = 0.0
            while not sender.done:
                for part in sender.due(now):
                    sender.confirm((part.part,))
                now += 0.01

        return count_calls(send_all)

    assert calls(4000) <= 1.2 * 10 * calls(400)
    one = PartSender(split_body(bytes(4000), 1, 1, "s", 1), resend_s=5.0)
    one.due(0.0)
    one.confirm((0,))
    assert [part.part for part in one.due(0.0)] == [16]
    one.confirm((1,))
    assert count_calls(lambda: one.due(0.0)) < 40


def test_an_unanswered_window_is_sent_again_in_order_before_anything_new() -> None:
    sender = PartSender(PARTS, window=4, resend_s=5.0)
    assert [part.part for part in sender.due(0.0)] == [0, 1, 2, 3]
    sender.confirm((1,))
    assert [part.part for part in sender.due(1.0)] == [4]
    assert [part.part for part in sender.due(5.0)] == [0, 2, 3]
    assert [part.part for part in sender.due(6.0)] == [4]
    sender.confirm((0, 2, 3, 4))
    assert [part.part for part in sender.due(6.0)] == [5, 6, 7, 8]
