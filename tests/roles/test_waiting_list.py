"""Who was turned away by a full leader first comes first, whoever sends next."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ofl_iot.ids import DeviceId
from ofl_iot.protocol.messages import Inclusion, Part, Receipt
from ofl_iot.protocol.seqset import SeqSet
from ofl_iot.protocol.topics import Kind
from ofl_iot.roles.commands import Command, Publish
from ofl_iot.roles.events import Arrived, ContributionProtected, LinkUp, Started
from ofl_iot.roles.job_kinds.rounds import ProtectContribution
from ofl_iot.roles.leader.cluster_model import MOST_WAITING
from ofl_iot.roles.leader.machine import LeaderMachine
from ofl_iot.roles.leader.waiting_list import MOST_HELD, WaitingList
from ofl_iot.runtime.store import MemoryStore
from tests.roles.parties import (
    A,
    B,
    C,
    D,
    arrived,
    assigned,
    chunk_of,
    jobs,
    leader_machine,
    office,
    persist,
    published,
    round_open,
)
from tests.roles.test_leader import give_model, opened

CREW = (A, B, C, D)
PART = 1.9
"""A chunk of this length is a part of its own."""


def knock(sender: str, seq: int, length: float = PART) -> Arrived:
    return arrived(Kind.UPDATE, sender, chunk_of(seq, {0: length}), A)


def confirmed(commands: list[Command]) -> list[tuple[str, int]]:
    """The chunks that receipts name, by device."""
    return [
        (str(command.topic.receiver), seq)
        for command in commands
        if isinstance(command, Publish) and isinstance(command.message, Receipt)
        for seq in command.message.stored
    ]


class Fleet:
    """A leader with three members, full of its own chunks, and its store."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.round_no = 0
        self.digest = b""
        """Of the last contribution."""
        self.machine = self._machine()
        self.give(assigned(office(members=CREW)))
        self.store_all(give_model(self.machine, 0))
        for seq in range(1, MOST_WAITING + 3):
            assert confirmed(self.give(knock(A, seq)))

    def _machine(self) -> LeaderMachine:
        machine = leader_machine(max_energy=4.0)
        machine.handle(Started(self.store.load()), 0.0)
        machine.handle(LinkUp(), 0.0)
        return machine

    def give(self, event: Arrived) -> list[Command]:
        return self.store_all(self.machine.handle(event, 1.0))

    def store_all(self, commands: list[Command]) -> list[Command]:
        persist(self.store, commands)
        return commands

    def restart(self) -> None:
        self.machine = self._machine()

    def open_round(self) -> list[tuple[str, int]]:
        """A part goes; returns what is confirmed then."""
        self.round_no += 1
        commands = self.give(opened(round_open(self.round_no)))
        (job,) = jobs(commands, ProtectContribution)
        protected = self.machine.handle(ContributionProtected(self.round_no, job.update.tobytes()), 1.0)
        self.store_all(protected)
        (part,) = published(protected, Kind.CONTRIBUTION)
        assert isinstance(part, Part)
        self.digest = part.digest
        return confirmed(commands)

    def close_round(self) -> None:
        """The part is in the global model."""
        inclusion = Inclusion(A, self.round_no, self.digest)
        self.store_all(give_model(self.machine, self.round_no, included=(inclusion,)))

    @property
    def merged(self) -> int:
        assert self.machine.cluster is not None
        return self.machine.cluster.fresh_count


def test_the_room_that_a_round_makes_is_not_for_whoever_sends_next() -> None:
    fleet = Fleet()
    assert not confirmed(fleet.give(knock(B, 1)))
    for newcomer in range(1, 4):
        assert not confirmed(fleet.give(knock(C, newcomer)))
    assert fleet.open_round() == [(B, 1)], "though it has not sent it again"
    assert not confirmed(fleet.give(knock(D, 1))), "the room is taken"
    fleet.close_round()
    assert fleet.open_round() == [(C, 1)]
    assert not confirmed(fleet.give(knock(B, 2)))
    fleet.close_round()
    assert fleet.open_round() == [(D, 1)]
    fleet.close_round()
    assert fleet.open_round() == [(B, 2)]


def test_a_device_is_represented_by_its_oldest_chunk() -> None:
    fleet = Fleet()
    for seq in (3, 2, 4):
        fleet.give(knock(B, seq))
    assert fleet.open_round() == [(B, 2)]


