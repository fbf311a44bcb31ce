"""The leader's decisions: merged once, stored before it is confirmed, settled when a manifest says so."""

from __future__ import annotations

from typing import get_args

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofl_iot.ids import COORDINATOR
from ofl_iot.protocol.chunks import Chunk
from ofl_iot.protocol.codec import decode_body
from ofl_iot.protocol.fleet_notes import Refusal
from ofl_iot.protocol.messages import (
    Blocks,
    Contribution,
    Inclusion,
    Manifest,
    Part,
    PartReceipt,
    Pull,
    Receipt,
    RoundOpen,
    Settlement,
)
from ofl_iot.protocol.parts import digest_of, split_body
from ofl_iot.protocol.seqset import SeqSet
from ofl_iot.protocol.topics import Kind
from ofl_iot.protocol.values import MAX_VALUE, BlockPrecision
from ofl_iot.roles.block_layout import BlockLayout
from ofl_iot.roles.commands import Command, Persist, Subscribe, Unsubscribe
from ofl_iot.roles.events import (
    Arrived,
    ContributionProtected,
    Event,
    JobFailed,
    LinkDown,
    LinkUp,
    Started,
    TimerFired,
)
from ofl_iot.roles.job_kinds.rounds import ProtectContribution
from ofl_iot.roles.leader.journal import TABLE as JOURNAL
from ofl_iot.roles.leader.leadership import LEADERSHIP, STATE
from ofl_iot.roles.leader.machine import LeaderMachine
from ofl_iot.roles.reports.base import LateMessageDropped, MessageDropped
from ofl_iot.roles.reports.leader import ChunkBounded, ContributionFailed, GlobalModelAdopted, StoredClusterDropped
from ofl_iot.runtime.store import MemoryStore
from tests.roles.parties import (
    BLOCK,
    MODEL,
    SIZE,
    A,
    B,
    C,
    NoKeys,
    Unweighted,
    arrived,
    assigned,
    assignment,
    chunk_of,
    dropped,
    global_model,
    jobs,
    kinds,
    leader_machine,
    office,
    persist,
    published,
    round_open,
    timers,
    told,
)


def update(seq: int, values: dict[int, float] | None = None, sender: str = B, **options: object) -> Arrived:
    return arrived(Kind.UPDATE, sender, chunk_of(seq, values or {0: 1.0}, **options), A)  # type: ignore[arg-type]


def pull(seen: float = -1.0, *, sender: str = B, term: int = 1, blocks: int = 3, most: int = 9) -> Arrived:
    return arrived(Kind.PULL, sender, Pull(term, np.full(blocks, seen).tobytes(), most), A)


def opened(message: RoundOpen) -> Arrived:
    return arrived(Kind.ROUND_OPEN, COORDINATOR, message)


def give_model(machine: LeaderMachine, round_no: int, values: float = 0.0, included: tuple = ()) -> list[Command]:
    """The parts of a global model, then its manifest; returns all commands."""
    parts, manifest = global_model(round_no, values, included)
    commands: list[Command] = []
    for part in parts:
        commands += machine.handle(arrived(Kind.GLOBAL_PART, COORDINATOR, part), 0.0)
    return commands + machine.handle(arrived(Kind.MANIFEST, COORDINATOR, manifest), 0.0)


def in_office(**options: int) -> LeaderMachine:
    """A leader with members A and B, linked, standing on global model 0."""
    machine = leader_machine(**options)  # type: ignore[arg-type]
    machine.handle(Started(), 0.0)
    machine.handle(LinkUp(), 0.0)
    machine.handle(assigned(office()), 0.0)
    give_model(machine, 0)
    return machine


def contribute(machine: LeaderMachine, round_no: int, **options: int) -> tuple[list[Command], Contribution, Inclusion]:
    """Open a round and protect the update; returns the last commands, the contribution and its inclusion."""
    (job,) = jobs(machine.handle(opened(round_open(round_no, **options)), 0.0), ProtectContribution)
    commands = machine.handle(ContributionProtected(round_no, job.update.tobytes()), 0.0)
    (part,) = published(commands, Kind.CONTRIBUTION)
    assert isinstance(part, Part)
    return commands, decode_body(Contribution, part.body), Inclusion(A, round_no, part.digest)


