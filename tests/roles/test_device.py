"""The device's decisions, and what of its work survives a crash at any command."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofl_iot.ids import COORDINATOR
from ofl_iot.protocol.chunks import Chunk
from ofl_iot.protocol.codec import decode, encode
from ofl_iot.protocol.fleet_notes import Refusal, Vitals
from ofl_iot.protocol.messages import Blocks, Pull, Receipt, Status
from ofl_iot.protocol.seqset import SeqSet
from ofl_iot.protocol.telemetry import Telemetry
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.protocol.values import bounded
from ofl_iot.roles.commands import (
    CancelTimer,
    Command,
    Compute,
    Measure,
    Persist,
    Publish,
    SetTimer,
    Subscribe,
    Withdraw,
)
from ofl_iot.roles.device.machine import DeviceMachine
from ofl_iot.roles.device.model_store import TABLE as MODEL_TABLE
from ofl_iot.roles.device.outbox import TABLE as OUTBOX
from ofl_iot.roles.events import (
    Event,
    JobFailed,
    LinkDown,
    LinkUp,
    Measured,
    ReleasePrepared,
    Started,
    Stopping,
    TimerFired,
    Trained,
)
from ofl_iot.roles.job_kinds.device import PrepareRelease, TrainLocally
from ofl_iot.roles.reports.base import LateMessageDropped, MessageDropped
from ofl_iot.roles.reports.device import MessagesRefused, OutboxFull, StoredModelDropped
from ofl_iot.roles.settings import TrainingRules
from ofl_iot.roles.storage import Delete, Put
from ofl_iot.runtime.store import MemoryStore
from tests.roles.parties import (
    MODEL,
    SIZE,
    A,
    B,
    C,
    arrived,
    assigned,
    assignment,
    chunk_of,
    device_machine,
    dropped,
    jobs,
    kinds,
    persist,
    pieces_of,
    prepared,
    published,
    timers,
    told,
    whole_model,
)

LEADER = B


def receipt(stored: tuple[int, ...] = (), settled: SeqSet | None = None, *, term: int = 1, credits_: int = 8) -> Event:
    return arrived(Kind.RECEIPT, LEADER, Receipt(term, stored, settled or SeqSet(), credits_), A)


def blocks(message: Blocks) -> Event:
    return arrived(Kind.BLOCKS, LEADER, message, A)


def begin(machine: DeviceMachine, store: MemoryStore | None = None) -> list[Command]:
    """Started, linked, assigned to a leader whose model has arrived; returns the last commands: a training."""
    commands: list[Command] = []
    for event in (Started(store.load() if store else {}), LinkUp(), assigned(assignment(leader=LEADER))):
        commands = machine.handle(event, 0.0)
        if store:
            persist(store, commands)
    return machine.handle(blocks(whole_model()), 0.0)


def train(machine: DeviceMachine, commands: list[Command], change: float = 1.0, now: float = 1.0) -> list[Command]:
    """Finish the training that `commands` began."""
    (job,) = jobs(commands, TrainLocally)
    return machine.handle(Trained(job.params, job.params + np.float32(change), 0.5, 1, 0.01), now)


# --- stories


def test_a_new_device_subscribes_and_waits() -> None:
    assert device_machine().handle(Started(), 0.0) == [
        Subscribe(Kind.ASSIGNMENT, receiver=A),
        Subscribe(Kind.RECEIPT, receiver=A),
        Subscribe(Kind.BLOCKS, receiver=A),
        Subscribe(Kind.REFUSAL, receiver=A),
        Subscribe(Kind.ORDER, receiver=A),
        SetTimer("device.heartbeat", 60.0),
    ]


def test_a_link_brings_the_announcement_and_a_report() -> None:
    machine = device_machine()
    machine.handle(Started(), 0.0)
    announced, measure, vitals = machine.handle(LinkUp(), 0.0)
    assert isinstance(vitals, Publish)
    assert vitals.retain
    assert isinstance(vitals.message, Vitals)
    assert vitals.message.held_back == ""
    assert announced == Publish(Topic(Kind.STATUS, A), machine.status(online=True), retain=True)
    assert measure == Measure()
    said = Status(
        online=True, term=0, sample_count=16, model=MODEL, size=SIZE, privacy="privacy.mode is off", next_seq=1
    )
    assert machine.status(online=True) == said


def test_an_assignment_is_stored_before_the_model_is_pulled() -> None:
    machine = device_machine()
    machine.handle(Started(), 0.0)
    machine.handle(LinkUp(), 0.0)
    commands = machine.handle(assigned(assignment(leader=LEADER)), 1.0)
    assert kinds(commands) == ["Persist", "DeviceAssigned", "CancelTimer", "Publish PULL", "SetTimer"]
    (pull,) = published(commands, Kind.PULL)
    assert isinstance(pull, Pull)
    assert pull.max_blocks == 3
    assert np.all(np.frombuffer(pull.seen, "<f8") < 0)


def test_what_waits_for_a_past_leader_is_withdrawn_from_the_link() -> None:
    machine = device_machine()
    begin(machine)
    commands = machine.handle(assigned(assignment(2, C)), 1.0)
    assert [command.topic for command in commands if isinstance(command, Withdraw)] == [
        Topic(Kind.UPDATE, A, LEADER),
        Topic(Kind.PULL, A, LEADER),
    ]
    same = machine.handle(assigned(assignment(3, C)), 2.0)
    assert not [command for command in same if isinstance(command, Withdraw)], "its chunks are still wanted"


def test_training_begins_when_the_whole_model_is_here() -> None:
    machine = device_machine()
    machine.handle(Started(), 0.0)
    machine.handle(LinkUp(), 0.0)
    machine.handle(assigned(assignment(leader=LEADER)), 0.0)
    model = whole_model(2.0)
    half = Blocks(1, 0, model.blocks[:2], last=False)
    assert machine.handle(blocks(half), 1.0) == [SetTimer("device.pull", 5.0)], "the rest is waited for"
    commands = machine.handle(blocks(Blocks(1, 0, model.blocks[2:], last=True)), 2.0)
    assert kinds(commands) == ["ModelDownloaded", "CancelTimer", "Persist", "Compute"]
    np.testing.assert_array_equal(jobs(commands, TrainLocally)[0].params, np.full(SIZE, 2.0))


def test_training_is_stored_and_its_work_prepared_for_release() -> None:
    machine = device_machine()
    commands = train(machine, begin(machine))
    assert kinds(commands) == ["Persist", "DeviceTrained", "Compute"]
    (job,) = jobs(commands, PrepareRelease)
    np.testing.assert_array_equal(job.update, np.ones(SIZE))
    assert (job.head.term, job.head.model, job.head.size, job.head.weight) == (1, MODEL, SIZE, 1.0)


def test_a_chunk_is_durable_before_it_is_sent_and_the_window_is_kept() -> None:
    machine = device_machine(window=2)
    train(machine, begin(machine))
    pieces = prepared(dict.fromkeys((0, 2, 4), 1.0), target_bytes=5)
    commands = machine.handle(pieces, 2.0)
    assert kinds(commands) == [
        "Persist", "Publish UPDATE", "Persist", "Publish UPDATE", "SetTimer", "Publish PULL", "SetTimer",
    ]  # fmt: skip
    for stored, sent in zip(commands[0:4:2], commands[1:4:2], strict=True):
        assert isinstance(stored, Persist)
        assert isinstance(sent, Publish)
        (op,) = stored.ops
        assert isinstance(op, Put)
        assert (op.table, op.value) == (OUTBOX, sent.message)
    assert machine.model.unreleased.sum() == SIZE - 2
    more = machine.handle(receipt(stored=(1,)), 3.0)
    assert [chunk.seq for chunk in published(more, Kind.UPDATE)] == [3]  # type: ignore[union-attr]


def test_a_chunk_without_a_receipt_is_sent_again_as_the_same_bytes() -> None:
    machine = device_machine(resend_s=5.0)
    train(machine, begin(machine))
    first = machine.handle(prepared({0: 1.0}), 2.0)
    assert timers(first)["device.resend"] == 7.0
    again = machine.handle(TimerFired("device.resend"), 7.0)
    assert [c for c in again if isinstance(c, Publish)] == [
        c for c in first if isinstance(c, Publish) and c.topic.kind is Kind.UPDATE
    ]
    machine.handle(LinkDown(), 8.0)
    assert published(machine.handle(TimerFired("device.resend"), 20.0), Kind.UPDATE) == []
    assert published(machine.handle(LinkUp(), 30.0), Kind.UPDATE) == published(first, Kind.UPDATE)


def test_a_settled_chunk_is_deleted_together_with_a_snapshot_that_holds_its_release() -> None:
    machine = device_machine()
    train(machine, begin(machine))
    machine.handle(prepared({0: 1.0}), 2.0)
    assert not any(isinstance(c, Persist) for c in machine.handle(receipt(stored=(1,)), 3.0))
    commands = machine.handle(receipt(settled=SeqSet(1)), 4.0)
    (stored,) = (c for c in commands if isinstance(c, Persist))
    assert {(type(op).__name__, op.table) for op in stored.ops} == {("Put", MODEL_TABLE), ("Delete", OUTBOX)}
    assert not machine.outbox.unsettled
    assert machine.acknowledged == SeqSet(1)


def test_a_settled_chunk_whose_release_is_stored_is_deleted_without_another_snapshot() -> None:
    machine = device_machine()
    train(machine, begin(machine))
    machine.handle(prepared({0: 1.0}), 2.0)
    train(machine, machine.handle(blocks(whole_model()), 3.0))
    commands = machine.handle(receipt(stored=(1,), settled=SeqSet(1)), 4.0)
    (stored,) = (c for c in commands if isinstance(c, Persist))
    assert stored.ops == (Delete(OUTBOX, 1),)


def test_a_new_term_sends_everything_unsettled_to_the_new_leader() -> None:
    machine = device_machine()
    train(machine, begin(machine))
    first = published(machine.handle(prepared({0: 1.0, 5: 2.0}, target_bytes=5), 2.0), Kind.UPDATE)
    machine.handle(receipt(stored=(1, 2)), 3.0)
    commands = machine.handle(assigned(assignment(2, "c", settled=SeqSet(1))), 4.0)
    sent = [c for c in commands if isinstance(c, Publish) and c.topic.kind is Kind.UPDATE]
    assert [c.topic.receiver for c in sent] == ["c"]
    assert published(commands, Kind.UPDATE) == first[1:]
    assert np.all(machine.model.seen < 0)


def test_a_newer_revision_of_the_same_term_changes_nothing_under_way() -> None:
    machine = device_machine()
    begin(machine)
    commands = machine.handle(assigned(assignment(1, LEADER, revision=1)), 4.0)
    assert kinds(commands) == ["Persist", "DeviceAssigned"]


@pytest.mark.parametrize("old", [assignment(1, "c"), assignment(0, "c", revision=9)])
def test_an_assignment_that_is_not_newer_is_ignored(old: object) -> None:
    machine = device_machine()
    begin(machine)
    assert machine.handle(assigned(old), 1.0) == []  # type: ignore[arg-type]
    assert machine.assignment is not None
    assert machine.assignment.leader == LEADER


def test_an_unanswered_pull_does_not_stop_training() -> None:
    machine = device_machine()
    train(machine, begin(machine))
    machine.handle(prepared({0: 1.0}), 2.0)
    commands = machine.handle(TimerFired("device.pull"), 6.0)
    assert kinds(commands) == ["PullUnanswered", "Compute"]
    assert jobs(commands, TrainLocally)


def test_a_device_without_a_model_asks_until_it_has_one() -> None:
    machine = device_machine()
    machine.handle(Started(), 0.0)
    machine.handle(LinkUp(), 0.0)
    machine.handle(assigned(assignment(leader=LEADER)), 0.0)
    assert published(machine.handle(TimerFired("device.pull"), 4.0), Kind.PULL)


def test_a_thin_link_is_not_filled_with_answers_to_pulls() -> None:
    """Answers take 12 s where 4 s are waited for: fewer blocks are asked for, ever less often, until one has come."""
    machine = device_machine()
    machine.handle(Started(), 0.0)
    machine.handle(LinkUp(), 0.0)
    asked = [(0.0, pull) for pull in published(machine.handle(assigned(assignment(leader=LEADER)), 0.0), Kind.PULL)]
    now, due = 0.0, 4.0
    while due < 40.0:
        now = due
        commands = machine.handle(TimerFired("device.pull"), now)
        asked += [(now, pull) for pull in published(commands, Kind.PULL)]
        due = timers(commands)["device.pull"]
    assert [(at, pull.max_blocks) for at, pull in asked] == [(0.0, 3), (4.0, 2), (12.0, 1), (28.0, 1)]
    machine.handle(blocks(whole_model()), 52.0)
    assert machine.model.complete
    (pull,) = published(machine.handle(TimerFired("device.heartbeat"), 60.0), Kind.PULL)
    assert pull.max_blocks == 1, "a block takes 8 s: what comes in half of the time that is waited for"


def test_the_best_of_all_work_leaves_at_a_contact_not_what_was_selected_before_it() -> None:
    machine = device_machine()
    machine._training.rules = TrainingRules(steps=1, pause_s=9.0)
    train(machine, begin(machine), now=0.0)
    machine.handle(LinkDown(), 1.0)
    machine.handle(prepared({0: 1.0}), 2.0)
    train(machine, machine.handle(TimerFired("device.rest"), 9.0), now=9.5)
    commands = machine.handle(LinkUp(), 10.0)
    assert not published(commands, Kind.UPDATE), "newer work is among it: select anew"
    assert jobs(commands, PrepareRelease)
    assert len(published(machine.handle(prepared({1: 5.0}), 10.1), Kind.UPDATE)) == 1


def test_without_a_link_a_device_trains_on_for_a_while_and_then_waits() -> None:
    machine = device_machine()
    commands = begin(machine)
    machine.handle(LinkDown(), 1.0)
    for _ in range(3):
        commands = train(machine, commands)
        assert not jobs(commands, PrepareRelease)
    assert not jobs(commands, TrainLocally), "it drifts"
    (job,) = jobs(machine.handle(LinkUp(), 50.0), PrepareRelease)
    np.testing.assert_array_equal(job.update, np.full(SIZE, 3.0))


def test_a_full_outbox_stops_releases_but_not_training() -> None:
    machine = device_machine(max_outbox_bytes=1)
    train(machine, begin(machine))
    machine.handle(prepared({0: 1.0}), 2.0)
    commands = train(machine, machine.handle(blocks(whole_model()), 3.0))
    assert OutboxFull in told(commands)
    assert jobs(commands, TrainLocally)
    assert not jobs(commands, PrepareRelease)
    train(machine, commands)
    assert not jobs(machine.handle(receipt(settled=SeqSet(1)), 5.0), TrainLocally)
    assert not machine.outbox.full


def test_a_failed_job_is_told_and_tried_again_after_a_rest() -> None:
    machine = device_machine()
    begin(machine)
    commands = machine.handle(JobFailed(TrainLocally, "OSError: /secret/path"), 1.0)
    assert kinds(commands) == ["JobFailure", "SetTimer", "Publish VITALS"]
    (vitals,) = published(commands, Kind.VITALS)
    assert isinstance(vitals, Vitals)
    assert (vitals.held_back, vitals.error, vitals.failures) == ("user-code", "OSError", 1), "the class, no more"
    assert b"secret" not in encode(vitals)
    assert jobs(machine.handle(TimerFired("device.rest"), 6.0), TrainLocally)


def test_a_refusal_is_told_once_and_only_from_the_leader_or_the_coordinator() -> None:
    machine = device_machine()
    begin(machine)
    refusal = Refusal("flood", "too many")
    for sender in (LEADER, COORDINATOR):
        first = machine.handle(arrived(Kind.REFUSAL, sender, refusal, A), 1.0)
        assert first == [MessagesRefused(by=sender, code="flood", reason="too many")]
        assert machine.handle(arrived(Kind.REFUSAL, sender, refusal, A), 2.0) == []
    assert kinds(machine.handle(arrived(Kind.REFUSAL, "stranger", refusal, A), 3.0)) == ["LateMessageDropped"]


def test_the_heartbeat_announces_measures_and_pulls() -> None:
    machine = device_machine()
    begin(machine)
    commands = machine.handle(TimerFired("device.heartbeat"), 60.0)
    assert kinds(commands) == ["SetTimer", "Measure", "Publish STATUS", "Publish PULL", "SetTimer"]
    machine.handle(LinkDown(), 61.0)
    assert kinds(machine.handle(TimerFired("device.heartbeat"), 120.0)) == ["SetTimer", "Measure"]


def test_a_report_is_completed_and_sent_when_it_is_worth_it() -> None:
    machine = device_machine()
    begin(machine)
    report = Telemetry(cpu_count=4, cpu_ghz=1.5, cpu_load=0.1, memory_total_mib=1024, memory_free_mib=512)
    (sent,) = published(machine.handle(Measured(report), 1.0), Kind.TELEMETRY)
    assert isinstance(sent, Telemetry)
    assert sent.samples == 16, "rounded up to a power of two"
    assert published(machine.handle(Measured(report), 2.0), Kind.TELEMETRY) == []
    machine.handle(LinkDown(), 3.0)
    assert published(machine.handle(Measured(report), 2000.0), Kind.TELEMETRY) == []


def test_a_device_that_stops_says_goodbye() -> None:
    (goodbye,) = device_machine().handle(Stopping(), 0.0)
    assert isinstance(goodbye, Publish)
    assert goodbye.retain
    assert isinstance(goodbye.message, Status)
    assert not goodbye.message.online


def test_a_pause_between_trainings_is_kept() -> None:
    machine = device_machine()
    machine._training.rules = TrainingRules(steps=1, pause_s=9.0)
    commands = train(machine, begin(machine), now=1.0)
    assert timers(commands)["device.rest"] == 10.0
    machine.handle(prepared({0: 1.0}), 2.0)
    assert not jobs(machine.handle(blocks(whole_model()), 3.0), TrainLocally)
    assert jobs(machine.handle(TimerFired("device.rest"), 10.0), TrainLocally)


def test_a_stored_model_of_another_shape_is_dropped_with_its_chunks() -> None:
    store = MemoryStore()
    machine = device_machine()
    persist(store, train(machine, begin(machine, store)))
    persist(store, machine.handle(prepared({0: 1.0}), 2.0))
    other = device_machine(size=8)
    commands = other.handle(Started(store.load()), 0.0)
    assert StoredModelDropped in told(commands)
    persist(store, commands)
    assert OUTBOX not in store.load()
    assert other.assignment is None


# --- bad input


@pytest.mark.parametrize(
    ("kind", "event", "reason"),
    [
        (
            LateMessageDropped,
            arrived(Kind.RECEIPT, "x", Receipt(1, (), SeqSet(), 8), A),
            "x is not this device's leader",
        ),
        (LateMessageDropped, receipt(term=2), "a receipt of term 2, this device is in 1"),
        (LateMessageDropped, blocks(whole_model(term=3)), "blocks of term 3, this device is in 1"),
        (
            MessageDropped,
            arrived(Kind.UPDATE, LEADER, chunk_of(1, {0: 1.0}), A),
            "a UPDATE message is not for a device",
        ),
    ],
)
def test_a_message_that_does_not_belong_here_is_dropped_and_told_with_its_sender(
    kind: type[MessageDropped], event: Event, reason: str
) -> None:
    machine = device_machine()
    begin(machine)
    report = dropped(machine.handle(event, 1.0), kind)
    assert report.reason == reason
    assert report.sender in {LEADER, "x"}


def test_nothing_is_taken_from_anyone_before_the_first_assignment() -> None:
    machine = device_machine()
    machine.handle(Started(), 0.0)
    assert dropped(machine.handle(blocks(whole_model()), 1.0), LateMessageDropped).sender == LEADER


def test_no_credit_stops_new_releases() -> None:
    machine = device_machine()
    train(machine, begin(machine))
    machine.handle(prepared(dict.fromkeys((0, 2, 4, 6), 1.0), target_bytes=5), 2.0)
    assert published(machine.handle(receipt(stored=(1, 2), credits_=0), 3.0), Kind.UPDATE) == []
    assert len(published(machine.handle(receipt(credits_=1), 3.0), Kind.UPDATE)) == 1


# --- the law of survival


class Life:
    """A device with a store that is killed now and then; its books are kept apart."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.machine = device_machine(window=2)
        self.trained = np.zeros(SIZE, np.float32)
        self.released: dict[int, Chunk] = {}
        self.pending: list[object] = []
        self.now = 0.0
        self.survived = True
        self.give(Started())

    def give(self, event: Event, die_after: int | None = None) -> None:
        """Handle an event; with `die_after`, the process dies behind that many commands and starts again."""
        self.now += 1.0
        commands = self.machine.handle(event, self.now)
        done = commands if die_after is None else commands[:die_after]
        persist(self.store, done)
        for command in done:
            for op in command.ops if isinstance(command, Persist) else ():
                if isinstance(op, Put) and op.table == OUTBOX:
                    chunk = decode(Kind.UPDATE, op.value)
                    assert isinstance(chunk, Chunk)
                    assert op.key not in self.released, "a sequence number was used twice"
                    self.released[int(op.key)] = chunk
                elif isinstance(op, Put) and op.key == "head" and isinstance(event, Trained):
                    self.trained += event.params - event.start
            if isinstance(command, Compute):
                self.pending.append(command.job)
        if die_after is not None:
            self.pending.clear()
            self.machine = device_machine(window=2)
            self.give(Started(self.store.load()))
            self.give(LinkUp())

    def work(self, change: np.ndarray, die_after: int | None) -> None:
        """Finish the oldest job."""
        job = self.pending.pop(0) if self.pending else None
        if isinstance(job, TrainLocally):
            self.give(Trained(job.params, job.params + change, 0.0, 1, 0.01), die_after)
        elif isinstance(job, PrepareRelease):
            values = {int(place): float(job.update[place]) for place in np.flatnonzero(job.update)}
            pieces = pieces_of(values, target_bytes=15) if values else []
            self.give(ReleasePrepared(tuple(pieces)), die_after)

    def check(self) -> None:
        left = np.zeros(SIZE, np.float32)
        for chunk in self.released.values():
            left[chunk.read_indices()] += chunk.read_values()
        np.testing.assert_array_equal(self.machine.model.unreleased, self.trained - left)