def test_a_chunk_that_begins_no_part_is_taken_and_delays_nobody() -> None:
    fleet = Fleet()
    fleet.give(knock(B, 1))
    assert confirmed(fleet.give(knock(C, 1, 0.05))) == [(C, 1)]
    assert fleet.open_round() == [(B, 1)]


def test_behind_one_that_does_not_fit_those_go_that_begin_no_part() -> None:
    fleet = Fleet()
    for sender, length in ((B, 1.5), (C, PART), (D, 0.3)):
        assert not confirmed(fleet.give(knock(sender, 1, length)))
    assert fleet.open_round() == [(B, 1), (D, 1)]


def test_what_was_turned_away_is_merged_once_however_often_it_comes() -> None:
    fleet = Fleet()
    for _ in range(3):
        fleet.give(knock(B, 1))
    before = fleet.merged
    assert fleet.open_round() == [(B, 1)]
    assert fleet.merged == before, "one has gone, one has come"
    assert confirmed(fleet.give(knock(B, 1))) == [(B, 1)]
    assert fleet.merged == before


def test_what_is_settled_elsewhere_meanwhile_is_confirmed_and_not_merged() -> None:
    fleet = Fleet()
    fleet.give(knock(B, 7))
    fleet.give(assigned(office(members=CREW, revision=1, settled=SeqSet(0, (7, 7)))))
    before = fleet.merged
    assert (B, 7) in fleet.open_round()
    assert fleet.merged == before - 1


def test_nobody_waits_for_one_that_left_the_cluster() -> None:
    fleet = Fleet()
    fleet.give(knock(B, 1))
    fleet.give(knock(C, 1))
    fleet.give(assigned(office(members=(A, C, D), revision=1)))
    assert fleet.open_round() == [(C, 1)]


def test_a_new_term_begins_without_those_turned_away_in_the_old_one() -> None:
    fleet = Fleet()
    fleet.give(knock(B, 1))
    fleet.give(assigned(office(2, members=CREW)))
    fleet.store_all(give_model(fleet.machine, 1))
    assert fleet.merged == 0
    assert not confirmed(fleet.give(opened(round_open(2, term=2))))


def test_after_a_restart_the_order_is_the_same_and_who_was_served_is_behind() -> None:
    fleet = Fleet()
    for sender in (B, C, D):
        fleet.give(knock(sender, 1))
    assert fleet.open_round() == [(B, 1)]
    fleet.restart()
    for sender, seq in ((B, 2), (D, 1), (C, 1)):
        assert not confirmed(fleet.give(knock(sender, seq)))
    for remove in ((C, 1), (D, 1), (B, 2)):
        fleet.close_round()
        assert fleet.open_round() == [remove]


@settings(max_examples=40)
@given(st.lists(st.sampled_from([A, B, C, D, "round"]), min_size=5, max_size=40))
def test_chunks_are_merged_in_the_order_in_which_their_devices_were_turned_away(story: list[str]) -> None:
    fleet = Fleet()
    queue: list[str] = []
    next_seq = dict.fromkeys(CREW, 1) | {A: MOST_WAITING + 3}
    for what in story:
        if what == "round":
            remove = fleet.open_round()
            assert [device for device, _ in remove] == queue[:1]
            fleet.close_round()
            for device, seq in remove:
                queue.remove(device)
                assert seq == next_seq[DeviceId(device)]
                next_seq[DeviceId(device)] += 1
            continue
        taken = confirmed(fleet.give(knock(what, next_seq[DeviceId(what)])))
        if taken:
            assert not queue
            next_seq[DeviceId(what)] += 1
        elif what not in queue:
            queue.append(what)


def test_what_is_held_is_bounded_and_who_waits_longest_is_not_displaced() -> None:
    turned_away = WaitingList()
    devices = [f"d{number}" for number in range(MOST_HELD + 2)]
    for device in devices:
        turned_away.hold(device, chunk_of(1, {0: 1.0}))
    assert [device for device, _ in turned_away.chunks()] == devices[:MOST_HELD]
    turned_away.remove(devices[0])
    turned_away.hold(devices[-1], chunk_of(1, {0: 1.0}))
    turned_away.hold(devices[0], chunk_of(2, {0: 1.0}))
    turned_away.hold(devices[-2], chunk_of(1, {0: 1.0}))
    assert [device for device, _ in turned_away.chunks()] == devices[1 : MOST_HELD + 1]
