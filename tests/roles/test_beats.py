"""A leader's changes: told once to all members, numbered without gaps, and enough to hold its published model."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofl_iot.crypto.cluster_seal import ClusterSeal, Place
from ofl_iot.ids import COORDINATOR, DeviceId
from ofl_iot.protocol.codec import decode, encode
from ofl_iot.protocol.messages import Blocks, ClusterChange, Follower, Message, Pull, Standing
from ofl_iot.protocol.telemetry import Telemetry
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.protocol.values import Precision
from ofl_iot.roles.block_layout import BlockLayout
from ofl_iot.roles.commands import Command, Persist, Publish, Subscribe, Unsubscribe
from ofl_iot.roles.device.machine import DeviceMachine
from ofl_iot.roles.device.privacy_guard import PrivacyRules
from ofl_iot.roles.device.profile import DeviceProfile, DeviceRules
from ofl_iot.roles.events import LinkDown, LinkUp, Measured, Started, TimerFired, Trained
from ofl_iot.roles.job_kinds.device import PrepareRelease, TrainLocally
from ofl_iot.roles.leader.machine import STATE, LeaderMachine, LeaderProfile
from ofl_iot.roles.reports.base import LateMessageDropped
from ofl_iot.roles.settings import DownloadRules, LeaderRules, TrainingRules, UploadRules
from ofl_iot.runtime.store import MemoryStore
from tests.roles.parties import (
    BLOCK,
    MODEL,
    SIZE,
    A,
    B,
    C,
    Unweighted,
    arrived,
    assigned,
    assignment,
    chunk_of,
    dropped,
    global_model,
    jobs,
    office,
    persist,
    prepared,
    published,
    timers,
)

LAYOUT = BlockLayout(SIZE, BLOCK)
PRIVATE = bytes(range(32))


class Sealing:
    """A leader's sealing key and no joint key."""

    material = None
    sealing_private = PRIVATE


def rules_of(values: Precision = "single", gamma: float = 1.0) -> LeaderRules:
    return LeaderRules(
        block_size=BLOCK, values="single", publish="beat", beat_s=2.0, beat_gamma=gamma, beat_values=values
    )


def leading(
    members: Iterable[str] = (A, B), store: MemoryStore | None = None, rules: LeaderRules | None = None
) -> LeaderMachine:
    """A leader of `members`, linked, standing on global model 0."""
    machine = LeaderMachine(
        LeaderProfile(A, MODEL, LAYOUT, encrypted=False), rules or rules_of(), Unweighted(), Sealing()
    )
    commands = machine.handle(Started(), 0.0) + machine.handle(LinkUp(), 0.0)
    commands += machine.handle(assigned(office(members=members)), 0.0) + adopt(machine, 0, 0.0)
    if store is not None:
        persist(store, commands)
    return machine


def adopt(machine: LeaderMachine, round_no: int, values: float | np.ndarray, now: float = 0.0) -> list[Command]:
    parts, manifest = global_model(round_no, values)
    commands = [c for part in parts for c in machine.handle(arrived(Kind.GLOBAL_PART, COORDINATOR, part), now)]
    return commands + machine.handle(arrived(Kind.MANIFEST, COORDINATOR, manifest), now)


def merge(machine: LeaderMachine, seq: int, values: dict[int, float], now: float, sender: str = B) -> list[Command]:
    return machine.handle(arrived(Kind.UPDATE, sender, chunk_of(seq, values), A), now)


def report(machine: LeaderMachine, sender: str, version: int, now: float) -> list[Command]:
    pull = Pull(1, b"", 0, packed=True, follower=Follower(version, 1))
    return machine.handle(arrived(Kind.PULL, sender, pull, A), now)


def beat(machine: LeaderMachine, now: float) -> list[Command]:
    return machine.handle(TimerFired("leader.beat"), now)


def told_to_members(commands: Iterable[Command]) -> list[ClusterChange]:
    """What leaves on the cluster's topic; what is for the leader's own device names it."""
    return [
        c.message
        for c in commands
        if isinstance(c, Publish) and isinstance(c.message, ClusterChange) and c.topic.receiver is None
    ]


def following(name: DeviceId = B, *, gamma_down: float = 1.0) -> DeviceMachine:
    machine = DeviceMachine(
        DeviceProfile(name, MODEL, SIZE, BLOCK, 10),
        DeviceRules(
            training=TrainingRules(steps=1, max_unreleased=3, start="synced"),
            upload=UploadRules(gamma=1.0, values="single"),
            download=DownloadRules(gamma=gamma_down),
            privacy=PrivacyRules(mode="off"),
            leader=rules_of(),
        ),
    )
    machine.handle(Started(), 0.0)
    machine.handle(LinkUp(), 0.0)
    return machine


