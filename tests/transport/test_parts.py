"""Laws of the parts a link is made of: back-off, complaints, echoes, subscriptions, pending messages."""

from __future__ import annotations

import itertools
import random
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.client import topic_matches_sub

from ofl_iot.errors import TopicError
from ofl_iot.transport.backoff import Backoff, Outage
from ofl_iot.transport.echo import Echo
from ofl_iot.transport.flow import MIN_BUFFER_BYTES, THIN_BYTES_S, LinkRate, buffer_bytes
from ofl_iot.transport.pending import Outgoing, Pending
from ofl_iot.transport.send_queue import SendQueue
from ofl_iot.transport.sockets import CountedSocket
from ofl_iot.transport.subscriptions import Subscriptions, checked_pattern, checked_topic, matches

seconds = st.floats(0.001, 1000.0)


@given(seconds, st.floats(1.0, 1000.0), st.integers(1, 40), st.integers())
def test_waits_double_up_to_the_bound_with_jitter(min_s: float, ratio: float, count: int, seed: int) -> None:
    max_s = min_s * ratio
    backoff = Backoff(min_s, max_s, random.Random(seed))
    for n in range(count):
        ceiling_s = min(max_s, min_s * 2**n)
        assert ceiling_s / 2 * 0.999 <= backoff.next_s() <= ceiling_s * 1.001
    backoff.reset()
    assert backoff.next_s() <= min_s * 1.001


@given(st.lists(st.floats(0.0, 300.0), min_size=1, max_size=50))
def test_complaints_are_at_once_and_then_a_minute_apart(times: list[float]) -> None:
    outage = Outage()
    spoken = [now for now in sorted(times) if outage.should_complain(now)]
    assert spoken[0] == min(times)
    assert all(later - earlier >= 60.0 for earlier, later in itertools.pairwise(spoken))
    assert max(times) - spoken[-1] < 60.0
    outage.over()
    assert outage.lasted_s(999.0) == 0.0
    assert outage.should_complain(max(times))


def test_an_echo_is_overdue_only_after_the_peer_has_it() -> None:
    echo = Echo(interval_s=10.0, timeout_s=3.0, now=0.0)
    assert echo.due(0.0)
    echo.handed_over()
    assert not echo.due(100.0)
    assert not echo.deaf(100.0)
    echo.written(5000)
    echo.delivered(4999, 50.0)
    assert not echo.deaf(99.0), "a thin link takes a minute, but it is not deaf"
    echo.delivered(5000, 100.0)
    assert not echo.deaf(102.9)
    assert echo.deaf(103.0)
    echo.heard(103.0)
    assert not echo.deaf(200.0)
    assert not echo.due(112.9)
    assert echo.due(113.0)


level = st.sampled_from(["a", "b", "", "$x"])
topics = st.lists(level, min_size=1, max_size=4).map("/".join).filter(bool)
patterns = (
    st.tuples(st.lists(st.sampled_from(["a", "b", "", "+", "$x"]), max_size=3), st.sampled_from([[], ["#"], ["a"]]))
    .map(lambda parts: "/".join(parts[0] + parts[1]))
    .filter(bool)
)


@given(patterns, topics)
def test_matching_agrees_with_the_client_library(pattern: str, topic: str) -> None:
    assert matches(checked_pattern(pattern), checked_topic(topic)) == topic_matches_sub(pattern, topic)


@pytest.mark.parametrize("pattern", ["", "a/#/b", "a#", "a+/b", "a\0", "x" * 70_000])
def test_a_pattern_that_means_nothing_is_refused(pattern: str) -> None:
    with pytest.raises(TopicError, match="cannot subscribe"):
        checked_pattern(pattern)


@pytest.mark.parametrize("topic", ["", "a/+", "#", "a\0", "x" * 70_000])
def test_a_topic_that_cannot_be_published_to_is_refused(topic: str) -> None:
    with pytest.raises(TopicError, match="cannot publish"):
        checked_topic(topic)


def test_only_what_the_session_lacks_is_requested() -> None:
    subscriptions = Subscriptions(Backoff(1.0, 4.0, random.Random(0)))
    subscriptions.want("a", 1)
    subscriptions.want("b", 0)
    subscriptions.answered("a", 0.0, granted=True)
    subscriptions.answered("b", 0.0, granted=False)
    assert subscriptions.to_request() == [("b", 0)]
    subscriptions.cancel("a")
    subscriptions.cancel("never-wanted")
    assert subscriptions.to_cancel() == ["a"]
    subscriptions.answered("a", 0.0, granted=True)  # a late answer to a pattern no longer wanted
    assert subscriptions.granted == frozenset()
    subscriptions.session_lost()
    assert subscriptions.to_cancel() == []
    assert subscriptions.covers("b")
    assert not subscriptions.covers("a")