def receipts(commands: list[Command]) -> list[Receipt]:
    return [message for message in published(commands, Kind.RECEIPT) if isinstance(message, Receipt)]


# --- leadership


def test_a_leader_stores_its_office_then_subscribes() -> None:
    machine = leader_machine()
    machine.handle(Started(), 0.0)
    commands = machine.handle(assigned(office()), 0.0)
    assert kinds(commands)[:2] == ["Persist", "LeadershipBegun"]
    assert commands[2:] == [
        Subscribe(Kind.UPDATE, receiver=A),
        Subscribe(Kind.PULL, receiver=A),
        Subscribe(Kind.GLOBAL_PART),
        Subscribe(Kind.MANIFEST),
        Subscribe(Kind.ROUND_OPEN),
    ]
    assert machine.leading


def test_an_assignment_to_another_leader_is_no_office() -> None:
    machine = leader_machine()
    assert machine.handle(assigned(assignment(leader=B)), 0.0) == []
    assert not machine.leading


def test_a_leader_that_is_relieved_forgets_its_books_and_unsubscribes() -> None:
    machine = in_office()
    store = MemoryStore()
    commands = machine.handle(assigned(assignment(2, B)), 1.0)
    persist(store, commands)
    assert store.load().keys() == {LEADERSHIP}, "which assignment was the last is all that stays"
    assert len([c for c in commands if isinstance(c, Unsubscribe)]) == 5
    assert not machine.leading
    assert dropped(machine.handle(update(1), 2.0), LateMessageDropped).reason == "this device leads no cluster"


def test_a_new_term_begins_with_empty_books() -> None:
    machine = in_office()
    machine.handle(update(1), 1.0)
    machine.handle(assigned(office(2, settled=SeqSet(1))), 2.0)
    assert machine.cluster is not None
    assert not machine.cluster.ready
    give_model(machine, 3)
    (receipt,) = receipts(machine.handle(update(1), 3.0))
    assert receipt == Receipt(2, (1,), SeqSet(1), 8, highest=1)
    assert machine.cluster.fresh_count == 0


def test_a_joiner_is_admitted_without_disturbing_the_term() -> None:
    machine = in_office()
    machine.handle(update(1), 1.0)
    assert dropped(machine.handle(update(1, sender=C), 1.0), LateMessageDropped).sender == C
    machine.handle(assigned(office(members=(A, B, C), revision=1)), 2.0)
    (receipt,) = receipts(machine.handle(update(1, sender=C), 3.0))
    assert receipt.stored == (1,)
    assert machine.cluster is not None
    assert machine.cluster.fresh_count == 2
    assert machine.handle(assigned(office(revision=0)), 4.0) == []


# --- chunks


def test_a_leader_with_too_much_to_contribute_takes_no_chunks_until_it_has() -> None:
    machine = in_office(max_energy=4)
    seq = 0
    while receipts(machine.handle(update(seq + 1, {0: 1.9}), 1.0)):
        seq += 1
    assert seq == 6
    assert not receipts(machine.handle(update(seq + 1, {0: 1.9}), 2.0))
    assert receipts(machine.handle(update(seq, {0: 1.9}), 2.0)), "what it holds it confirms"
    machine.handle(opened(round_open(1)), 3.0)
    assert receipts(machine.handle(update(seq + 1, {0: 1.9}), 4.0))


def test_a_chunk_too_long_to_be_contributed_is_weighed_down_and_that_is_told() -> None:
    machine = in_office(max_energy=4)
    commands = machine.handle(update(1, {0: 20.0}), 1.0)
    assert receipts(commands)
    assert ChunkBounded in told(commands)
    assert machine.cluster is not None
    assert machine.cluster.model[0] == pytest.approx(2.0, rel=2e-3)