def carry(commands: Iterable[Command], kind: Kind) -> list[Message]:
    """Messages as they arrive: through their bytes."""
    return [decode(kind, encode(message)) for message in published(commands, kind)]


def exchange(device: DeviceMachine, leader: LeaderMachine, commands: Iterable[Command], now: float) -> list[Command]:
    """Hand a device's pulls to its leader and the answers back; returns what the device then wants."""
    me, wants = device.profile.device, []
    for pull in carry(commands, Kind.PULL):
        for blocks in carry(leader.handle(arrived(Kind.PULL, me, pull, A), now), Kind.BLOCKS):
            wants += device.handle(arrived(Kind.BLOCKS, A, blocks, me), now)
    return wants


def tell(device: DeviceMachine, change: ClusterChange, now: float = 0.0) -> list[Command]:
    wire = decode(Kind.CLUSTER_CHANGE, encode(change))
    return device.handle(arrived(Kind.CLUSTER_CHANGE, A, wire), now)


def in_step(leader: LeaderMachine, name: DeviceId = B) -> DeviceMachine:
    device = following(name)
    commands = device.handle(assigned(assignment(leader=A), name), 0.0)
    assert Subscribe(Kind.CLUSTER_CHANGE, sender=A) in commands
    exchange(device, leader, commands, 0.0)
    assert device.following.in_step
    return device


def linked_at(mbps: float) -> Telemetry:
    return Telemetry(
        cpu_count=4, cpu_ghz=1.5, cpu_load=0.2, memory_total_mib=8192, memory_free_mib=4096, network_mbps=mbps
    )


# --- when a leader publishes


def test_a_beat_comes_when_all_members_have_reported() -> None:
    machine = leading()
    beat(machine, 2.0)
    merge(machine, 1, {0: 1.0}, 2.1)
    assert not told_to_members(report(machine, A, 2, 2.2))
    (change,) = told_to_members(report(machine, B, 2, 2.3))
    assert (change.term, change.version, change.parts) == (1, 3, 1)


def test_nobody_waits_longer_than_a_beat_for_a_slower_member() -> None:
    machine = leading()
    beat(machine, 2.0)
    commands = merge(machine, 1, {0: 1.0}, 2.1)
    assert timers(commands)["leader.beat"] == 4.0
    assert told_to_members(beat(machine, 4.0))
    assert "leader.beat" not in timers(beat(machine, 4.0)), "there is nothing new"


def test_the_number_of_a_change_is_stored_before_it_leaves() -> None:
    machine = leading()
    commands = beat(machine, 2.0)
    kinds = [type(command) for command in commands]
    assert kinds.index(Persist) < kinds.index(Publish)


def test_a_leader_without_other_members_says_nothing_on_the_broker() -> None:
    machine = leading(members=(A,))
    commands = beat(machine, 2.0)
    assert not told_to_members(commands)
    own = [c.topic for c in commands if isinstance(c, Publish) and c.topic.kind is Kind.CLUSTER_CHANGE]
    assert own == [Topic(Kind.CLUSTER_CHANGE, A, A)], "its own device is told"


def test_a_change_has_the_largest_differences_and_with_a_new_round_all_of_them() -> None:
    machine = leading(rules=rules_of(gamma=0.25))
    beat(machine, 2.0)
    merge(machine, 1, {place: float(place) for place in range(1, SIZE)}, 2.1)
    (few,) = told_to_members(beat(machine, 4.0))
    adopt(machine, 1, 5.0, 4.5)
    (whole,) = told_to_members(beat(machine, 6.0))
    counts = [len(_opened(change).read_indices()) for change in (few, whole)]
    assert counts == [3, SIZE]
    assert (few.round_no, whole.round_no) == (0, 1)


def _opened(change: ClusterChange):
    place = Place(change.version, change.part, change.parts, change.round_no)
    return decode(Kind.UPDATE, ClusterSeal.of_leader(PRIVATE, A, 1).open(change.body, place))


def test_without_a_link_no_number_is_used_up() -> None:
    machine = leading()
    beat(machine, 2.0)
    merge(machine, 1, {0: 1.0}, 2.1)
    machine.handle(LinkDown(), 2.2)
    assert not published(beat(machine, 4.0), Kind.CLUSTER_CHANGE)
    assert timers(machine.handle(LinkUp(), 5.0))["leader.beat"] == 5.0
    (change,) = told_to_members(beat(machine, 5.0))
    assert change.version == 3


