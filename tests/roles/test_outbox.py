"""The outbox: a chunk stays until it is settled, under its one number, as the same bytes."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ofl_iot.protocol.chunks import Chunk
from ofl_iot.protocol.codec import decode
from ofl_iot.protocol.seqset import SeqSet
from ofl_iot.protocol.topics import Kind
from ofl_iot.roles.device.outbox import TABLE, Outbox
from ofl_iot.roles.device.send_pace import SendPace
from ofl_iot.runtime.store import MemoryStore
from tests.roles.parties import pieces_of

WINDOW, RESEND_S, MAX_BYTES = 3, 5.0, 400


class OutboxLaws(RuleBasedStateMachine):
    """Whatever happens, in whatever order, with a crash at any point."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.store = MemoryStore()
        self.outbox = Outbox(max_bytes=MAX_BYTES, window=WINDOW, resend_s=RESEND_S)
        self.credits = WINDOW
        self.released: dict[int, bytes] = {}
        self.settled = SeqSet()
        self.queued = 0

    @rule(count=st.integers(0, 6))
    def queue(self, count: int) -> None:
        values = dict.fromkeys(range(0, 2 * count, 2), 1.0)
        pieces = pieces_of(values, target_bytes=5) if count else []
        self.outbox.queue(pieces)
        self.queued = len(pieces)
        assert self.outbox.queued == self.queued

    @precondition(lambda self: self.outbox.may_release())
    @rule()
    def release(self) -> None:
        assert self.outbox.next_count == 1
        chunk, payload, op = self.outbox.release(self.now)
        assert chunk.seq not in self.released, "a number was used twice"
        assert chunk.seq not in self.settled
        assert decode(Kind.UPDATE, payload) == chunk
        self.released[chunk.seq] = payload
        self.store.apply([op])
        self.queued -= 1
        assert len(self.under_way()) <= min(WINDOW, self.credits)

    @rule(seconds=st.sampled_from([0.0, 1.0, RESEND_S, 60.0]))
    def send_due(self, seconds: float) -> None:
        self.now += seconds
        sent = self.outbox.due(self.now)
        assert len(sent) <= WINDOW
        assert set(sent) <= {self.released[seq] for seq in self.under_way()}, "a resend is other bytes"
        assert not set(self.outbox.due(self.now)) & set(sent), "sent twice at once"

    @rule(data=st.data(), credit=st.integers(0, WINDOW + 2))
    def receipt(self, data: st.DataObject, credit: int) -> None:
        numbers = st.sets(st.integers(1, max(1, self.outbox.next_seq)))
        stored = data.draw(numbers)
        self.settled = self.settled.union(data.draw(numbers) & self.released.keys())
        self.store.apply(self.outbox.confirm(stored, self.settled, credit, self.now))
        self.credits = credit
        self.now += 2 * RESEND_S
        assert not set(self.outbox.due(self.now)) & {self.released.get(seq) for seq in stored}

    @rule()
    def leader_changes(self) -> None:
        self.outbox.readdress()
        assert len(self.outbox.due(self.now)) == min(self.outbox.window, len(self.outbox.unsettled))
        assert 1 <= self.outbox.window <= WINDOW

    @rule()
    def crash(self) -> None:
        next_seq = self.outbox.next_seq
        self.outbox = Outbox(max_bytes=MAX_BYTES, window=WINDOW, resend_s=RESEND_S)
        self.outbox.restore(self.store.load().get(TABLE, {}), next_seq)
        self.queued, self.credits = 0, WINDOW
        assert self.outbox.next_seq == next_seq

    def under_way(self) -> list[int]:
        return [seq for seq, parcel in self.outbox.unsettled.items() if not parcel.stored]

    @invariant()
    def what_is_not_settled_is_kept_as_it_was_released(self) -> None:
        expected = {seq: payload for seq, payload in self.released.items() if seq not in self.settled}
        assert {seq: parcel.payload for seq, parcel in self.outbox.unsettled.items()} == expected
        assert dict(self.store.load().get(TABLE, {})) == expected
        assert [chunk.seq for chunk in self.outbox.chunks_from(1)] == sorted(expected)

    @invariant()
    def it_is_bounded(self) -> None:
        largest = max(map(len, self.released.values()), default=0)
        held = sum(len(parcel.payload) for parcel in self.outbox.unsettled.values())
        assert held < MAX_BYTES + largest
        assert self.outbox.full == (held >= MAX_BYTES)

    @invariant()
    def a_resend_is_scheduled_while_something_is_under_way(self) -> None:
        assert (self.outbox.next_due() is None) == (not self.under_way())


OutboxLaws.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestOutboxLaws = OutboxLaws.TestCase


def outbox_with(count: int) -> tuple[Outbox, list[Chunk]]:
    outbox = Outbox(max_bytes=10**6, window=10, resend_s=RESEND_S)
    outbox.queue(pieces_of({place: float(1 + place) for place in range(0, 2 * count, 2)}, target_bytes=5))
    return outbox, [outbox.release(0.0)[0] for _ in range(count)]


def test_the_most_useful_chunk_leaves_first() -> None:
    _, chunks = outbox_with(4)
    assert [float(chunk.read_values().sum()) for chunk in chunks] == [7.0, 5.0, 3.0, 1.0]