def test_a_chunk_is_journalled_before_its_receipt() -> None:
    machine = in_office()
    commands = machine.handle(update(1), 1.0)
    assert kinds(commands) == ["Persist", "ChunkMerged", "Publish RECEIPT"]
    assert receipts(commands) == [Receipt(1, (1,), SeqSet(), 8, highest=1)]
    journal = commands[0]
    assert isinstance(journal, Persist)
    assert [op.table for op in journal.ops] == [JOURNAL]


def test_a_chunk_that_came_before_gets_a_receipt_and_is_not_merged_again() -> None:
    machine = in_office()
    machine.handle(update(1, {0: 1.0}), 1.0)
    commands = machine.handle(update(1, {0: 1.0}), 2.0)
    assert kinds(commands) == ["Publish RECEIPT"]
    assert machine.cluster is not None
    assert machine.cluster.model[0] == 1.0


def test_the_journal_becomes_a_snapshot_before_it_grows_long() -> None:
    machine, store = in_office(snapshot_chunks=3), MemoryStore()
    for seq in range(1, 8):
        commands = machine.handle(update(seq), 1.0)
        persist(store, commands)
        assert kinds(commands)[-1] == "Publish RECEIPT"
        assert len(store.load().get(JOURNAL, {})) == seq % 3


def test_a_chunk_before_the_global_model_gets_no_receipt() -> None:
    machine = leader_machine()
    machine.handle(assigned(office()), 0.0)
    assert machine.handle(update(1), 1.0) == []
    assert machine.handle(pull(), 1.0) == []
    give_model(machine, 0)
    assert receipts(machine.handle(update(1), 2.0))


def test_a_chunk_of_an_older_term_is_merged() -> None:
    machine = leader_machine()
    machine.handle(assigned(office(5)), 0.0)
    give_model(machine, 0)
    assert receipts(machine.handle(update(1, term=3), 1.0)) == [Receipt(5, (1,), SeqSet(), 8, highest=1)]


@pytest.mark.parametrize(
    ("kind", "event", "reason"),
    [
        (LateMessageDropped, update(1, sender="x"), "x is not in this cluster"),
        (
            MessageDropped,
            update(1, model=b"othermod"),
            "a chunk of another model (12 parameters)",
        ),
        (MessageDropped, update(1, size=13), "a chunk of another model (13 parameters)"),
        (MessageDropped, update(1, term=2), "a chunk of term 2, this cluster is in 1"),
        (LateMessageDropped, pull(sender="x"), "x is not in this cluster"),
        (LateMessageDropped, pull(term=2), "a pull of term 2, this cluster is in 1"),
        (MessageDropped, pull(blocks=2), "it asks for 2 blocks, this model has 3: make its leader.block_size 4"),
        (MessageDropped, arrived(Kind.RECEIPT, B, PartReceipt(1, 1, "", (0,)), A), "b is not the coordinator"),
        (
            MessageDropped,
            arrived(Kind.RECEIPT, B, Receipt(1, (), SeqSet(), 1), A),
            "a RECEIPT message is not for a leader",
        ),
        (
            MessageDropped,
            arrived(Kind.MANIFEST, COORDINATOR, Manifest(9, MODEL, 13, bytes(16), ())),
            "a global model of another shape (13 parameters)",
        ),
        (
            MessageDropped,
            arrived(Kind.MANIFEST, COORDINATOR, Manifest(9, b"othermod", SIZE, bytes(16), ())),
            "a global model of another shape (12 parameters)",
        ),
    ],
)
def test_a_message_that_does_not_belong_here_is_dropped_and_told_with_its_sender(
    kind: type[MessageDropped], event: Event, reason: str
) -> None:
    machine = in_office()
    report = dropped(machine.handle(event, 1.0), kind)
    assert isinstance(event, Arrived)
    assert report == kind(event.topic.sender, event.topic.kind.name, reason)
    assert machine.cluster is not None
    assert machine.cluster.fresh_count == 0


def test_a_refused_member_is_told_why_but_not_for_every_message() -> None:
    machine = in_office()
    (refusal,) = published(machine.handle(pull(blocks=2), 1.0), Kind.REFUSAL)
    assert isinstance(refusal, Refusal)
    assert (refusal.code, refusal.dropped) == ("block-size", 1)
    assert not published(machine.handle(pull(blocks=2), 2.0), Kind.REFUSAL), "a flood is not answered by a flood"
    (later,) = published(machine.handle(pull(blocks=2), 40.0), Kind.REFUSAL)
    assert isinstance(later, Refusal)
    assert later.dropped == 3
    assert not published(machine.handle(pull(sender="x"), 50.0), Kind.REFUSAL), "nor is a stranger"