changes = st.lists(st.integers(-3, 3).map(float), min_size=SIZE, max_size=SIZE).map(lambda v: np.array(v, np.float32))
deaths = st.none() | st.integers(0, 8)
happenings = st.one_of(
    st.tuples(st.just("work"), changes),
    st.tuples(st.just("work"), changes),
    st.tuples(st.just("receipt"), st.sets(st.integers(1, 12)), st.integers(0, 12)),
    st.tuples(st.just("blocks"), changes),
    st.tuples(st.just("link")),
    st.tuples(st.just("term")),
)


@settings(max_examples=80)
@given(st.lists(st.tuples(happenings, deaths), max_size=25))
def test_a_crash_between_any_two_commands_loses_no_stored_work_and_releases_none_twice(story: list[tuple]) -> None:
    life = Life()
    life.give(LinkUp())
    life.give(assigned(assignment(leader=LEADER)))
    life.give(blocks(whole_model()))
    term = 1
    for (what, *with_), die_after in story:
        if what == "work":
            life.work(with_[0], die_after)
        elif what == "receipt":
            stored = with_[0] & life.released.keys()
            settled = SeqSet(min(with_[1], len(life.released)))
            life.give(receipt(tuple(stored), settled, term=term), die_after)
        elif what == "blocks":
            life.give(blocks(whole_model(with_[0], term=term)), die_after)
        elif what == "link":
            life.give(LinkDown(), die_after)
            life.give(LinkUp())
        else:
            term += 1
            life.give(assigned(assignment(term, LEADER)))
        life.check()