def test_what_was_refused_is_asked_for_again_after_growing_pauses() -> None:
    subscriptions = Subscriptions(Backoff(1.0, 4.0, random.Random(0)))
    for pattern in ("a", "b", "c"):
        subscriptions.want(pattern, 1)
        subscriptions.answered(pattern, 0.0, granted=pattern == "a")
    subscriptions.cancel("c")
    assert subscriptions.to_ask_again(0.4) == []
    assert subscriptions.to_ask_again(1.0) == [("b", 1)]
    assert subscriptions.to_ask_again(9.0) == []  # it was asked for; no answer yet
    subscriptions.answered("b", 10.0, granted=False)
    assert subscriptions.to_ask_again(10.9) == []
    assert subscriptions.to_ask_again(12.0) == [("b", 1)]
    subscriptions.answered("b", 13.0, granted=True)
    assert subscriptions.to_ask_again(99.0) == []
    assert subscriptions.granted == {"a", "b"}


@given(st.lists(st.tuples(st.integers(0, 1), st.binary(max_size=50), st.booleans()), max_size=40))
def test_pending_keeps_unacknowledged_messages_in_order(steps: list[tuple[int, bytes, bool]]) -> None:
    pending = Pending()
    kept = []
    for packet, (qos, payload, settled) in enumerate(steps):
        message = Outgoing("t", payload, qos, retain=False)
        pending.add(packet, message)
        if settled:
            pending.settle(packet)
            pending.settle(packet)
        elif qos == 1:
            kept.append(message)
    assert pending.take_unacknowledged() == kept
    assert len(pending) == 0
    assert pending.bytes == 0


queued = st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["a", "b"]), st.integers(0, 9)), max_size=30)


def outgoing(urgency: int, topic: str, number: int) -> Outgoing:
    return Outgoing(topic, bytes([urgency, number]), 1, retain=False, urgency=urgency)


@given(queued)
def test_messages_leave_by_urgency_then_in_order_and_each_once(steps: list[tuple[int, str, int]]) -> None:
    queue = SendQueue()
    for step in steps:
        queue.put(outgoing(*step))
    first_seen = list(dict.fromkeys(steps))
    assert len(queue) == len(first_seen)
    assert queue.bytes == sum(outgoing(*step).size for step in first_seen)
    left = [queue.pop() for _ in range(len(queue))]
    assert left == [outgoing(*step) for step in sorted(first_seen, key=lambda step: step[0])]
    assert queue.bytes == 0
    with pytest.raises(IndexError):
        queue.pop()


@given(queued, queued)
def test_what_comes_back_leaves_before_its_equals(taken: list[tuple[int, str, int]], more: list) -> None:
    queue = SendQueue()
    for step in more:
        queue.put(outgoing(*step))
    back = [outgoing(*step) for step in dict.fromkeys(taken)]
    queue.put_back(back)
    left = [queue.pop() for _ in range(len(queue))]
    for urgency in range(3):
        ours = [message for message in back if message.urgency == urgency]
        assert [message for message in left if message.urgency == urgency][: len(ours)] == ours
    assert len(set(left)) == len(left)


@given(queued)
def test_what_nobody_wants_any_more_is_withdrawn(steps: list[tuple[int, str, int]]) -> None:
    queue = SendQueue()
    for step in steps:
        queue.put(outgoing(*step))
    wanted = [step for step in dict.fromkeys(steps) if step[1] != "a"]
    assert queue.withdraw("a") == len(set(steps)) - len(wanted)
    assert queue.bytes == sum(outgoing(*step).size for step in wanted)
    assert {queue.pop() for _ in range(len(queue))} == {outgoing(*step) for step in wanted}


@given(st.floats(100.0, 1e7), st.floats(0.25, 2.0), st.integers(2, 20))
def test_the_rate_is_what_leaves_while_data_wait(bytes_s: float, step_s: float, samples: int) -> None:
    rate = LinkRate()
    for n in range(samples):
        rate.sample(n * step_s, sent=10**9, unacknowledged=10**9 - int(bytes_s * n * step_s))
    assert rate.bytes_s is not None
    assert abs(rate.bytes_s - bytes_s) <= 0.01 * bytes_s + 8 / step_s


def test_an_idle_link_tells_nothing_of_its_rate() -> None:
    rate = LinkRate()
    for n in range(5):
        rate.sample(float(n), sent=100 * n, unacknowledged=0)
    assert rate.bytes_s is None
    assert buffer_bytes(None) is None


@given(st.floats(0.0, 1e8))
def test_a_thin_link_holds_two_seconds_of_data_and_a_fast_one_what_it_likes(bytes_s: float) -> None:
    size = buffer_bytes(bytes_s)
    if bytes_s >= THIN_BYTES_S:
        assert size is None
    else:
        assert size == max(MIN_BUFFER_BYTES, int(2 * bytes_s))


@given(st.binary(min_size=1, max_size=200), st.lists(st.integers(1, 50), max_size=10))
def test_a_socket_that_reads_ahead_keeps_every_byte(data: bytes, sizes: list[int]) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        counted = CountedSocket(ours)
        theirs.send(data)
        got = b"".join(counted.recv(size) for size in sizes[: len(data) // 50])
        assert data.startswith(got)
        assert counted.readable_now == (0 < len(got) < len(data))
        while len(got) < len(data):
            got += counted.recv(7)
        assert got == data
        assert counted.bytes_received == len(data)
        with pytest.raises(BlockingIOError):
            counted.recv(1)


def test_a_closed_socket_has_nothing_more_to_read() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        counted = CountedSocket(ours)
        theirs.send(b"ab")
        counted.recv(1)
        assert counted.readable_now
        counted.close()
        assert not counted.readable_now