def test_who_does_not_stand_at_the_last_change_does_not_count_as_waiting() -> None:
    machine = leading()
    beat(machine, 2.0)
    merge(machine, 1, {0: 1.0}, 2.1)
    report(machine, A, 2, 2.2)
    assert not told_to_members(report(machine, B, 1, 2.3)), "the last change is on its way to it"


# --- what members hold


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.dictionaries(st.integers(0, SIZE - 1), st.floats(-3, 3, width=32), min_size=1), max_size=12),
    st.sampled_from(["single", "half", "byte", "nibble"]),
    st.sampled_from([0.1, 0.5, 1.0]),
)
def test_who_applies_every_change_holds_the_published_model(
    updates: list[dict[int, float]], values: Precision, gamma: float
) -> None:
    leader = leading(rules=rules_of(values, gamma))
    beat(leader, 2.0)
    device = in_step(leader)
    for number, update in enumerate(updates, 1):
        merge(leader, number, update, 2.0 * number)
        for change in told_to_members(beat(leader, 2.0 * number + 2.0)):
            tell(device, change)
    published_model = leader._beats.published
    assert published_model is not None
    assert device.following.version == published_model.version
    np.testing.assert_array_equal(device.model.synced, published_model.model)
    np.testing.assert_array_equal(device.model.seen, published_model.cumulative_change)
    np.testing.assert_array_equal(device.model.base, device.model.synced)


def test_what_a_device_trains_and_does_not_release_survives_a_change() -> None:
    leader = leading()
    beat(leader, 2.0)
    device = in_step(leader)
    start = device.model.start_training()
    device.model.trained(start, start + np.float32(1.0))
    device.model.released(chunk_of(1, {0: 1.0}), perturbed=False)
    merge(leader, 1, {0: 1.0, 3: 2.0}, 2.1)
    (change,) = told_to_members(beat(leader, 4.0))
    tell(device, change)
    expected = np.ones(SIZE, np.float32)
    expected[0] = 0.0
    np.testing.assert_array_equal(device.model.unreleased, expected)
    np.testing.assert_array_equal(device.model.start_training(), device.model.synced)


def test_a_gap_is_pulled_and_what_came_meanwhile_is_applied_behind_the_answer() -> None:
    leader = leading()
    beat(leader, 2.0)
    device = in_step(leader)
    changes = []
    for number in range(1, 4):
        merge(leader, number, {number: float(number)}, 2.0 * number)
        changes += told_to_members(beat(leader, 2.0 * number + 2.0))
    lost, overtaking, _ = changes
    assert lost.version + 1 == overtaking.version
    commands = tell(device, overtaking)
    assert not device.following.in_step
    (pull,) = published(commands, Kind.PULL)
    assert isinstance(pull, Pull)
    assert pull.max_blocks == LAYOUT.count
    answer = carry(leader.handle(arrived(Kind.PULL, B, pull, A), 9.0), Kind.BLOCKS)
    merge(leader, 4, {5: 5.0}, 9.0)
    (early,) = told_to_members(beat(leader, 10.0))
    tell(device, early)  # it overtakes the answer
    for blocks in answer:
        device.handle(arrived(Kind.BLOCKS, A, blocks, B), 10.0)
    assert device.following.in_step
    assert device.following.version == early.version
    np.testing.assert_array_equal(device.model.synced, leader.cluster.model)


def test_an_answer_that_is_not_whole_does_not_bring_a_device_in_step() -> None:
    leader = leading(rules=msgspec.structs.replace(rules_of(), blocks_bytes=1024))
    beat(leader, 2.0)
    device = following()
    commands = device.handle(assigned(assignment(leader=A), B), 0.0)
    (pull,) = published(commands, Kind.PULL)
    (blocks,) = carry(leader.handle(arrived(Kind.PULL, B, pull, A), 0.0), Kind.BLOCKS)
    assert isinstance(blocks, Blocks)
    assert blocks.standing is not None
    more = msgspec.structs.replace(blocks.standing, count=blocks.standing.count + 1)
    device.handle(arrived(Kind.BLOCKS, A, msgspec.structs.replace(blocks, standing=more), B), 0.0)
    assert device.model.complete
    assert not device.following.in_step


def test_a_part_of_a_change_that_comes_twice_counts_once() -> None:
    leader = leading()
    beat(leader, 2.0)
    device = in_step(leader)
    merge(leader, 1, {1: 1.0}, 2.1)
    (change,) = told_to_members(beat(leader, 4.0))
    tell(device, change)
    assert tell(device, change)
    np.testing.assert_array_equal(device.model.synced, leader.cluster.model)