# --- faults that were found and mended


def test_work_is_not_released_twice_while_a_new_release_is_prepared() -> None:
    machine = device_machine(window=1)
    train(machine, begin(machine))
    machine.handle(prepared({0: 1.0, 2: 1.0}, target_bytes=5), 2.0)
    (job,) = jobs(train(machine, machine.handle(blocks(whole_model()), 3.0), change=0.0), PrepareRelease)
    machine.handle(receipt(stored=(1,)), 4.0)
    values = {int(place): float(job.update[place]) for place in np.flatnonzero(job.update)}
    machine.handle(prepared(values), 5.0)
    machine.handle(receipt(stored=(1, 2)), 6.0)
    assert np.all(machine.model.unreleased >= 0), "more was released than was trained"


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_a_training_that_diverged_is_dropped(value: float) -> None:
    machine = device_machine()
    (job,) = jobs(begin(machine), TrainLocally)
    machine.handle(Trained(job.params, np.full(SIZE, value, np.float32), np.nan, 1, 0.01), 1.0)
    assert bounded(machine.model.local)


def test_a_device_that_lost_its_store_numbers_on_even_after_a_crash() -> None:
    store = MemoryStore()
    machine = device_machine()
    persist(store, machine.handle(Started(), 0.0))
    persist(store, machine.handle(assigned(assignment(leader=LEADER, settled=SeqSet(40))), 1.0))
    assert machine.outbox.next_seq == 41
    again = device_machine()
    again.handle(Started(store.load()), 2.0)
    assert again.outbox.next_seq == 41