def test_a_newer_selection_replaces_what_was_queued() -> None:
    outbox = Outbox(max_bytes=10**6, window=1, resend_s=RESEND_S)
    outbox.queue(pieces_of({0: 1.0, 5: 1.0}, target_bytes=5))
    outbox.queue(pieces_of({7: 1.0}))
    assert outbox.queued == 1
    assert outbox.release(0.0)[0].read_indices().tolist() == [7]


def test_a_full_outbox_releases_nothing_until_something_is_settled() -> None:
    outbox = Outbox(max_bytes=1, window=9, resend_s=RESEND_S)
    outbox.queue(pieces_of({0: 1.0, 5: 1.0}, target_bytes=5))
    outbox.release(0.0)
    assert outbox.full
    assert not outbox.may_release()
    outbox.confirm((1,), SeqSet(1), 9)
    assert outbox.may_release()


def test_a_stored_chunk_is_kept_and_sent_to_the_next_leader() -> None:
    outbox, chunks = outbox_with(2)
    outbox.confirm((1, 2), SeqSet(1), 9)
    assert outbox.due(100.0) == []
    assert outbox.next_due() is None
    outbox.readdress()
    (payload,) = outbox.due(100.0)
    assert decode(Kind.UPDATE, payload) == chunks[1]


@pytest.mark.parametrize("lost_snapshot", [False, True])
def test_a_restart_never_reuses_a_number_that_is_in_the_outbox(lost_snapshot: bool) -> None:
    outbox, chunks = outbox_with(3)
    rows = {seq: parcel.payload for seq, parcel in outbox.unsettled.items()}
    again = Outbox(max_bytes=10**6, window=10, resend_s=RESEND_S)
    again.restore(rows, 1 if lost_snapshot else outbox.next_seq)
    assert again.next_seq == 4
    assert list(again.chunks_from(2)) == chunks[1:]


def test_each_try_waits_twice_as_long_up_to_sixteen_times_and_a_new_leader_is_tried_at_once() -> None:
    outbox, _ = outbox_with(1)
    waits, now = [], 0.0
    for _ in range(7):
        due = outbox.next_due()
        assert due is not None
        assert not outbox.due(due - 0.01)
        assert len(outbox.due(due)) == 1
        waits.append((due - now) / RESEND_S)
        now = due
    assert waits == [1, 2, 4, 8, 16, 16, 16]
    outbox.readdress()
    assert len(outbox.due(now)) == 1
    assert outbox.next_due() == now + RESEND_S


def test_what_is_sent_again_leaves_by_its_use_also_after_a_restart() -> None:
    outbox = Outbox(max_bytes=10**6, window=10, resend_s=RESEND_S)
    for value in (1.0, 3.0, 2.0):
        outbox.queue(pieces_of({0: value}, target_bytes=5))
        outbox.release(0.0)
    again = Outbox(max_bytes=10**6, window=10, resend_s=RESEND_S)
    again.restore({seq: parcel.payload for seq, parcel in outbox.unsettled.items()}, outbox.next_seq)
    for each in (outbox, again):
        sent = [decode(Kind.UPDATE, payload) for payload in each.due(RESEND_S)]
        assert [float(chunk.read_values().sum()) for chunk in sent if isinstance(chunk, Chunk)] == [3.0, 2.0, 1.0]


def test_a_link_whose_receipts_are_slow_is_not_filled_with_copies() -> None:
    outbox = Outbox(max_bytes=10**6, window=4, resend_s=RESEND_S)
    now, copies = 0.0, []
    for number in range(1, 12):
        outbox.queue(pieces_of({0: float(number)}, target_bytes=5))
        outbox.release(now)
        slow_s = 0.9 * RESEND_S * min(number, 3)  # 4.5, 9, then 13.5 s
        waits = (at for at in (RESEND_S, 2 * RESEND_S) if at < slow_s)
        copies.append(sum(len(outbox.due(now + wait)) for wait in waits))
        now += slow_s
        outbox.confirm((number,), SeqSet(), 9, now)
    assert sum(copies) == 0, "four deviations above the first receipt's time are enough for the next"


def test_the_resend_time_follows_receipts_of_chunks_that_were_sent_once() -> None:
    pace = SendPace(window=4, resend_s=RESEND_S)
    for _ in range(3):
        pace.confirmed(3 * RESEND_S)
    assert 3 * RESEND_S < pace.resend_s < 9 * RESEND_S
    before = pace.resend_s
    pace.confirmed(None)
    assert pace.resend_s == before
    pace.confirmed(1000 * RESEND_S)
    assert pace.resend_s == 16 * RESEND_S


def test_the_window_halves_when_a_chunk_is_overdue_and_grows_again_with_receipts() -> None:
    outbox, _ = outbox_with(4)
    assert outbox.window == 10
    outbox.due(RESEND_S)
    assert outbox.window == 5
    outbox.due(RESEND_S)
    assert outbox.window == 5, "once for each resend time"
    outbox.confirm((1, 2, 3, 4), SeqSet(), 99, RESEND_S + 0.1)
    assert outbox.window == 5
    for seq in range(5, 60):
        outbox.queue(pieces_of({0: 1.0}, target_bytes=5))
        outbox.release(6.0)
        outbox.confirm((seq,), SeqSet(), 99, 6.1)
    assert outbox.window == 10