# --- pulls


def test_a_pull_brings_a_receipt_and_the_stalest_blocks_first() -> None:
    machine = in_office()
    machine.handle(update(1, {0: 1.0, 9: 4.0}), 1.0)
    commands = machine.handle(pull(most=2), 2.0)
    assert kinds(commands) == ["Publish RECEIPT", "Publish BLOCKS"]
    (answer,) = published(commands, Kind.BLOCKS)
    assert isinstance(answer, Blocks)
    assert answer.last
    assert [block.index for block in answer.blocks] == [0, 2]
    np.testing.assert_array_equal(np.frombuffer(answer.blocks[1].values, "<f4"), [0, 4, 0, 0])


def test_a_pull_of_what_is_known_is_answered_with_nothing() -> None:
    (answer,) = published(in_office().handle(pull(seen=100.0), 1.0), Kind.BLOCKS)
    assert answer == Blocks(1, 0, (), last=True)


def without_model() -> LeaderMachine:
    machine = leader_machine()
    machine.handle(Started(), 0.0)
    machine.handle(LinkUp(), 0.0)
    machine.handle(assigned(office()), 0.0)
    return machine


def test_a_pull_that_came_before_the_model_is_answered_when_it_comes() -> None:
    machine = without_model()
    assert not published(machine.handle(pull(most=1), 1.0), Kind.BLOCKS)
    assert not published(machine.handle(pull(most=2), 2.0), Kind.BLOCKS)
    (answer,) = published(give_model(machine, 0, 1.0), Kind.BLOCKS)
    assert isinstance(answer, Blocks)
    assert len(answer.blocks) == 2  # the last pull counts, and it is answered once
    assert not published(give_model(machine, 1, 2.0), Kind.BLOCKS)


def test_an_early_pull_is_not_answered_in_another_term_nor_to_who_left() -> None:
    machine = without_model()
    machine.handle(pull(), 1.0)
    machine.handle(assigned(office(term=2)), 1.0)
    assert not published(give_model(machine, 0), Kind.BLOCKS)
    machine = without_model()
    machine.handle(pull(), 1.0)
    machine.handle(assigned(office(members=(A,), revision=2)), 1.0)
    assert not published(give_model(machine, 0), Kind.BLOCKS)


def test_early_pulls_of_strangers_and_of_other_sizes_are_not_kept() -> None:
    machine = without_model()
    for odd in (pull(sender=C), pull(term=2), pull(blocks=999)):
        report = machine.handle(odd, 1.0)[-1]
        assert isinstance(report, MessageDropped | LateMessageDropped)
    assert not published(give_model(machine, 0), Kind.BLOCKS)


@pytest.mark.parametrize("seen", [np.nan, np.inf, -np.inf, 1e300])
def test_a_pull_with_absurd_mileages_does_no_harm(seen: float) -> None:
    assert kinds(in_office().handle(pull(seen=seen), 1.0)) == ["Publish RECEIPT", "Publish BLOCKS"]


@pytest.mark.parametrize("values", get_args(BlockPrecision))
@pytest.mark.parametrize("largest", [1.0, 1e6, 9e14])
def test_blocks_are_the_model_but_for_rounding(values: BlockPrecision, largest: float) -> None:
    machine = in_office(values=values)
    for seq in (1, 2, 3):  # sums may go beyond what a chunk may hold
        machine.handle(update(seq, {0: largest, 1: -largest, 2: 1.5}), 1.0)
    model = np.clip(machine._leadership.led.model[:BLOCK], -MAX_VALUE, MAX_VALUE)
    (answer,) = published(machine.handle(pull(most=1), 2.0), Kind.BLOCKS)
    assert isinstance(answer, Blocks)
    (block,) = answer.blocks
    step = np.abs(model).max() / {"byte": 127, "half": 1024, "single": 2**23}[values]
    np.testing.assert_allclose(block.read_values(), model, atol=0.51 * step)