def test_a_device_that_lost_its_store_numbers_on_behind_the_highest_settled() -> None:
    machine = device_machine()
    machine.handle(Started(), 0.0)
    machine.handle(assigned(assignment(leader=LEADER, settled=SeqSet(0, (7, 7)))), 1.0)
    assert machine.outbox.next_seq == 8


def test_chunks_of_another_model_of_the_same_size_are_dropped() -> None:
    store = MemoryStore()
    machine = device_machine()
    persist(store, train(machine, begin(machine, store)))
    persist(store, machine.handle(prepared({0: 1.0}), 2.0))
    other = device_machine(model=b"othermod")
    other.handle(Started(store.load()), 0.0)
    assert not other.outbox.unsettled


def test_work_stored_before_a_crash_is_offered_after_it() -> None:
    store = MemoryStore()
    machine = device_machine()
    persist(store, train(machine, begin(machine, store)))
    again = device_machine()
    commands = again.handle(Started(store.load()), 2.0)
    assert not jobs(again.handle(LinkUp(), 3.0), PrepareRelease), "it trains already"
    (job,) = jobs(train(again, commands), PrepareRelease)
    np.testing.assert_array_equal(job.update, np.full(SIZE, 2.0))


def test_work_stored_before_a_crash_is_offered_by_a_device_that_may_not_train() -> None:
    store = MemoryStore()
    machine = device_machine()
    persist(store, train(machine, begin(machine, store)))
    again = device_machine()
    again._training.rules = msgspec.structs.replace(again._training.rules, max_unreleased=1)
    assert not jobs(again.handle(Started(store.load()), 2.0), TrainLocally)
    (job,) = jobs(again.handle(LinkUp(), 3.0), PrepareRelease)
    np.testing.assert_array_equal(job.update, np.ones(SIZE))


