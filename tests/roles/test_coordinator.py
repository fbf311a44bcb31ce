"""The coordinator's decisions: the fleet gathers, rounds open and close, leaders are replaced, restarts go on."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofl_iot.errors import ConfigError
from ofl_iot.ids import COORDINATOR, DeviceId
from ofl_iot.protocol.codec import encode, encode_body
from ofl_iot.protocol.fleet_notes import ClusterNote, RoundNote
from ofl_iot.protocol.key_messages import KeyOpen
from ofl_iot.protocol.messages import (
    Assignment,
    Card,
    Contribution,
    Inclusion,
    Manifest,
    Message,
    Part,
    PartReceipt,
    Pull,
    RoundOpen,
    Seat,
    Settlement,
)
from ofl_iot.protocol.parts import split_body
from ofl_iot.protocol.seqset import SeqSet
from ofl_iot.protocol.telemetry import Telemetry
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.roles.commands import CancelTimer, Command, Publish, Subscribe
from ofl_iot.roles.coordinator.machine import CoordinatorMachine
from ofl_iot.roles.coordinator.seats import MAX_LONE_TERM_STEP, MAX_TERM_STEP
from ofl_iot.roles.events import (
    Arrived,
    Evaluated,
    JobFailed,
    LinkDown,
    LinkUp,
    Measured,
    RoundAggregated,
    Started,
    Stopping,
    TimerFired,
)
from ofl_iot.roles.job_kinds.keys import MakeKeys
from ofl_iot.roles.job_kinds.rounds import AggregateRound, Contributed, EvaluateModel
from ofl_iot.roles.reports.base import JobFailure, MessageDropped
from ofl_iot.roles.reports.coordinator import (
    AllBudgetsSpent,
    Clustered,
    ClusterOrphaned,
    ContributionRefused,
    DeviceStoreLost,
    LeaderReplaced,
    ModelEvaluated,
    RoundAbandoned,
    RoundClosed,
)
from ofl_iot.roles.reports.keys import KeyGenerationBegun, KeyGenerationFailed
from ofl_iot.runtime.store import MemoryStore
from tests.roles.laws import PendingTimers, waits_for_ever
from tests.roles.parties import (
    SIZE,
    A,
    B,
    C,
    D,
    arrived,
    coordinator_machine,
    dropped,
    jobs,
    kinds,
    persist,
    published,
    status,
    timers,
    told,
)

ZERO = np.zeros(SIZE, np.float32)


def online(device: str, **options: int) -> Arrived:
    return arrived(Kind.STATUS, device, status(**options))  # type: ignore[arg-type]


def offline(device: str) -> Arrived:
    return arrived(Kind.STATUS, device, status(online=False))


class Office:
    """A coordinator with its store and a clock; remembers the commands of the last event."""

    def __init__(self, **rules: object) -> None:
        self.rules = rules
        self.store = MemoryStore()
        self.now = 0.0
        self.timers = PendingTimers()
        self.machine: CoordinatorMachine = coordinator_machine(**rules)
        self.give(Started())
        self.give(LinkUp())

    def give(self, event: object, *, die_after: int | None = None) -> list[Command]:
        commands = self.machine.handle(event, self.now)[:die_after]  # type: ignore[arg-type]
        persist(self.store, commands)
        if die_after is not None:
            self.restart()
            return commands
        self.timers.step(event, commands)
        assert not self.timers.linked or not waits_for_ever(self.machine, self.timers.names)
        return commands

    def restart(self) -> list[Command]:
        """Another process goes on from the store; the broker shows it the manifest that was published last."""
        self.machine, self.timers = coordinator_machine(**self.rules), PendingTimers()
        commands = self.give(Started(self.store.load())) + self.give(LinkUp())
        if self.machine.roster.plan:
            commands += self.give(arrived(Kind.MANIFEST, COORDINATOR, self.machine._model.manifest))
        return commands

    def begin(self, *devices: str) -> list[Command]:
        """Devices gather; returns the commands of the first clustering."""
        for device in devices:
            self.give(online(device))
        return self.give(TimerFired("coordinator.gather"))

    def open_round(self) -> RoundOpen:
        (opened,) = published(self.give(TimerFired("coordinator.open")), Kind.ROUND_OPEN)
        assert isinstance(opened, RoundOpen)
        return opened

    @property
    def leaders(self) -> list[DeviceId]:
        return [DeviceId(seat.leader) for seat in self.machine.roster.seats()]

    def parts(self, leader: str, merged: dict[str, tuple[int, ...]], round_no: int | None = None) -> list[Part]:
        settlements = tuple(Settlement(device, seqs) for device, seqs in merged.items())
        body = Contribution(b"payload", settlements, 10, sum(map(len, merged.values())))
        number = self.machine.counter.opened if round_no is None else round_no
        term = self.machine.roster.terms.get(leader, 0)
        return split_body(encode_body(body), term, number, "contribute", 16)

    def contribute(self, leader: str, merged: dict[str, tuple[int, ...]]) -> list[Command]:
        """All parts of a contribution; returns the commands of the last."""
        commands: list[Command] = []
        for part in self.parts(leader, merged):
            commands = self.give(arrived(Kind.CONTRIBUTION, leader, part))
        return commands

    def aggregated(self, *leaders: str, value: float = 1.0, **refused: str) -> list[Command]:
        weights = {leader: 1.0 / len(leaders) for leader in leaders}
        number = self.machine.counter.opened
        return self.give(RoundAggregated(number, np.full(SIZE, value, np.float32), weights, refused))


def two_clusters() -> Office:
    """Devices a to d under two leaders."""
    office = Office()
    office.begin(A, B, C, D)
    assert len(office.leaders) == 2
    return office


def one_cluster(**rules: object) -> Office:
    office = Office(**rules)
    office.begin(A, B)
    assert len(office.leaders) == 1
    return office


# --- gathering


def test_a_new_coordinator_stores_the_first_model_and_says_nothing_before_it_has_looked() -> None:
    machine = coordinator_machine()
    commands = machine.handle(Started(), 0.0)
    assert kinds(commands)[0] == "Persist"
    for_it = (Kind.STATUS, Kind.TELEMETRY, Kind.CONTRIBUTION, Kind.SHARE)
    assert commands[1:] == [*map(Subscribe, for_it), Subscribe(Kind.KEYS, receiver=COORDINATOR)]
    assert machine.handle(LinkUp(), 0.0) == [Subscribe(Kind.MANIFEST)], "another coordinator may have been here"
    assert machine.handle(LinkDown(), 1.0) == []
    assert machine.handle(Stopping(), 1.0) == []


def test_the_federation_begins_when_enough_devices_are_there() -> None:
    office = Office()
    assert timers(office.give(online(A))) == {"coordinator.gather": 5.0}
    assert timers(office.give(TimerFired("coordinator.gather"))) == {"coordinator.gather": 5.0}, "one is not enough"
    office.give(online(B))
    commands = office.give(TimerFired("coordinator.gather"))
    assert kinds(commands) == [
        "Persist", "Persist", "Clustered", "Publish ASSIGNMENT", "Publish ASSIGNMENT",
        "Publish CLUSTER_NOTE", "Publish GLOBAL_PART", "Publish BOOKS", "Publish MANIFEST", "SetTimer",
    ]  # fmt: skip
    assert all(c.retain for c in commands if isinstance(c, Publish)), "and the manifest comes last"
    messages = published(commands, Kind.ASSIGNMENT)
    (leader,) = office.leaders
    assert {m.leader for m in messages if isinstance(m, Assignment)} == {leader}
    assert [len(m.members) for m in messages if isinstance(m, Assignment)].count(2) == 1, (
        "the leader alone sees members"
    )
    assert office.give(TimerFired("coordinator.gather")) == [], "it has begun"


def test_a_late_joiner_is_placed_at_once_and_its_leader_told() -> None:
    office = one_cluster()
    (leader,) = office.leaders
    commands = office.give(online(C))
    assert kinds(commands) == [
        "Persist", "CancelTimer", "Persist", "DeviceJoined", "Publish ASSIGNMENT", "Publish ASSIGNMENT",
        "Publish CLUSTER_NOTE",
    ]  # fmt: skip
    sent = {c.topic.receiver: c.message for c in commands if isinstance(c, Publish) and c.topic.receiver}
    assert set(sent) == {leader, C}
    told_leader = sent[leader]
    assert isinstance(told_leader, Assignment)
    assert (told_leader.term, told_leader.revision) == (1, 1)
    assert {member.device for member in told_leader.members} == {A, B, C}


def test_a_device_that_missed_its_assignment_gets_it_again() -> None:
    office = one_cluster()
    assert published(office.give(online(A, term=0)), Kind.ASSIGNMENT)
    assert not published(office.give(online(A, term=1)), Kind.ASSIGNMENT)


def test_assignments_tell_how_many_records_all_have_anew_when_they_have_doubled() -> None:
    office = one_cluster()
    (assignment, *_) = published(office.give(online(A, term=0)), Kind.ASSIGNMENT)
    before = assignment.fleet_records
    assert (before, assignment.fleet_devices) == (office.machine.roster._fleet_records(), 2)
    count = office.machine.roster.devices[A].status.sample_count
    assert not published(office.give(online(A, term=1, sample_count=count + 1)), Kind.ASSIGNMENT)
    told = published(office.give(online(A, term=1, sample_count=4 * before)), Kind.ASSIGNMENT)
    assert len(told) == 2, "both devices"
    assert {each.fleet_records for each in told} == {office.machine.roster._fleet_records()}
    assert told[0].fleet_records >= 2 * before


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (online(A, size=13), "a trains another model: 13 parameters, the federation's has 12"),
        (
            arrived(Kind.STATUS, A, msgspec.structs.replace(status(model=b"othermod"), difference="its head is 3x4")),
            "a trains another model: its head is 3x4",
        ),
        (arrived(Kind.PULL, A, Pull(1, b"", 1), B), "a PULL message is not for the coordinator"),
        (arrived(Kind.CONTRIBUTION, A, split_body(b"", 1, 1, "")[0]), "no round is open"),
    ],
)
def test_a_message_that_does_not_belong_here_is_dropped_and_told_with_its_sender(event: Arrived, reason: str) -> None:
    assert dropped(Office().give(event)) == MessageDropped(A, event.topic.kind.name, reason)


def test_reports_are_kept_for_known_devices() -> None:
    office = one_cluster()
    report = Telemetry(cpu_count=4, cpu_ghz=1.5, cpu_load=0.1, memory_total_mib=1024, memory_free_mib=512)
    for device in (A, "stranger"):
        assert office.give(arrived(Kind.TELEMETRY, device, report)) == []
    assert office.machine.roster.devices[A].telemetry == report
    assert "stranger" not in office.machine.roster.devices
    with pytest.raises(TypeError, match="does not expect Measured"):
        office.give(Measured(report))


# --- rounds


def test_a_round_is_stored_then_opened_and_announced_again_and_again() -> None:
    office = one_cluster()
    commands = office.give(TimerFired("coordinator.open"))
    assert kinds(commands) == ["Persist", "RoundOpened", "SetTimer", "Publish ROUND_OPEN", "SetTimer"]
    (leader,) = office.leaders
    assert published(commands, Kind.ROUND_OPEN) == [RoundOpen(1, 0, (Seat(leader, 1),), 0, 20.0)]
    assert timers(commands) == {"coordinator.deadline": 20.0, "coordinator.remind": 5.0}
    reminder = office.give(TimerFired("coordinator.remind"))
    assert published(reminder, Kind.ROUND_OPEN) == published(commands, Kind.ROUND_OPEN)
    assert office.give(TimerFired("coordinator.open")) == [], "one round at a time"


def test_each_part_gets_a_receipt_and_the_last_contribution_starts_the_aggregation() -> None:
    office = two_clusters()
    office.open_round()
    first, second = office.leaders
    for part in office.parts(first, {first: (1,)}):
        (receipt,) = published(office.give(arrived(Kind.CONTRIBUTION, first, part)), Kind.RECEIPT)
        assert receipt == PartReceipt(part.term, 1, "contribute", (part.part,))
    commands = office.contribute(second, {})
    assert kinds(commands) == ["Publish RECEIPT", "SetTimer", "CancelTimer", "Compute"]
    assert jobs(commands, AggregateRound) == [
        AggregateRound(
            1,
            (
                Contributed(first, b"payload", 10, 1, members=len(office.machine.roster.books_of(first))),
                Contributed(second, b"payload", 10, 0, members=len(office.machine.roster.books_of(second))),
            ),
        )
    ]
    part = office.parts(first, {first: (1,)})[0]
    assert dropped(office.give(arrived(Kind.CONTRIBUTION, first, part))).reason == "no round is open"
    assert office.give(TimerFired("coordinator.remind")) == []


def test_a_part_that_comes_again_after_the_body_is_complete_is_confirmed_whole() -> None:
    office = two_clusters()
    office.open_round()
    leader = office.leaders[0]
    office.contribute(leader, {leader: (1,)})
    parts = office.parts(leader, {leader: (1,)})
    (receipt,) = published(office.give(arrived(Kind.CONTRIBUTION, leader, parts[0])), Kind.RECEIPT)
    assert isinstance(receipt, PartReceipt)
    assert receipt.parts == tuple(range(len(parts)))
    other = office.parts(leader, {leader: (1, 2)})
    (receipt,) = published(office.give(arrived(Kind.CONTRIBUTION, leader, other[0])), Kind.RECEIPT)
    assert isinstance(receipt, PartReceipt)
    assert receipt.parts == (), "a second body of the same round does not count"


def test_the_books_and_the_model_are_one_transaction_before_the_model_is_published() -> None:
    office = one_cluster()
    (leader,) = office.leaders
    office.open_round()
    office.contribute(leader, {A: (1, 2), B: (1,)})
    commands = office.aggregated(leader, value=2.5)
    assert kinds(commands)[:7] == [
        "Persist", "RoundClosed", "Publish GLOBAL_PART", "Publish BOOKS", "Publish MANIFEST", "Publish ROUND_NOTE",
        "Compute",
    ]  # fmt: skip
    assert jobs(commands, EvaluateModel)[0].round_no == 1
    (manifest,) = published(commands, Kind.MANIFEST)
    assert isinstance(manifest, Manifest)
    digest = office.parts(leader, {A: (1, 2), B: (1,)})[0].digest
    assert manifest.included == (Inclusion(leader, 1, digest),)
    assert timers(commands) == {"coordinator.open": 10.0}
    np.testing.assert_array_equal(office.machine.model, np.full(SIZE, 2.5))
    assert {d: r.settled for d, r in office.machine.roster.devices.items()} == {A: SeqSet(2), B: SeqSet(1)}
    (note,) = published(commands, Kind.ROUND_NOTE)
    assert isinstance(note, RoundNote)
    assert (note.round_no, note.closed, note.encrypted, note.metrics) == (1, True, False, {})
    (contribution,) = note.contributions
    assert (contribution.leader, contribution.verdict, contribution.weight) == (leader, "included", 1.0)
    assert (contribution.contributors, contribution.chunks) == ((A, B), 3)
    evaluated = office.give(Evaluated(1, 0.9, 0.1))
    assert told(evaluated) == [ModelEvaluated]
    assert [each.metrics for each in published(evaluated, Kind.ROUND_NOTE) if isinstance(each, RoundNote)] == [
        {"accuracy": 0.9}
    ], "the loss stays here"


def test_a_leader_left_out_of_a_round_keeps_its_last_inclusion_in_the_manifest() -> None:
    office = two_clusters()
    first, second = office.leaders
    for round_no, leaders in ((1, (first, second)), (2, (second,))):
        office.open_round()
        for leader in leaders:
            office.contribute(leader, {leader: (round_no,)})
        if len(leaders) == 1:
            office.give(TimerFired("coordinator.deadline"))
        office.aggregated(*leaders)
    included = office.machine._model.manifest.included
    assert [(i.leader, i.round_no) for i in included] == [(first, 1), (second, 2)]


def test_a_refused_contribution_is_not_settled() -> None:
    office = two_clusters()
    first, second = office.leaders
    office.open_round()
    for leader in (first, second):
        office.contribute(leader, {leader: (1,)})
    commands = office.aggregated(first, **{second: "not finite"})
    assert ContributionRefused in told(commands)
    assert office.machine.roster.devices[first].settled == SeqSet(1)
    assert office.machine.roster.devices[second].settled == SeqSet()


@pytest.mark.parametrize(
    ("merged", "reason"),
    [({"stranger": (1,)}, "which is not in its cluster"), ({A: (1, 5)}, "that are settled already")],
)
def test_a_contribution_with_chunks_it_cannot_have_is_refused(merged: dict, reason: str) -> None:
    office = one_cluster()
    (leader,) = office.leaders
    office.open_round()
    office.contribute(leader, {A: (5,)})
    office.aggregated(leader)
    office.open_round()
    assert reason in dropped(office.contribute(leader, merged)).reason


@pytest.mark.parametrize("what", ["round", "term", "seat"])
def test_a_part_for_another_round_or_without_a_seat_is_refused(what: str) -> None:
    office = one_cluster()
    (leader,) = office.leaders
    office.open_round()
    sender = leader if what != "seat" else ({A, B} - {leader}).pop()
    part = office.parts(leader, {}, round_no=7 if what == "round" else 1)[0]
    if what == "term":
        part = Part(9, 1, "contribute", 0, 1, part.digest, b"")
    assert "has no seat in" in dropped(office.give(arrived(Kind.CONTRIBUTION, sender, part))).reason


def test_the_deadline_closes_a_round_with_a_quorum() -> None:
    office = two_clusters()
    first, _ = office.leaders
    office.open_round()
    office.contribute(first, {first: (1,)})
    (job,) = jobs(office.give(TimerFired("coordinator.deadline")), AggregateRound)
    assert [each.leader for each in job.contributions] == [first]


def test_the_deadline_abandons_a_round_without_a_quorum_and_the_next_has_a_new_number() -> None:
    office = two_clusters()
    office.open_round()
    commands = office.give(TimerFired("coordinator.deadline"))
    assert told(commands) == [RoundAbandoned]
    assert timers(commands) == {"coordinator.open": 10.0}
    opened = office.open_round()
    assert (opened.round_no, opened.base_round) == (2, 0)


def test_a_round_without_news_is_abandoned() -> None:
    office = one_cluster()
    (leader,) = office.leaders
    office.open_round()
    assert RoundAbandoned in told(office.contribute(leader, {}))


def idle_round(office: Office) -> list[Command]:
    office.open_round()
    return office.contribute(office.leaders[0], {})


def test_rounds_that_find_nothing_to_merge_become_rarer_until_there_is_work_again() -> None:
    office = one_cluster(interval_s=10.0, idle_interval_s=60.0)
    pauses = [timers(idle_round(office))["coordinator.open"] for _ in range(7)]
    assert pauses == [10.0, 10.0, 20.0, 40.0, 60.0, 60.0, 60.0]
    (leader,) = office.leaders
    office.open_round()
    office.contribute(leader, {A: (1,)})
    assert timers(office.aggregated(leader))["coordinator.open"] == 10.0


def test_an_idle_interval_below_the_interval_does_not_make_rounds_more_frequent() -> None:
    office = one_cluster(interval_s=10.0, idle_interval_s=1.0)
    assert {timers(idle_round(office))["coordinator.open"] for _ in range(5)} == {10.0}


def spend_budget(office: Office, *devices: str) -> None:
    for device in devices:
        spent = Telemetry(
            cpu_count=1, cpu_ghz=1.0, cpu_load=0.0, memory_total_mib=1024, memory_free_mib=512, budget_left=0.0
        )
        office.give(arrived(Kind.TELEMETRY, device, spent))


def test_a_run_ends_when_no_device_can_pay_for_another_training() -> None:
    office = one_cluster(count=9)
    spend_budget(office, A)
    for _ in range(4):
        idle_round(office)
    assert not office.machine.finished, "one device can still learn"
    spend_budget(office, B)
    commands = idle_round(office)
    assert AllBudgetsSpent in told(commands)
    (manifest,) = published(commands, Kind.MANIFEST)
    assert isinstance(manifest, Manifest)
    assert manifest.final
    assert "coordinator.open" not in timers(commands)
    office.restart()
    assert office.machine.finished


def test_a_federation_without_an_end_waits_for_devices_with_a_budget() -> None:
    office = one_cluster(count=0)
    spend_budget(office, A, B)
    assert ["coordinator.open" in timers(idle_round(office)) for _ in range(5)] == [True] * 5
    assert not office.machine.finished


def test_an_aggregation_that_fails_or_explodes_abandons_the_round() -> None:
    failed = JobFailed(AggregateRound, "boom", round_no=1)
    for outcome in (failed, RoundAggregated(1, ZERO + np.float32(np.nan), {A: 1.0}, {})):
        office = one_cluster()
        (leader,) = office.leaders
        office.open_round()
        office.contribute(leader, {A: (1,)})
        assert RoundAbandoned in told(office.give(outcome))
        assert office.machine.roster.devices[A].settled == SeqSet()
        np.testing.assert_array_equal(office.machine.model, ZERO)


def test_an_evaluation_that_fails_is_only_told() -> None:
    office = one_cluster()
    office.open_round()
    assert kinds(office.give(JobFailed(EvaluateModel, "boom"))) == ["JobFailure"]


def test_the_failure_of_a_round_that_has_passed_does_not_end_the_present_one() -> None:
    office = one_cluster()
    (leader,) = office.leaders
    office.open_round()
    office.contribute(leader, {A: (1,)})
    office.give(TimerFired("coordinator.deadline"))
    assert office.open_round().round_no == 2
    office.contribute(leader, {A: (1,)})
    assert told(office.give(JobFailed(AggregateRound, "boom", round_no=1))) == [JobFailure]
    assert RoundClosed in told(office.aggregated(leader))


def test_a_failure_between_rounds_concerns_nobody() -> None:
    assert told(one_cluster().give(JobFailed(AggregateRound, "boom", round_no=1))) == [JobFailure]


def test_a_key_of_an_earlier_attempt_that_fails_does_not_end_the_present_one() -> None:
    office = one_cluster()
    office.machine._rounds.key.maker._opened = KeyOpen(2, 3, (), 1, "main")
    for term, attempt in ((2, 2), (1, 3)):
        failed = JobFailed(MakeKeys, "boom", term=term, attempt=attempt)
        assert told(office.give(failed)) == [JobFailure]
        assert office.machine._rounds.making_key
    assert KeyGenerationFailed in told(office.give(JobFailed(MakeKeys, "boom", term=2, attempt=3)))
    assert not office.machine._rounds.making_key


def test_the_result_of_a_round_that_has_passed_is_ignored() -> None:
    assert one_cluster().give(RoundAggregated(9, ZERO, {A: 1.0}, {})) == []


def test_after_the_last_round_no_other_opens() -> None:
    office = one_cluster(count=1)
    (leader,) = office.leaders
    office.open_round()
    office.contribute(leader, {A: (1,)})
    commands = office.aggregated(leader)
    assert office.machine.finished
    assert not timers(commands)
    (manifest,) = published(commands, Kind.MANIFEST)
    assert isinstance(manifest, Manifest)
    assert manifest.final
    assert office.give(TimerFired("coordinator.open")) == []
    office.restart()
    assert office.machine.finished


def test_the_fleet_is_clustered_anew_every_so_many_rounds_under_the_next_term() -> None:
    office = one_cluster(recluster_every=1)
    (leader,) = office.leaders
    office.open_round()
    office.contribute(leader, {A: (1,)})
    commands = office.aggregated(leader)
    assert Clustered in told(commands)
    terms = {m.term for m in published(commands, Kind.ASSIGNMENT) if isinstance(m, Assignment)}
    assert terms == {2}
    settled = {c.topic.receiver: c.message.settled for c in commands if is_assignment(c)}  # type: ignore[union-attr]
    assert settled[A] == SeqSet(1), "what the round settled is in the new assignments"


def is_assignment(command: Command) -> bool:
    return isinstance(command, Publish) and isinstance(command.message, Assignment)


# --- lost leaders


def test_a_leader_that_stays_away_is_replaced_after_its_grace() -> None:
    office = one_cluster()
    (leader,) = office.leaders
    other = ({A, B} - {leader}).pop()
    assert timers(office.give(offline(leader))) == {f"coordinator.grace.{leader}": 30.0}
    assert CancelTimer(f"coordinator.grace.{leader}") in office.give(online(leader, term=1))
    assert office.give(TimerFired(f"coordinator.grace.{leader}")) == [], "it came back"
    office.give(offline(leader))
    commands = office.give(TimerFired(f"coordinator.grace.{leader}"))
    assert kinds(commands) == [
        "Persist", "LeaderReplaced", "Publish ASSIGNMENT", "Publish ASSIGNMENT", "Publish CLUSTER_NOTE",
    ]  # fmt: skip
    (note,) = published(commands, Kind.CLUSTER_NOTE)
    assert isinstance(note, ClusterNote)
    assert (note.leader, note.previous, note.reason, note.term) == (other, leader, "offline", 2)
    assert office.leaders == [other]
    assert office.machine.roster.terms[other] == 2


def test_a_leader_lost_during_a_round_loses_its_seat_and_its_contribution() -> None:
    office = two_clusters()
    first, second = office.leaders
    office.open_round()
    office.contribute(first, {first: (1,)})
    office.give(offline(first))
    office.give(TimerFired(f"coordinator.grace.{first}"))
    (job,) = jobs(office.contribute(second, {second: (1,)}), AggregateRound)
    assert [each.leader for each in job.contributions] == [second]


def test_a_leader_that_is_away_when_it_comes_into_office_is_replaced_after_its_grace() -> None:
    office = one_cluster()
    plan, ops = office.machine.roster.propose(0.0)
    office.store.apply(ops)
    coming = DeviceId(plan.clusters[0].leader)
    office.give(offline(coming))
    assert timers(office.machine._clusters.adopt(plan, 7.0)) == {f"coordinator.grace.{coming}": 37.0}


def test_the_loss_of_the_last_missing_leader_lets_the_round_go_on() -> None:
    office = two_clusters()
    first, second = office.leaders
    office.open_round()
    office.contribute(first, {first: (1,)})
    office.give(offline(second))
    assert jobs(office.give(TimerFired(f"coordinator.grace.{second}")), AggregateRound)


def test_a_leader_lost_during_the_aggregation_is_replaced_when_the_books_are_closed() -> None:
    office = one_cluster()
    (leader,) = office.leaders
    office.open_round()
    office.contribute(leader, {A: (1,)})
    office.give(offline(leader))
    assert office.give(TimerFired(f"coordinator.grace.{leader}")) == []
    commands = office.aggregated(leader)
    assert LeaderReplaced in told(commands)
    for message in published(commands, Kind.ASSIGNMENT):
        assert isinstance(message, Assignment)
        for member in message.members:
            assert member.settled == (SeqSet(1) if member.device == A else SeqSet())


def test_a_leader_that_misses_two_rounds_is_replaced_though_it_says_it_is_online() -> None:
    office = one_cluster()
    (leader,) = office.leaders
    office.open_round()
    assert LeaderReplaced not in told(office.give(TimerFired("coordinator.deadline")))
    office.open_round()
    assert LeaderReplaced in told(office.give(TimerFired("coordinator.deadline")))
    assert office.leaders != [leader]


def test_a_cluster_without_a_live_device_keeps_its_leader() -> None:
    office = one_cluster()
    (leader,) = office.leaders
    for device in (A, B):
        office.give(offline(device))
    assert told(office.give(TimerFired(f"coordinator.grace.{leader}"))) == [ClusterOrphaned]
    assert office.leaders == [leader]
    assert office.give(TimerFired("coordinator.grace.stranger")) == []


# --- restart


def test_a_restart_while_gathering_gathers_on() -> None:
    office = Office()
    office.give(online(A))
    office.restart()
    assert "coordinator.gather" in timers(office.give(online(A)))


def test_a_restart_between_rounds_opens_the_next() -> None:
    office = one_cluster()
    assert timers(office.restart())["coordinator.open"] == 10.0


def test_each_restart_during_a_round_opens_another_attempt() -> None:
    """Leaders send again only when the attempt grows: it must be durable before the round is announced."""
    office = one_cluster()
    office.open_round()
    attempts = []
    for _ in range(3):
        opened = published(office.restart(), Kind.ROUND_OPEN)[-1]
        assert isinstance(opened, RoundOpen)
        attempts.append((opened.round_no, opened.attempt))
    assert attempts == [(1, 1), (1, 2), (1, 3)]


def test_a_restart_during_a_round_opens_it_again_as_a_new_attempt() -> None:
    office = two_clusters()
    first, second = office.leaders
    office.open_round()
    office.contribute(first, {first: (1,)})
    commands = office.restart()
    opened = published(commands, Kind.ROUND_OPEN)[-1]
    assert isinstance(opened, RoundOpen)
    assert (opened.round_no, opened.attempt) == (1, 1)
    office.contribute(first, {first: (1,)})
    assert jobs(office.contribute(second, {}), AggregateRound)


def resumed(office: Office) -> tuple[CoordinatorMachine, list[Command]]:
    """A coordinator that was started again and has a link, but has read nothing yet."""
    machine = coordinator_machine(**office.rules)
    return machine, machine.handle(Started(office.store.load()), 0.0) + machine.handle(LinkUp(), 0.0)


def test_a_coordinator_that_resumes_publishes_nothing_before_it_has_looked() -> None:
    office = two_clusters()
    office.open_round()
    machine, commands = resumed(office)
    for event in (online(A), online(C), offline(office.leaders[0])):
        commands += machine.handle(event, 1.0)
    assert not [c for c in commands if isinstance(c, Publish)]
    assert timers(commands)["coordinator.look"] == 5.0
    later = machine.handle(TimerFired("coordinator.look"), 5.0)
    assert published(later, Kind.MANIFEST), "the broker holds nothing: it has lost what was retained"
    assert published(later, Kind.ROUND_OPEN)


def test_an_old_copy_of_the_state_refuses_without_touching_the_broker() -> None:
    office = one_cluster()
    machine, commands = resumed(office)
    newer = msgspec.structs.replace(machine._model.manifest, round_no=9, digest=bytes(16))
    with pytest.raises(ConfigError, match="old copy"):
        machine.handle(arrived(Kind.MANIFEST, COORDINATOR, newer), 1.0)
    assert not [c for c in commands if isinstance(c, Publish)]


def test_a_device_that_came_while_the_coordinator_looked_is_placed() -> None:
    office = one_cluster()
    machine, _ = resumed(office)
    assert not [c for c in machine.handle(online(C), 1.0) if isinstance(c, Publish)]
    later = machine.handle(arrived(Kind.MANIFEST, COORDINATOR, machine._model.manifest), 2.0)
    assert machine.roster.cluster_of(C) is not None
    assert len(published(later, Kind.ASSIGNMENT)) >= 3


def test_a_leader_that_lost_its_store_while_the_coordinator_looked_loses_its_term() -> None:
    office = two_clusters()
    leader = office.leaders[0]

    def announced(store: bytes) -> Arrived:
        return arrived(Kind.STATUS, leader, msgspec.structs.replace(status(), store=store))

    office.give(announced(b"before"))
    machine, _ = resumed(office)
    assert machine.handle(announced(b"after"), 1.0) == [], "noted now, a crash would make it forget the loss"
    later = machine.handle(arrived(Kind.MANIFEST, COORDINATOR, machine._model.manifest), 2.0)
    assert DeviceStoreLost in told(later)
    assert machine.roster.terms.get(leader) != office.machine.roster.terms[leader], "its cluster has a new term"


def test_a_link_that_returns_brings_everything_that_must_be_known_again() -> None:
    office = one_cluster()
    office.open_round()
    commands = office.give(LinkUp())
    assert [kind for kind in kinds(commands) if kind.startswith("Publish")] == [
        "Publish GLOBAL_PART", "Publish BOOKS", "Publish MANIFEST",
        "Publish ASSIGNMENT", "Publish ASSIGNMENT", "Publish CLUSTER_NOTE", "Publish ROUND_OPEN",
    ]  # fmt: skip


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 5), st.none() | st.integers(0, 6)), max_size=30))
def test_model_and_books_agree_whatever_crashes(story: list[tuple[int, int | None]]) -> None:
    """Each closed round adds 1 to the model and settles one chunk of A: after any crash both say the same."""
    office = one_cluster(recluster_every=2)
    seq = 1
    for what, die_after in story:
        leader = office.leaders[0]
        settled = office.machine.roster.devices[A].settled
        events: dict[int, object] = {
            0: TimerFired("coordinator.open"),
            1: TimerFired("coordinator.deadline"),
            2: online(A, term=99),
            3: offline(leader),
            4: TimerFired(f"coordinator.grace.{leader}"),
        }
        if what in events:
            office.give(events[what], die_after=die_after)
        else:
            seq = settled.upto + 1
            office.contribute(leader, {A: (seq,)})
            number = office.machine.counter.opened
            if office.machine._rounds.aggregating:
                office.give(RoundAggregated(number, ZERO + 1, {leader: 1.0}, {}), die_after=die_after)
        machine = office.machine
        assert machine.doubled_chunks == 0
        assert machine.model[0] == machine.roster.devices[A].settled.upto == machine.counter.completed
        assert machine._model.manifest.round_no == machine.counter.closed <= machine.counter.opened
        assert machine.roster.seats(), "someone leads"


# --- faults that were found and mended


def test_a_coordinator_that_lost_its_store_goes_on_above_the_terms_of_its_devices() -> None:
    office = Office()
    office.give(online(A, term=7))
    office.give(online(B, term=7))
    commands = office.give(TimerFired("coordinator.gather"))
    assert all(m.term > 7 for m in published(commands, Kind.ASSIGNMENT) if isinstance(m, Assignment))


def given_terms(commands: list[Command]) -> set[int]:
    return {m.term for m in published(commands, Kind.ASSIGNMENT) if isinstance(m, Assignment)}


def test_a_device_that_claims_the_last_term_does_not_stop_the_federation() -> None:
    """The attack: one Status of 39 bytes, after which no assignment could be encoded any more."""
    office = Office(recluster_every=1)
    office.begin(A, B, C, D)
    refusal = dropped(office.give(online(A, term=2**53 - 1)))
    assert (refusal.sender, "--take-over" in refusal.reason) == (A, True)
    for seq in (1, 2):
        office.open_round()
        leaders = office.leaders
        for leader in leaders:
            office.contribute(leader, {leader: (seq,)})
        commands = office.aggregated(*leaders)
        assert given_terms(commands) == {seq + 1}
        for message in published(commands, Kind.ASSIGNMENT):
            encode(message)
        office.restart()
        for device in (A, B, C, D):
            office.give(online(device))
    assert office.machine.roster.highest_term == 3


def test_one_claim_of_the_last_term_moves_a_new_coordinator_by_a_bounded_step() -> None:
    office = Office()
    for device, term in ((A, 7), (B, 7), (C, 2**53 - 1), (D, 0)):
        office.give(online(device, term=term))
    terms = given_terms(office.give(TimerFired("coordinator.gather")))
    assert all(7 < term <= 7 + MAX_LONE_TERM_STEP + 1 for term in terms)


def test_two_claims_of_the_last_term_leave_terms_for_everybody() -> None:
    office = Office()
    for device in (A, B):
        office.give(online(device, term=2**53 - 1))
    terms = given_terms(office.give(TimerFired("coordinator.gather")))
    assert all(term <= MAX_TERM_STEP + 1 for term in terms)


def test_a_receipt_is_never_longer_than_the_body_has_parts() -> None:
    office = two_clusters()
    office.open_round()
    leader = office.leaders[0]
    office.contribute(leader, {leader: (1,)})
    part = office.parts(leader, {leader: (1,)})[0]
    hostile = Part(part.term, part.round_no, part.stage, 0, 1_000_000, part.digest, b"")
    messages: list[Message] = published(office.give(arrived(Kind.CONTRIBUTION, leader, hostile)), Kind.RECEIPT)
    assert all(len(m.parts) < 100 for m in messages if isinstance(m, PartReceipt))


def test_a_stored_model_of_another_shape_is_not_taken_up() -> None:
    office = one_cluster()
    for other in (coordinator_machine(size=SIZE + 1), coordinator_machine(model=b"othermod")):
        with pytest.raises(ConfigError, match="choose another state folder"):
            other.handle(Started(office.store.load()), 0.0)


def test_an_aggregation_that_never_ends_has_a_deadline() -> None:
    office = one_cluster()
    (leader,) = office.leaders
    office.open_round()
    assert timers(office.contribute(leader, {A: (1,)})) == {"coordinator.deadline": 600.0}
    office.now = 600.0
    commands = office.give(TimerFired("coordinator.deadline"))
    assert told(commands) == [RoundAbandoned]
    assert timers(commands) == {"coordinator.open": 610.0}
    assert office.aggregated(leader) == [], "a result that comes after all does not count"
    assert office.machine.roster.devices[A].settled == SeqSet()


def test_rounds_open_while_the_leaders_to_come_make_their_key() -> None:
    office = one_cluster()
    office.machine._rounds.key.maker._opened = KeyOpen(2, 1, (), 1, "main")
    office.timers.names.add("coordinator.keys.deadline")
    assert published(office.give(TimerFired("coordinator.open")), Kind.ROUND_OPEN)


def sealed_status(device: str) -> Arrived:
    return arrived(Kind.STATUS, device, msgspec.structs.replace(status(), sealing_key=bytes(32)))


def test_while_no_key_can_be_made_it_is_tried_again_and_again() -> None:
    office = Office(protection="threshold")
    office.begin(A, B, C, D)
    for _ in range(3):
        commands = office.give(TimerFired("coordinator.open"))
        assert KeyGenerationBegun not in told(commands), "no leader has announced its sealing key"
        assert "coordinator.open" in timers(commands)
    for device in (A, B, C, D):
        office.give(sealed_status(device))
    assert KeyGenerationBegun in told(office.give(TimerFired("coordinator.open")))


def test_a_leader_lost_while_the_key_is_made_does_not_stop_the_federation() -> None:
    office = Office(protection="threshold")
    office.begin(A, B, C, D)
    for device in (A, B, C, D):
        office.give(sealed_status(device))
    assert KeyGenerationBegun in told(office.give(TimerFired("coordinator.open")))
    lost = office.leaders[0]
    office.give(offline(lost))
    commands = office.give(TimerFired(f"coordinator.grace.{lost}"))
    assert LeaderReplaced in told(commands)
    assert "coordinator.open" in timers(commands), "the key of the leaders that are left is made next"
    assert KeyGenerationBegun in told(office.give(TimerFired("coordinator.open")))


def test_the_models_card_is_said_again_with_every_link() -> None:
    machine = coordinator_machine(card=b"the card")
    machine.handle(Started(), 0.0)
    for _ in range(2):
        commands = machine.handle(LinkUp(), 0.0)
        assert Publish(Topic(Kind.CARD, COORDINATOR), Card(b"the card"), retain=True) in commands


def test_when_most_leaders_miss_their_rounds_one_at_a_time_is_replaced() -> None:
    """Overload makes all of them late: to replace all at once would put cold ones in their place."""
    office = two_clusters()
    before = set(office.leaders)
    replaced = 0
    for _ in range(2):
        office.open_round()
        replaced += told(office.give(TimerFired("coordinator.deadline"))).count(LeaderReplaced)
    assert replaced == 1
    assert len(before & set(office.leaders)) == 1


def test_a_leader_to_come_that_goes_offline_ends_its_key_generation_at_once_and_is_not_proposed_again() -> None:
    office = Office(protection="threshold")
    office.begin(A, B, C, D)
    for device in (A, B, C, D):
        office.give(sealed_status(device))
    maker, clusters = office.machine._rounds.key.maker, office.machine._clusters
    office.machine._rounds.lost.update(office.leaders)
    persist(office.store, list(clusters._propose(office.now)))
    (coming, *_) = sorted({member.leader for member in maker._opened.members} - set(office.leaders))  # type: ignore[union-attr]
    office.timers.names.add("coordinator.keys.deadline")
    commands = office.give(offline(coming))
    assert KeyGenerationFailed((coming,)) in commands
    assert not maker.waits_for(coming)
    assert coming in office.machine._rounds.failing(office.now)
    assert coming not in office.machine._rounds.key.failing(office.now + 1800.0), "it is forgiven after a while"


def test_a_leader_in_office_that_goes_offline_may_come_back_and_resume() -> None:
    office = Office(protection="threshold")
    office.begin(A, B, C, D)
    for device in (A, B, C, D):
        office.give(sealed_status(device))
    office.give(TimerFired("coordinator.open"))
    leader = office.leaders[0]
    commands = office.give(offline(leader))
    assert KeyGenerationFailed not in told(commands)
    assert office.machine._rounds.making_key


def test_a_coordinator_that_restarts_while_a_key_is_made_goes_on_with_the_same_attempt() -> None:
    office = Office(protection="threshold")
    office.begin(A, B, C, D)
    for device in (A, B, C, D):
        office.give(sealed_status(device))
    office.give(TimerFired("coordinator.open"))
    opened = office.machine._rounds.key.maker._opened
    assert opened is not None
    commands = office.restart()
    assert office.machine._rounds.key.maker._opened == opened
    assert "coordinator.keys.deadline" in timers(commands)
    assert "coordinator.keys.resend" in timers(commands)
    assert KeyGenerationBegun not in told(commands)


def test_a_key_that_failed_is_made_anew_soon_even_while_a_round_is_open() -> None:
    office = Office(protection="threshold")
    office.begin(A, B, C, D)
    for device in (A, B, C, D):
        office.give(sealed_status(device))
    office.give(TimerFired("coordinator.open"))
    opened = office.machine._rounds.key.maker._opened
    assert opened is not None
    commands = office.give(JobFailed(MakeKeys, "boom", term=opened.term, attempt=opened.attempt))
    assert timers(commands)["coordinator.keys.tend"] == office.now + 1.0
    assert KeyGenerationBegun in told(office.give(TimerFired("coordinator.keys.tend")))