def test_a_large_answer_comes_in_several_messages_of_which_the_last_says_so() -> None:
    machine = in_office()
    machine._rules = msgspec.structs.replace(machine._rules, blocks_bytes=16)
    answers = published(machine.handle(pull(), 1.0), Kind.BLOCKS)
    assert [(len(a.blocks), a.last) for a in answers] == [(1, False), (1, False), (1, True)]  # type: ignore[union-attr]


# --- rounds


def test_a_round_freezes_durably_then_protects_then_stores_the_body_then_sends_it() -> None:
    machine = in_office()
    machine.handle(update(1, {0: 1.0}), 1.0)
    machine.handle(update(1, {3: 2.0}, sender=A), 1.0)
    assert kinds(machine.handle(opened(round_open(1)), 2.0)) == ["Persist", "Compute"]
    commands = machine.handle(ContributionProtected(1, b"protected"), 3.0)
    assert kinds(commands) == ["Persist", "Publish CONTRIBUTION", "SetTimer"]
    (part,) = published(commands, Kind.CONTRIBUTION)
    assert isinstance(part, Part)
    assert (part.term, part.round_no) == (1, 1)
    assert decode_body(Contribution, part.body) == Contribution(
        b"protected", (Settlement(A, (1,)), Settlement(B, (1,))), sample_count=20, updates=2
    )


def test_what_a_manifest_includes_is_settled_and_told_to_the_devices() -> None:
    machine = in_office()
    machine.handle(update(1, {0: 1.0}), 1.0)
    _, _, inclusion = contribute(machine, 1)
    machine.handle(update(2, {0: 5.0}), 2.0)
    commands = give_model(machine, 1, 10.0, (inclusion,))
    assert receipts(commands) == [Receipt(1, (), SeqSet(1), 8, highest=2)]
    assert kinds(commands).index("Persist") < kinds(commands).index("Publish RECEIPT")
    assert machine.cluster is not None
    assert machine.cluster.model[0] == 15.0
    assert machine.cluster.unsettled() == {B: {2}}


@pytest.mark.parametrize("foreign", [Inclusion(A, 1, bytes(16)), Inclusion(B, 1, bytes(16)), None])
def test_what_a_manifest_does_not_include_is_contributed_again(foreign: Inclusion | None) -> None:
    machine = in_office()
    machine.handle(update(1, {0: 1.0}), 1.0)
    contribute(machine, 1)
    assert receipts(give_model(machine, 1, 10.0, (foreign,) if foreign else ())) == []
    _, contribution, _ = contribute(machine, 2)
    assert contribution.merged == (Settlement(B, (1,)),)
    assert machine.cluster is not None
    assert machine.cluster.model[0] == 11.0


def test_an_abandoned_round_is_part_of_the_next() -> None:
    machine = in_office()
    machine.handle(update(1, {0: 1.0}), 1.0)
    contribute(machine, 1)
    machine.handle(update(2, {0: 2.0}), 1.0)
    _, contribution, _ = contribute(machine, 2, base=0)
    assert contribution.merged == (Settlement(B, (1, 2)),)
    assert np.frombuffer(contribution.payload, np.float32)[0] == 3.0


def test_late_news_of_an_abandoned_round_is_ignored() -> None:
    machine = in_office()
    contribute(machine, 2, base=0)
    assert machine.handle(opened(round_open(1, base=0)), 2.0) == []


def test_the_protection_of_a_round_that_has_passed_is_ignored() -> None:
    machine = in_office()
    machine.handle(opened(round_open(1, base=0)), 1.0)
    machine.handle(opened(round_open(2, base=0)), 2.0)
    assert machine.handle(ContributionProtected(1, b""), 3.0) == []


def test_a_round_without_a_seat_for_this_term_is_ignored() -> None:
    machine = in_office()
    assert machine.handle(opened(round_open(1, leader=B)), 1.0) == []
    assert machine.handle(opened(round_open(1, term=2)), 1.0) == []


