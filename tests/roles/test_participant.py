"""A leader's part in making the joint key: through a bad post, restarts, and others who do not play by the rules."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from ofl_iot.ids import COORDINATOR, DeviceId
from ofl_iot.protocol.codec import encode_body
from ofl_iot.protocol.key_messages import KeyMember, KeyOpen
from ofl_iot.protocol.messages import Message, Part, PartReceipt, RoundOpen
from ofl_iot.protocol.parts import split_body
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.roles.commands import Persist, Publish
from ofl_iot.roles.events import Arrived, Event, JobFailed, KeysBegun, KeysFinished, SealingKeyMade, Started
from ofl_iot.roles.job_kinds.keys import BeginKeys, FinishKeys, KeyMaterial, MakeSealingKey
from ofl_iot.roles.keys.holder import KeyHolder
from ofl_iot.roles.keys.participant import (
    AGAIN,
    DEAL,
    FAULT,
    MAX_REPEATS,
    NEXT,
    OPEN,
    ROUND1,
    ROUND2,
    STEPS,
    TABLE,
)
from ofl_iot.roles.reports.base import LateMessageDropped, MessageDropped
from ofl_iot.roles.reports.keys import KeyGenerationDisputed, KeyWorkFailed
from ofl_iot.roles.transfer import PATIENCE
from tests.roles.circle import Circle, lossy, names
from tests.roles.parties import assigned, assignment, dropped, jobs, kinds, published

A, B, C = names(3)
PRIVATE, PUBLIC = bytes(32), bytes([7]) * 32


def keeper(*, sealed: bool = True) -> KeyHolder:
    machine = KeyHolder(A, 2.0)
    machine.handle(Started(), 0.0)
    if sealed:
        machine.handle(SealingKeyMade(PRIVATE, PUBLIC), 0.0)
    return machine


def opening(attempt: int = 1, *, term: int = 1, key: bytes = PUBLIC) -> KeyOpen:
    return KeyOpen(term, attempt, (KeyMember(A, key), KeyMember(B, bytes([8]) * 32)), 2, "main")


def opened(message: KeyOpen | None = None, sender: str = COORDINATOR) -> Arrived:
    message = message or opening()
    (part,) = split_body(encode_body(message), message.term, message.attempt, OPEN)
    return from_(sender, part)


def from_(sender: str, message: Message) -> Arrived:
    return Arrived(Topic(Kind.KEYS, DeviceId(sender), A), message)


def part(stage: str, *, attempt: int = 1, term: int = 1, body: bytes = b"body") -> Part:
    return split_body(body, term, attempt, stage)[0]


# --- the law: whoever takes part has the same public key, and a share that is stored


@pytest.mark.parametrize("count", [2, 4, 6])
def test_leaders_make_one_key_without_a_dealer(count: int) -> None:
    circle = Circle(names(count))
    assert circle.make_key()
    materials = [circle.keepers[name].material for name in circle.leaders]
    assert len({material.public for material in materials if material}) == 1
    assert len({material.share for material in materials if material}) == count
    key = circle.office.maker.key
    assert key is not None
    assert {material.key_id for material in materials if material} == {key.key_id}
    for name, material in zip(circle.leaders, materials, strict=True):
        stored = circle.stores[name].load()[TABLE]["material"]
        assert msgspec.msgpack.decode(stored, type=KeyMaterial) == material
    assert circle.ran(BeginKeys) == circle.ran(FinishKeys) == count


@pytest.mark.parametrize("seed", range(4))
def test_lost_doubled_and_reordered_messages_only_take_longer(seed: int) -> None:
    circle = Circle(names(3), seed=seed, fate=lossy(0.35, seed, twice=0.3), shuffled=True)
    assert circle.make_key(wait_s=200.0)
    assert circle.ran(BeginKeys) == circle.ran(FinishKeys) == 3
    circle.fate = lambda *_: 1
    circle.wait(400.0)
    assert not any("resend" in timer for timers in circle.timers.values() for timer in timers)


def test_no_secret_goes_over_the_post() -> None:
    circle = Circle(names(2))
    assert circle.make_key()
    secrets = [job.secret for _, job in circle.done if isinstance(job, FinishKeys)]
    private = [circle.stores[name].load()[TABLE]["private"] for name in circle.leaders]
    shares = [circle.keepers[name].material.share for name in circle.leaders]  # type: ignore[union-attr]
    wire = [message.body for _, _, message in circle.sent if isinstance(message, Part)]
    for secret in (*secrets, *private, *shares):
        assert not any(secret[:32] in body or secret[-32:] in body for body in wire)
        assert repr(secret)[2:40] not in repr([job for _, job in circle.done])


# --- order and restarts


def test_a_new_device_makes_a_sealing_key_and_an_old_one_keeps_it() -> None:
    circle = Circle([A])
    assert circle.ran(MakeSealingKey) == 1
    public = circle.keepers[A].sealing_public
    circle.restart(A)
    assert circle.ran(MakeSealingKey) == 1
    assert circle.keepers[A].sealing_public == public


def test_the_key_share_is_stored_before_the_coordinator_hears_of_it() -> None:
    machine = keeper()
    machine.handle(opened(), 0.0)
    material = KeyMaterial(opening(), b"k" * 16, b"public", b"share")
    commands = machine.handle(KeysFinished(1, 1, material, b"two"), 1.0)
    assert kinds(commands)[:3] == ["Persist", "KeyShareReady", "Publish KEYS"]
    assert machine.material == material


def test_an_opening_before_the_sealing_key_is_not_confirmed_so_that_it_comes_again() -> None:
    machine = keeper(sealed=False)
    assert kinds(machine.handle(opened(), 0.0)) == ["LateMessageDropped"]
    machine.handle(SealingKeyMade(PRIVATE, PUBLIC), 0.1)
    commands = machine.handle(opened(), 1.0)
    assert kinds(commands) == ["Persist", "Publish KEYS", "Compute"], "what is confirmed is durable"
    assert jobs(commands, BeginKeys)


def test_a_doubled_opening_begins_once() -> None:
    machine = keeper()
    assert jobs(machine.handle(opened(), 0.0), BeginKeys)
    assert kinds(machine.handle(opened(), 0.1)) == ["Publish KEYS"]


@pytest.mark.parametrize("lost", [OPEN, ROUND1, DEAL, ROUND2])
@pytest.mark.parametrize("seed", range(3))
def test_a_leader_that_restarts_at_any_step_resumes_with_the_same_bytes(lost: str, seed: int) -> None:
    """What should reach B or come from it in this stage is lost, then B restarts: one attempt, one set of secrets."""
    circle = Circle(names(3), seed=seed, shuffled=True)
    circle.fate = lambda sender, to, message: int(B not in (sender, to) or getattr(message, "stage", "") != lost)
    assert not circle.make_key(wait_s=5.0)
    circle.restart(B)
    circle.fate = lambda *_: 1
    circle.wait(60.0, lambda: not circle.office.maker.under_way)
    key = circle.office.maker.key
    assert key is not None
    assert key.opened.attempt == 1
    assert circle.ran(BeginKeys, B) == 1
    assert circle.office.failures == []
    assert not [told for _, told in circle.told if isinstance(told, KeyGenerationDisputed | KeyWorkFailed)]


@pytest.mark.parametrize("stop", range(14))
def test_a_crash_between_broadcast_and_deals_accuses_nobody(stop: int) -> None:
    """The known fault: only some of what B sent arrives, then B restarts and the rest comes from its second life."""
    circle = Circle(names(3))
    passed = 0

    def some(sender: str, _to: str, message: Message) -> int:
        nonlocal passed
        passed += sender == B and isinstance(message, Part)
        return int(sender != B or not isinstance(message, Part) or passed <= stop)

    circle.fate = some
    circle.make_key(wait_s=0.5)
    circle.restart(B)
    circle.fate = lambda *_: 1
    circle.wait(60.0, lambda: not circle.office.maker.under_way)
    assert circle.office.maker.key is not None
    assert not [told for _, told in circle.told if isinstance(told, KeyGenerationDisputed | KeyWorkFailed)]


def test_a_leader_says_nothing_of_its_secrets_before_they_are_durable() -> None:
    machine = keeper()
    machine.handle(opened(), 0.0)
    commands = machine.handle(KeysBegun(1, 1, b"secret", b"one", {A: b"mine", B: b"yours"}), 0.5)
    assert kinds(commands)[:2] == ["Persist", "Publish KEYS"]


def test_what_others_sent_is_durable_before_it_is_confirmed() -> None:
    machine = keeper()
    machine.handle(opened(), 0.0)
    for stage in (ROUND1, DEAL):
        assert kinds(machine.handle(from_(B, part(stage)), 0.5)) == ["Persist", "Publish KEYS"]


def test_the_secret_is_gone_when_the_share_is_stored_and_all_steps_when_a_round_is_opened() -> None:
    circle = Circle(names(2))
    circle.fate = lambda sender, _to, message: int(not (sender == B and getattr(message, "stage", "") == ROUND2))
    assert not circle.make_key(wait_s=1.0)
    steps = circle.stores[A].load()[STEPS]
    assert steps.keys() == {"opened", "one", "deals", "two"}
    circle.fate = lambda *_: 1
    circle.wait(40.0, lambda: not circle.office.maker.under_way)
    key = circle.office.maker.key
    assert key is not None
    circle.give(A, Arrived(Topic(Kind.ROUND_OPEN, COORDINATOR), RoundOpen(1, 0, (), 0, 1.0, key.key_id)))
    assert STEPS not in circle.stores[A].load() or not circle.stores[A].load()[STEPS]


def test_the_old_share_is_deleted_only_when_a_round_is_opened_under_the_new_key() -> None:
    circle = Circle(names(2))
    assert circle.make_key(term=1)
    old = circle.keepers[A].material
    assert old is not None
    circle.fate = lambda sender, _to, message: int(not (sender == B and getattr(message, "stage", "") == ROUND2))
    circle.make_key(term=2, wait_s=1.0)
    assert circle.keepers[A].material == old
    circle.restart(A)
    assert circle.keepers[A].material == old, "both shares are stored"
    circle.fate = lambda *_: 1
    circle.wait(40.0, lambda: not circle.office.maker.under_way)
    key = circle.office.maker.key
    assert key is not None
    for key_id in (b"", old.key_id, b"no such key"):
        circle.give(A, Arrived(Topic(Kind.ROUND_OPEN, COORDINATOR), RoundOpen(1, 0, (), 0, 1.0, key_id)))
        assert circle.keepers[A].material == old
    circle.give(A, Arrived(Topic(Kind.ROUND_OPEN, COORDINATOR), RoundOpen(2, 0, (), 0, 1.0, key.key_id)))
    circle.restart(A)
    material = circle.keepers[A].material
    assert material is not None
    assert material.key_id == key.key_id
    assert old.share not in circle.stores[A].load()[TABLE].values()
    assert not circle.stores[A].load().get(NEXT)


def test_a_leader_is_asked_to_repeat_itself_only_so_often() -> None:
    machine = keeper()
    machine.handle(opened(), 0.0)
    machine.handle(KeysBegun(1, 1, b"secret", b"one", {A: b"mine", B: b"yours"}), 0.5)
    for stage in (ROUND1, DEAL):
        machine.handle(from_(B, PartReceipt(1, 1, stage, (0,))), 0.6)
    asked = [from_(B, part(AGAIN, body=str(number).encode())) for number in range(MAX_REPEATS + 2)]
    answers = [published(machine.handle(each, 1.0), Kind.KEYS) for each in asked]
    repeated = [any(isinstance(message, Part) for message in answer) for answer in answers]
    assert repeated == [True] * MAX_REPEATS + [False] * 2


def test_a_leader_that_has_gone_is_not_written_to_for_ever() -> None:
    circle = Circle(names(3), fate=lambda sender, to, _message: int(C not in (sender, to)))
    assert not circle.make_key(wait_s=60.0)
    circle.carry_out(COORDINATOR, list(circle.office.maker.stop()))
    circle.wait(PATIENCE * 2.0 + 60.0)
    count = len(circle.sent)
    circle.wait(10_000.0)
    assert len(circle.sent) == count


def test_parts_that_come_before_the_opening_wait_for_it_in_bounds() -> None:
    circle = Circle(names(3))
    circle.fate = lambda sender, to, message: int(not (to == C and getattr(message, "stage", "") == OPEN))
    assert not circle.make_key(wait_s=1.0)
    for number in range(500):
        circle.give(C, Arrived(Topic(Kind.KEYS, A, C), part(ROUND1, attempt=2 + number)))
    circle.fate = lambda *_: 1
    circle.wait(40.0, lambda: circle.office.maker.key is not None)
    assert circle.office.maker.key is not None


# --- who may say what


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (opened(sender=B), "leader-1 is not the coordinator and opens no key generation"),
        (from_(C, part(ROUND1)), "leader-2 takes no part in this key generation"),
        (from_(B, part(ROUND2)), "a leader does not expect the stage 'two'"),
    ],
)
def test_what_does_not_belong_is_dropped_with_its_sender_named(event: Arrived, reason: str) -> None:
    machine = keeper()
    machine.handle(opened(), 0.0)
    report = dropped(machine.handle(event, 1.0))
    assert report.reason == reason
    assert report.sender == event.topic.sender


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (KeyOpen(1, 1, (KeyMember(B, PUBLIC), KeyMember(C, PUBLIC)), 2, "main"), "is not part of"),
        (opening(key=bytes([9]) * 32), "is not part of"),
    ],
)
def test_a_key_generation_without_this_device_and_its_sealing_key_is_refused(message: KeyOpen, reason: str) -> None:
    receipt, report = keeper().handle(opened(message), 0.0)
    assert isinstance(receipt, Publish)
    assert isinstance(report, MessageDropped)
    assert reason in report.reason


def test_an_opening_that_contradicts_its_parts_is_refused() -> None:
    (lying,) = split_body(encode_body(opening(attempt=9)), 1, 1, OPEN)
    *_, report = keeper().handle(from_(COORDINATOR, lying), 0.0)
    assert isinstance(report, MessageDropped)
    assert "another term or attempt" in report.reason


def test_an_older_attempt_is_confirmed_so_that_it_ends_and_is_not_taken() -> None:
    machine = keeper()
    machine.handle(opened(opening(attempt=2)), 0.0)
    (late,) = machine.handle(opened(opening(attempt=1)), 1.0)
    assert isinstance(late, LateMessageDropped)
    receipt, late = machine.handle(from_(B, part(DEAL, attempt=1)), 1.0)
    assert isinstance(receipt, Publish)
    assert receipt.message == PartReceipt(1, 1, DEAL, (0,))
    assert isinstance(late, MessageDropped)


def test_results_of_an_earlier_attempt_are_void() -> None:
    machine = keeper()
    machine.handle(opened(opening(attempt=2)), 0.0)
    material = KeyMaterial(opening(), b"k" * 16, b"public", b"share")
    assert machine.handle(KeysFinished(1, 1, material, b"two"), 1.0) == []
    assert machine.material is None


def test_nobody_is_accused_in_an_attempt_for_what_failed_in_an_earlier_one() -> None:
    machine = keeper()
    machine.handle(opened(opening(attempt=2)), 0.0)
    for job in (BeginKeys, FinishKeys):
        stale = machine.handle(JobFailed(job, "boom", (B,), term=1, attempt=1), 1.0)
        assert not [c for c in stale if isinstance(c, Publish)]
    (fault,) = published(machine.handle(JobFailed(FinishKeys, "boom", (B,), term=1, attempt=2), 1.0), Kind.KEYS)
    assert isinstance(fault, Part)
    assert (fault.stage, fault.body) == (FAULT, B.encode())


def test_a_deal_that_cannot_be_opened_is_laid_at_its_senders_door() -> None:
    circle = Circle(names(3))
    real = circle.tools[B][BeginKeys]

    def forge(job: BeginKeys) -> Event:
        begun = real(job)
        assert isinstance(begun, KeysBegun)
        return replace(begun, deals={name: bytes(len(box)) for name, box in begun.deals.items()})

    circle.tools[B][BeginKeys] = forge
    assert not circle.make_key(wait_s=5.0)
    assert circle.office.maker.missing() == {B}
    assert any(isinstance(tell, KeyGenerationDisputed) for _, tell in circle.told)
    complaints = [message.body for _, _, message in circle.sent if isinstance(message, Part) and message.stage == FAULT]
    assert set(complaints) == {B.encode()}


# --- the end of a key


def test_a_device_that_leads_no_longer_deletes_its_key_share() -> None:
    circle = Circle(names(2))
    assert circle.make_key(term=3)
    same_term = assigned(assignment(3, B), A)
    circle.give(A, same_term)
    assert circle.keepers[A].material is not None
    (command,) = circle.give(A, assigned(assignment(4, B), A))
    assert isinstance(command, Persist)
    assert circle.keepers[A].material is None
    assert "material" not in circle.stores[A].load()[TABLE]
    circle.give(B, assigned(assignment(4, B), B))
    assert circle.keepers[B].material is not None


def test_receipts_without_a_conversation_are_ignored() -> None:
    assert keeper().handle(from_(B, PartReceipt(1, 1, ROUND1, (0,))), 0.0) == []


def test_begun_sends_to_everyone_and_the_coordinator() -> None:
    circle = Circle(names(2))
    assert circle.make_key()
    first = [
        (sender, topic.receiver, message.stage)
        for sender, topic, message in circle.sent
        if isinstance(message, Part) and sender != COORDINATOR
    ]
    assert set(first) == {
        (sender, to, stage)
        for sender, other in ((A, B), (B, A))
        for to, stage in ((other, ROUND1), (other, DEAL), (COORDINATOR, ROUND1), (COORDINATOR, ROUND2))
    }