def test_a_leader_that_restarts_leaves_a_gap_and_hands_everything_down_again() -> None:
    store = MemoryStore()
    leader = leading(store=store)
    persist(store, beat(leader, 2.0))
    device = in_step(leader)
    persist(store, merge(leader, 1, {1: 1.0}, 2.1))
    persist(store, beat(leader, 4.0))  # stored, but it never left
    again = LeaderMachine(LeaderProfile(A, MODEL, LAYOUT, encrypted=False), rules_of(), Unweighted(), Sealing())
    again.handle(Started(store.load()), 0.0)
    again.handle(LinkUp(), 0.0)
    merge(again, 2, {2: 1.0}, 5.0)
    (change,) = told_to_members(beat(again, 7.0))
    assert change.version > 4, "a number that may have left is never used again"
    exchange(device, again, tell(device, change), 7.0)
    assert device.following.in_step
    np.testing.assert_array_equal(device.model.synced, again.cluster.model)
    assert set(store.load()[STATE]) >= {"beat", "cluster"}


def test_a_leader_that_restarts_before_its_first_change_answers_with_another_number() -> None:
    store = MemoryStore()
    numbers = [leading(store=store)._beats.published.version]
    for _ in range(3):
        again = LeaderMachine(LeaderProfile(A, MODEL, LAYOUT, encrypted=False), rules_of(), Unweighted(), Sealing())
        persist(store, again.handle(Started(store.load()), 0.0))
        numbers.append(again._beats.published.version)
    assert len(set(numbers)) == 4, "what was merged since may differ"


# --- what a device does


def trained(device: DeviceMachine, now: float) -> list[Command]:
    commands = device.handle(Trained(np.zeros(SIZE, np.float32), np.ones(SIZE, np.float32), 0.1, 1, 0.5), now)
    assert jobs(commands, PrepareRelease)
    return device.handle(prepared({0: 1.0}), now)


def test_a_device_in_step_reports_and_waits_for_the_change() -> None:
    leader = leading()
    beat(leader, 2.0)
    device = in_step(leader)
    commands = trained(device, 3.0)
    (pull,) = published(commands, Kind.PULL)
    assert pull == Pull(1, b"", 0, packed=True, follower=Follower(2, 1))
    assert not jobs(commands, TrainLocally)
    merge(leader, 1, {0: 1.0}, 3.1)
    (change,) = told_to_members(beat(leader, 4.0))
    (job,) = jobs(tell(device, change, 4.0), TrainLocally)
    np.testing.assert_array_equal(job.params, leader.cluster.model)


def test_a_device_that_hears_nothing_trains_on_from_its_own_work() -> None:
    leader = leading()
    beat(leader, 2.0)
    device = in_step(leader)
    commands = trained(device, 3.0)
    assert timers(commands)["device.pull"] == 4.0
    (job,) = jobs(device.handle(TimerFired("device.pull"), 4.0), TrainLocally)
    np.testing.assert_array_equal(job.params, np.ones(SIZE))


def test_a_device_whose_link_is_thin_does_not_subscribe_and_pulls_as_ever() -> None:
    leader = leading()
    beat(leader, 2.0)
    device = following(gamma_down=0.5)
    device.handle(Measured(linked_at(1e-6)), 0.0)
    commands = device.handle(assigned(assignment(leader=A), B), 0.0)
    assert not [c for c in commands if isinstance(c, Subscribe)]
    exchange(device, leader, commands, 0.0)
    assert device.model.complete
    assert not device.following.in_step
    (pull,) = published(trained(device, 3.0), Kind.PULL)
    assert isinstance(pull, Pull)
    assert 0 < pull.max_blocks < LAYOUT.count


def test_a_link_that_becomes_thin_ends_the_subscription_and_a_good_one_renews_it() -> None:
    leader = leading()
    beat(leader, 2.0)
    device = in_step(leader)
    commands = device.handle(Measured(linked_at(1e-6)), 3.0)
    assert Unsubscribe(Kind.CLUSTER_CHANGE, sender=A) in commands
    assert not device.following.in_step
    commands = device.handle(Measured(linked_at(100.0)), 4.0)
    assert Subscribe(Kind.CLUSTER_CHANGE, sender=A) in commands