def test_a_round_on_a_model_that_is_not_here_waits_for_it() -> None:
    machine = in_office()
    machine.handle(update(1, {0: 1.0}), 1.0)
    _, _, inclusion = contribute(machine, 1)
    commands = machine.handle(opened(round_open(2)), 2.0)
    assert commands[:2] == [Subscribe(Kind.GLOBAL_PART), Subscribe(Kind.MANIFEST)]
    assert not jobs(commands, ProtectContribution)
    assert jobs(give_model(machine, 1, 1.0, (inclusion,)), ProtectContribution)
    assert machine.cluster is not None
    assert machine.cluster.settled[B] == SeqSet(1)


def test_a_leader_that_missed_manifests_learns_from_a_later_one() -> None:
    machine = in_office()
    machine.handle(update(1, {0: 1.0}), 1.0)
    _, _, inclusion = contribute(machine, 1)
    machine.handle(LinkDown(), 2.0)
    machine.handle(LinkUp(), 90.0)
    assert receipts(give_model(machine, 7, 3.0, (inclusion,))) == [Receipt(1, (), SeqSet(1), 8, highest=1)]


def test_parts_are_sent_again_until_the_coordinator_has_them() -> None:
    machine = in_office()
    first, _, _ = contribute(machine, 1)
    sent = published(first, Kind.CONTRIBUTION)
    assert timers(first) == {"leader.resend": 6.0}
    assert published(machine.handle(TimerFired("leader.resend"), 3.0), Kind.CONTRIBUTION) == []
    assert published(machine.handle(TimerFired("leader.resend"), 6.0), Kind.CONTRIBUTION) == sent
    machine.handle(LinkDown(), 7.0)
    assert published(machine.handle(LinkUp(), 8.0), Kind.CONTRIBUTION) == sent
    assert published(machine.handle(opened(round_open(1, attempt=1)), 8.5), Kind.CONTRIBUTION) == sent
    machine.handle(arrived(Kind.RECEIPT, COORDINATOR, PartReceipt(1, 1, "contribute", (0,)), A), 9.0)
    assert machine.handle(TimerFired("leader.resend"), 99.0) == []
    assert published(machine.handle(opened(round_open(1, attempt=1)), 100.0), Kind.CONTRIBUTION) == []
    assert published(machine.handle(opened(round_open(1, attempt=2)), 101.0), Kind.CONTRIBUTION) == sent


def test_a_receipt_for_another_round_confirms_nothing() -> None:
    machine = in_office()
    contribute(machine, 1)
    machine.handle(arrived(Kind.RECEIPT, COORDINATOR, PartReceipt(1, 9, "contribute", (0,)), A), 1.0)
    assert published(machine.handle(TimerFired("leader.resend"), 60.0), Kind.CONTRIBUTION)


def test_a_protection_that_failed_is_told_and_the_next_round_tries_again() -> None:
    machine = in_office()
    machine.handle(opened(round_open(1)), 1.0)
    assert told(machine.handle(JobFailed(ProtectContribution, "boom"), 2.0)) == [ContributionFailed]
    assert jobs(machine.handle(opened(round_open(2, base=0)), 3.0), ProtectContribution)


# --- the global model


def test_a_manifest_without_its_parts_asks_for_them_again() -> None:
    machine = leader_machine()
    machine.handle(assigned(office()), 0.0)
    parts, manifest = global_model(4, 2.0)
    assert timers(machine.handle(arrived(Kind.MANIFEST, COORDINATOR, manifest), 1.0)) == {"leader.fetch": 6.0}
    commands = machine.handle(TimerFired("leader.fetch"), 6.0)
    assert commands[:2] == [Subscribe(Kind.GLOBAL_PART), Subscribe(Kind.MANIFEST)]
    assert GlobalModelAdopted in told(machine.handle(arrived(Kind.GLOBAL_PART, COORDINATOR, parts[0]), 7.0))
    assert machine.handle(TimerFired("leader.fetch"), 12.0) == []


def test_an_older_global_model_is_ignored() -> None:
    machine = in_office()
    give_model(machine, 5, 1.0)
    assert give_model(machine, 4, 9.0) == []
    assert machine.cluster is not None
    assert machine.cluster.round_no == 5


