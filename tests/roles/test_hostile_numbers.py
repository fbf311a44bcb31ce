"""Chunk numbers as weapons: far ahead, full of gaps, or unreadable in one's own store. Nobody stops over them."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofl_iot.errors import RefusedError
from ofl_iot.protocol.codec import encode
from ofl_iot.protocol.messages import Assignment, Receipt, Settlement
from ofl_iot.protocol.seqset import MAX_RUNS, MAX_STEP, SeqSet
from ofl_iot.protocol.topics import Kind
from ofl_iot.roles.device.outbox import MAX_SEQ, TABLE
from ofl_iot.roles.events import LinkUp, Started, TimerFired
from ofl_iot.roles.reports.base import LateMessageDropped, RowsSetAside
from ofl_iot.roles.reports.coordinator import RoundClosed
from ofl_iot.roles.reports.device import DeviceAssigned
from ofl_iot.roles.storage import ASIDE, Put
from ofl_iot.runtime.store import MemoryStore
from tests.protocol.samples import seq_sets
from tests.roles import test_device as device
from tests.roles import test_leader as leader
from tests.roles.parties import (
    A,
    B,
    arrived,
    assigned,
    assignment,
    chunk_of,
    device_machine,
    dropped,
    jobs,
    leader_machine,
    office,
    persist,
    prepared,
    published,
    told,
)
from tests.roles.test_coordinator import Office, two_clusters

LAST = 2**62 - 1


@given(seq_sets, st.integers(1, 4))
def test_closing_gaps_keeps_every_number_and_the_highest_gaps(seqs: SeqSet, most: int) -> None:
    closed = seqs.closing_gaps(most)
    assert closed.runs == min(most, seqs.runs)
    assert closed.merged(seqs) == closed
    assert closed.highest == seqs.highest
    assert closed.beyond == seqs.beyond[len(seqs.beyond) - len(closed.beyond) :]


# --- a leader against its members


def hostile_round() -> tuple[Office, str, str]:
    """An open round of two leaders, one of them hostile."""
    desk = two_clusters()
    desk.open_round()
    hostile, honest = desk.leaders
    return desk, hostile, honest


@pytest.mark.parametrize("number", [LAST, 2**53, MAX_STEP + 1])
def test_a_leader_cannot_settle_numbers_that_its_members_never_gave(number: int) -> None:
    """The attack: members whose next number is 2^62 exit, after every restart, also with an empty folder."""
    desk, hostile, honest = hostile_round()
    refusal = dropped(desk.contribute(hostile, {hostile: (number,)}))
    assert refusal.sender == hostile
    assert "numbers them up to" in refusal.reason
    desk.contribute(honest, {honest: (1,)})
    desk.give(TimerFired("coordinator.deadline"))
    assert RoundClosed in told(desk.aggregated(honest)), "the rounds go on without it"
    assert desk.machine.roster.devices[hostile].books.settled == SeqSet()  # type: ignore[index]


def test_numbers_may_go_on_from_what_a_device_announces() -> None:
    """As after the loss of all books: the device gives the numbers, nobody else."""
    desk, first, second = hostile_round()
    said = msgspec.structs.replace(device_machine().status(online=True), next_seq=5_000_000)
    desk.give(arrived(Kind.STATUS, first, said))
    assert told(desk.contribute(first, {first: (5_000_000,)})) == []
    assert desk.machine.roster.devices[second].books.settled == SeqSet()  # type: ignore[index]


def test_the_parts_of_a_refused_contribution_are_not_joined_again() -> None:
    """The attack: 157 ms of hashing for each further part of 39 bytes."""
    desk, hostile, _ = hostile_round()
    desk.contribute(hostile, {hostile: (LAST,)})
    again = desk.parts(hostile, {hostile: (LAST,)})
    for part in again:
        assert "was refused" in dropped(desk.give(arrived(Kind.CONTRIBUTION, hostile, part)), LateMessageDropped).reason
    assert told(desk.contribute(hostile, {hostile: (1,)})) == [], "another contribution counts"


def test_the_books_keep_few_gaps_whatever_a_leader_settles() -> None:
    desk, hostile, _ = hostile_round()
    desk.machine.roster.settle(Settlement(hostile, tuple(range(2, 20_000, 2))))
    settled = desk.machine.roster.devices[hostile].books.settled  # type: ignore[index]
    assert settled.runs == MAX_RUNS
    assert settled.highest == 19_998


# --- a leader or coordinator against a device


def test_a_device_does_not_follow_its_leader_to_the_last_number() -> None:
    machine = device_machine()
    training = device.begin(machine)
    for highest, settled in ((LAST, SeqSet()), (0, SeqSet(0, (LAST, LAST))), (MAX_STEP + 1, SeqSet())):
        lie = arrived(Kind.RECEIPT, device.LEADER, Receipt(1, (), settled, 8, highest), A)
        assert dropped(machine.handle(lie, 1.0)).sender == device.LEADER
    device.train(machine, training)
    (chunk,) = published(machine.handle(prepared({0: 1.0}), 2.0), Kind.UPDATE)
    assert getattr(chunk, "seq", None) == 1


def test_a_leader_that_tells_of_ever_higher_numbers_moves_a_device_once() -> None:
    machine = device_machine()
    device.begin(machine)
    for highest in range(MAX_STEP, 50 * MAX_STEP, MAX_STEP):
        machine.handle(arrived(Kind.RECEIPT, device.LEADER, Receipt(1, (), SeqSet(), 8, highest), A), 1.0)
    assert machine.outbox.next_seq == MAX_STEP + 1


def test_an_assignment_with_the_last_number_is_refused_and_the_device_lives_on() -> None:
    machine = device_machine()
    machine.handle(Started(), 0.0)
    machine.handle(LinkUp(), 0.0)
    lie = Assignment(1, 0, B, SeqSet(LAST))
    assert "beyond all" in dropped(machine.handle(assigned(lie), 0.0)).reason
    assert machine.assignment is None
    assert DeviceAssigned in told(machine.handle(assigned(assignment(leader=B)), 0.0))


def test_a_number_that_cannot_be_used_is_never_given() -> None:
    machine = device_machine()
    with pytest.raises(RefusedError):
        machine.outbox.skip_to(MAX_SEQ)
    assert machine.outbox.next_seq == 1


# --- a device against its leader


def test_a_chunk_numbered_far_ahead_does_not_spoil_its_leaders_contribution() -> None:
    machine = leader.in_office()
    refusal = dropped(machine.handle(leader.update(LAST), 0.0))
    assert refusal.sender == B
    machine.handle(leader.update(1), 0.0)
    _, contribution, _ = leader.contribute(machine, 1)
    assert [each.seqs for each in contribution.merged] == [(1,)]


def test_chunk_numbers_with_gaps_neither_grow_receipts_nor_cost_more_and_more() -> None:
    machine = leader.in_office(snapshot_chunks=10_000)
    taken = [seq for seq in range(2, 1000, 2) if leader.receipts(machine.handle(leader.update(seq), 0.0))]
    assert len(taken) == MAX_RUNS
    (receipt,) = leader.receipts(machine.handle(leader.update(1), 0.0))
    assert len(encode(receipt)) < 1000
    assert leader.receipts(machine.handle(leader.update(3), 0.0)), "who fills its gaps is heard again"
    assert leader.receipts(machine.handle(leader.update(1, sender=A), 0.0)), "and so are the others"


# --- one's own store


def test_released_chunks_that_nobody_can_read_are_set_aside_and_the_device_starts() -> None:
    """What an attack, or an older program, left in the outbox must not end the agent at every start."""
    store = MemoryStore()
    machine = device_machine()
    device.train(machine, device.begin(machine, store))
    persist(store, machine.handle(prepared({0: 1.0}), 2.0))
    beyond = b"\x92\x01" + msgspec.msgpack.encode(chunk_of(2**62, {0: 1.0}))
    store.apply([Put(TABLE, 2**62, beyond), Put(TABLE, 7, b"\x92\x01damaged")])
    again = device_machine()
    commands = again.handle(Started(store.load()), 3.0)
    persist(store, commands)
    assert RowsSetAside(TABLE, 2) in commands
    assert list(store.load()[TABLE]) == [1], "what can be read goes on"
    assert set(store.load()[ASIDE]) == {f"{TABLE}/7", f"{TABLE}/{2**62}"}
    assert again.outbox.next_seq < MAX_SEQ
    assert told(device_machine().handle(Started(store.load()), 4.0)) == [], "once"


def test_journal_rows_that_cannot_be_read_are_set_aside_and_the_leader_starts() -> None:
    store = MemoryStore()
    machine = leader_machine(snapshot_chunks=100)
    for event in (Started(), LinkUp(), assigned(office())):
        persist(store, machine.handle(event, 0.0))
    persist(store, leader.give_model(machine, 0))
    for seq in (1, 2):
        persist(store, machine.handle(leader.update(seq), 0.0))
    table = "leader.journal"
    store.apply([Put(table, 0, b"damaged"), Put(table, 5, store.load()[table][1])])  # one not a row, one merged twice
    again = leader_machine(snapshot_chunks=100)
    commands = again.handle(Started(store.load()), 1.0)
    persist(store, commands)
    assert RowsSetAside(table, 2) in commands
    assert list(store.load()[table]) == [1]
    assert again.leading
    assert again.cluster is not None
    assert again.cluster.holds(B, 2)
    assert not jobs(commands, object)