def test_a_new_leader_is_followed_in_place_of_the_old_one() -> None:
    device = in_step(leading())
    commands = device.handle(assigned(assignment(2, leader=C), B), 1.0)
    assert Unsubscribe(Kind.CLUSTER_CHANGE, sender=A) in commands
    assert Subscribe(Kind.CLUSTER_CHANGE, sender=C) in commands
    assert not device.following.in_step


# --- hostile changes


def forged(change: ClusterChange, **fields: object) -> ClusterChange:
    return msgspec.structs.replace(change, **fields)


def test_a_change_that_the_leader_did_not_seal_changes_nothing() -> None:
    leader = leading()
    beat(leader, 2.0)
    device = in_step(leader)
    merge(leader, 1, {1: 1.0}, 2.1)
    (change,) = told_to_members(beat(leader, 4.0))
    before = device.model.synced.copy()
    clear = encode(chunk_of(1, {1: 1e6}))
    for body in (clear, b"", change.body[:-1], bytes(len(change.body))):
        assert dropped(tell(device, forged(change, body=body)))
    assert dropped(tell(device, forged(change, round_no=99)))
    assert dropped(tell(device, forged(change, parts=2)))
    np.testing.assert_array_equal(device.model.synced, before)
    assert device.following.in_step
    tell(device, change)
    np.testing.assert_array_equal(device.model.synced, leader.cluster.model)


def test_a_member_that_speaks_in_the_leaders_place_is_not_heard() -> None:
    leader = leading()
    beat(leader, 2.0)
    device = in_step(leader)
    merge(leader, 1, {1: 1.0}, 2.1)
    (change,) = told_to_members(beat(leader, 4.0))
    before = device.model.synced.copy()
    assert dropped(device.handle(arrived(Kind.CLUSTER_CHANGE, C, change), 4.0), LateMessageDropped)
    assert dropped(tell(device, forged(change, term=2)), LateMessageDropped)
    np.testing.assert_array_equal(device.model.synced, before)


@pytest.mark.parametrize("jump", [2, 1000, 2**52])
def test_numbers_that_jump_lead_to_one_pull_however_many_come(jump: int) -> None:
    leader = leading()
    beat(leader, 2.0)
    device = in_step(leader)
    merge(leader, 1, {1: 1.0}, 2.1)
    (change,) = told_to_members(beat(leader, 4.0))
    pulls = []
    for number in range(50):
        pulls += published(tell(device, forged(change, version=change.version + jump + number)), Kind.PULL)
    assert len(pulls) == 1
    assert len(device.following._ahead) <= 8
    np.testing.assert_array_equal(device.model.synced, np.zeros(SIZE))


def test_a_change_of_another_model_is_refused() -> None:
    leader = leading()
    beat(leader, 2.0)
    device = in_step(leader)
    seal = ClusterSeal.of_leader(PRIVATE, A, 1)
    for chunk in (chunk_of(1, {1: 1.0}, size=99), chunk_of(1, {1: 1.0}, model=b"another-")):
        body = seal.close(encode(chunk), Place(3, 0, 1, 0))
        assert dropped(tell(device, ClusterChange(1, 3, 0, 1, 0, body)))
    np.testing.assert_array_equal(device.model.synced, np.zeros(SIZE))


def test_a_hostile_member_cannot_make_a_leader_publish() -> None:
    machine = leading()
    beat(machine, 2.0)
    merge(machine, 1, {0: 1.0}, 2.1)
    for sender in (B, B, B):
        assert not told_to_members(report(machine, sender, 2, 2.2)), "one member is not all"
    assert dropped(report(machine, C, 2, 2.3), LateMessageDropped), "a stranger is not in the cluster"
    pull = Pull(9, b"", 0, packed=True, follower=Follower(2, 1))
    assert dropped(machine.handle(arrived(Kind.PULL, B, pull, A), 2.3), LateMessageDropped)


def test_a_standing_names_blocks_and_key() -> None:
    leader = leading()
    beat(leader, 2.0)
    pull = Pull(1, np.full(3, -1.0).tobytes(), 9, packed=True, follower=Follower(0, 7))
    (blocks,) = published(leader.handle(arrived(Kind.PULL, B, pull, A), 2.0), Kind.BLOCKS)
    assert isinstance(blocks, Blocks)
    assert blocks.standing == Standing(2, 7, 3, ClusterSeal.of_leader(PRIVATE, A, 1).key)
    old = msgspec.structs.replace(pull, follower=None)
    (blocks,) = published(leader.handle(arrived(Kind.PULL, B, old, A), 2.0), Kind.BLOCKS)
    assert isinstance(blocks, Blocks)
    assert blocks.standing is None, "a device of the version before gets no key"