@pytest.mark.parametrize(
    "body", [bytes(4 * SIZE - 4), np.full(SIZE, np.nan, "<f4").tobytes()], ids=["too short", "not finite"]
)
def test_a_global_model_that_cannot_be_used_is_dropped(body: bytes) -> None:
    machine = in_office()
    (part,) = split_body(body, 0, 3, "global")
    machine.handle(arrived(Kind.GLOBAL_PART, COORDINATOR, part), 1.0)
    manifest = Manifest(3, MODEL, SIZE, digest_of(body), ())
    assert MessageDropped in told(machine.handle(arrived(Kind.MANIFEST, COORDINATOR, manifest), 1.0))
    assert machine.cluster is not None
    assert machine.cluster.round_no == 0


def test_parts_of_many_models_do_not_pile_up() -> None:
    machine = in_office()
    for number in range(10):
        for part in split_body(bytes([number]) * 48, 0, 5, "global", 24)[:1]:
            machine.handle(arrived(Kind.GLOBAL_PART, COORDINATOR, part), 1.0)
    assert len(machine._intake._joiners) <= 2


# --- restart


def restarted(store: MemoryStore) -> LeaderMachine:
    machine = leader_machine()
    machine.handle(Started(store.load()), 0.0)
    machine.handle(LinkUp(), 0.0)
    return machine


def numbered(device: str, seq: int) -> Arrived:
    """The one chunk of this number: a resend is the same bytes."""
    return update(seq, {seq: float(seq), 11: 1.0 if device == A else 2.0}, sender=device)


chunk_events = st.builds(numbered, st.sampled_from([A, B]), st.integers(1, 6))
happenings = chunk_events | st.sampled_from(["open", "protected"])


@settings(max_examples=60)
@given(st.lists(st.tuples(happenings, st.none() | st.integers(0, 4)), max_size=25))
def test_what_was_confirmed_is_merged_once_whatever_crashes(story: list[tuple]) -> None:
    """Crash behind any command, restart from the store: what has a receipt is in the model, and in it once."""
    store, machine, confirmed = MemoryStore(), leader_machine(), set[tuple[str, int]]()
    for event in (Started(), LinkUp(), assigned(office())):
        persist(store, machine.handle(event, 0.0))
    persist(store, give_model(machine, 0))
    round_no = 0
    for what, die_after in story:
        if what == "open":
            round_no += 1
            event = opened(round_open(round_no, base=0))
        else:
            event = ContributionProtected(round_no, b"") if what == "protected" else what
        done = machine.handle(event, 0.0)[:die_after]
        persist(store, done)
        confirmed |= {(event.topic.sender, seq) for receipt in receipts(done) for seq in receipt.stored}
        if die_after is not None:
            machine = restarted(store)
        for each in (machine, restarted(store)):
            assert each.cluster is not None
            held = {(device, seq) for device, seqs in each.cluster.unsettled().items() for seq in seqs}
            assert confirmed <= held
            np.testing.assert_array_equal(each.cluster.model, sum_of(held))


def sum_of(chunks: set[tuple[str, int]]) -> np.ndarray:
    total = np.zeros(SIZE, np.float32)
    for device, seq in chunks:
        chunk = numbered(device, seq).message
        assert isinstance(chunk, Chunk)
        total[chunk.read_indices()] += chunk.read_values()
    return total


class Counting(Unweighted):
    """Every chunk takes one step of training."""

    def effort(self, chunk: Chunk) -> float:
        return 1.0


def test_the_effort_behind_a_contribution_that_was_not_included_is_told_with_the_next() -> None:
    machine = in_office()
    machine._leadership.merging = Counting()
    machine.handle(update(1), 0.0)
    assert contribute(machine, 1)[1].effort == 1.0
    give_model(machine, 1)
    machine.handle(update(2), 0.0)
    _, contribution, inclusion = contribute(machine, 2, base=1)
    assert contribution.effort == 2.0
    give_model(machine, 2, included=(inclusion,))
    machine.handle(update(3), 0.0)
    assert contribute(machine, 3, base=2)[1].effort == 1.0