def test_a_device_whose_leader_has_no_room_stops_training_and_goes_on_when_it_is_heard() -> None:
    machine = device_machine(window=1)
    commands = begin(machine)
    for number in range(4):
        assert jobs(train(machine, commands), PrepareRelease)
        released = published(machine.handle(prepared({0: 1.0 + number}), 1.0), Kind.UPDATE)
        assert len(released) == (number == 0), "one chunk is under way, all other work waits"
        commands = machine.handle(blocks(whole_model()), 1.0)
    assert not jobs(commands, TrainLocally), "three trainings without a release"
    commands = machine.handle(receipt((1,)), 2.0)
    assert len(published(commands, Kind.UPDATE)) == 1
    assert jobs(commands, TrainLocally)


def test_what_was_prepared_when_the_link_broke_leaves_when_it_is_back() -> None:
    machine = device_machine()
    train(machine, begin(machine))
    machine.handle(LinkDown(), 1.0)
    assert not published(machine.handle(prepared({0: 1.0}), 2.0), Kind.UPDATE)
    assert len(published(machine.handle(LinkUp(), 3.0), Kind.UPDATE)) == 1


def test_an_answer_that_is_coming_in_is_waited_for() -> None:
    machine = device_machine()
    machine.handle(Started(), 0.0)
    machine.handle(LinkUp(), 0.0)
    machine.handle(assigned(assignment(leader=LEADER)), 0.0)
    commands = machine.handle(blocks(Blocks(1, 0, whole_model().blocks[:1], last=False)), 3.0)
    assert timers(commands)["device.pull"] > 4.0


def test_a_slow_link_is_not_filled_with_copies() -> None:
    machine = device_machine(resend_s=5.0)
    train(machine, begin(machine))
    machine.handle(prepared({0: 1.0}), 0.0)
    copies = sum(
        len(published(machine.handle(TimerFired("device.resend"), 5.0 * n), Kind.UPDATE)) for n in range(1, 21)
    )
    assert copies <= 6, "waits between resends should grow"


def test_an_unknown_timer_is_no_error() -> None:
    assert device_machine().handle(TimerFired("device.unknown"), 0.0) == []
    assert CancelTimer("device.pull") not in device_machine().handle(LinkDown(), 0.0)
    assert device_machine().handle(arrived(Kind.ASSIGNMENT, COORDINATOR, assignment(), A), 0.0)