def test_a_restart_during_a_round_sends_the_same_body() -> None:
    store, machine = MemoryStore(), leader_machine()
    for event in (Started(), LinkUp(), assigned(office())):
        persist(store, machine.handle(event, 0.0))
    persist(store, give_model(machine, 0))
    persist(store, machine.handle(update(1), 0.0))
    persist(store, machine.handle(opened(round_open(1)), 0.0))
    again = restarted(store)
    (job,) = jobs(again.handle(opened(round_open(1)), 0.0), ProtectContribution)
    assert job.update[0] == 1.0, "nothing was sent: the retained opening has it protected anew"
    commands = machine.handle(ContributionProtected(1, b"once"), 0.0)
    persist(store, commands)
    again = leader_machine()
    assert not jobs(again.handle(Started(store.load()), 0.0), ProtectContribution), "a body exists: never another"
    assert published(again.handle(LinkUp(), 0.0), Kind.CONTRIBUTION) == published(commands, Kind.CONTRIBUTION)
    assert not jobs(again.handle(opened(round_open(1)), 0.0), ProtectContribution)
    (part,) = published(commands, Kind.CONTRIBUTION)
    assert isinstance(part, Part)
    included = (Inclusion(A, 1, part.digest),)
    assert receipts(give_model(again, 1, 0.0, included)) == [Receipt(1, (), SeqSet(1), 8, highest=1)]


def test_an_agent_without_office_starts_without_office() -> None:
    machine = leader_machine()
    assert machine.handle(Started({STATE: {}}), 0.0) == []
    assert machine.handle(LinkUp(), 0.0) == []
    assert machine.handle(LinkDown(), 0.0) == []


# --- faults that were found and mended


def test_a_late_copy_of_an_older_assignment_does_not_bring_an_office_back() -> None:
    machine = in_office()
    machine.handle(assigned(assignment(2, B)), 1.0)
    machine.handle(assigned(office(1)), 2.0)
    assert not machine.leading


def test_not_even_a_restart_brings_a_past_office_back() -> None:
    machine, store = in_office(), MemoryStore()
    persist(store, machine.handle(assigned(assignment(2, B)), 1.0))
    again = restarted(store)
    again.handle(assigned(office(1)), 2.0)
    assert not again.leading


def test_the_opening_of_a_round_that_is_closed_is_ignored() -> None:
    machine = in_office()
    _, _, inclusion = contribute(machine, 1)
    give_model(machine, 1, 0.0, (inclusion,))
    assert machine.handle(opened(round_open(1)), 5.0) == []


def test_the_stored_books_of_another_model_are_dropped() -> None:
    store, machine = MemoryStore(), leader_machine()
    persist(store, machine.handle(assigned(office()), 0.0))
    persist(store, give_model(machine, 0))
    profile = type(machine.profile)(A, b"othermod", BlockLayout(8, 4), encrypted=False)
    other = LeaderMachine(profile, machine._rules, machine._leadership.merging, NoKeys())
    assert StoredClusterDropped in told(other.handle(Started(store.load()), 0.0))
    assert not other.leading
    other.handle(assigned(office(2)), 0.5)
    body = np.zeros(8, "<f4").tobytes()
    (part,) = split_body(body, 0, 1, "global")
    other.handle(arrived(Kind.GLOBAL_PART, COORDINATOR, part), 1.0)
    other.handle(arrived(Kind.MANIFEST, COORDINATOR, Manifest(1, b"othermod", 8, digest_of(body), ())), 1.0)
    assert other.cluster is not None
    assert other.cluster.ready


def test_a_global_model_that_is_coming_in_is_waited_for() -> None:
    machine = in_office()
    machine.handle(opened(round_open(2)), 2.0)
    part = split_body(bytes(4 * SIZE), 0, 1, "global", 24)[0]
    machine.handle(arrived(Kind.GLOBAL_PART, COORDINATOR, part), 6.0)
    assert not [c for c in machine.handle(opened(round_open(2)), 7.0) if isinstance(c, Subscribe)]
