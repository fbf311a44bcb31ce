"""The coordinator's part in making the joint key: who is called, who is named, what survives."""

from __future__ import annotations

import pytest

from ofl_iot.errors import ConfigError, LateError, RefusedError
from ofl_iot.ids import COORDINATOR, DeviceId
from ofl_iot.protocol.key_messages import KeyMember
from ofl_iot.protocol.messages import Part, PartReceipt
from ofl_iot.protocol.parts import split_body
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.roles.commands import Command, Publish
from ofl_iot.roles.events import KeysMade
from ofl_iot.roles.job_kinds.keys import BeginKeys, CoordinatorKey, MakeKeys
from ofl_iot.roles.keys.ceremony import DEADLINE, MOST_EXTENSIONS, KeyCeremony
from ofl_iot.roles.keys.participant import AGAIN, FAULT, MAX_REPEATS, OPEN, ROUND1, ROUND2
from ofl_iot.roles.reports.base import Report
from ofl_iot.roles.reports.keys import KeyGenerationBegun, KeyGenerationDisputed, KeyGenerationSlow
from ofl_iot.roles.settings import ProtectionRules
from ofl_iot.runtime.store import MemoryStore
from tests.roles.circle import Circle, names
from tests.roles.parties import jobs, kinds, persist, published, timers

A, B, C = names(3)
SEALING = {name: bytes([number + 1]) * 32 for number, name in enumerate((A, B, C))}
MEMBERS = tuple(KeyMember(name, key) for name, key in SEALING.items())


def maker(**rules: object) -> KeyCeremony:
    return KeyCeremony(ProtectionRules(key_deadline_s=60.0, resend_s=2.0, **rules))  # type: ignore[arg-type]


def begun(made: KeyCeremony | None = None) -> tuple[KeyCeremony, list[Command]]:
    made = made or maker()
    return made, list(made.begin(5, MEMBERS, 0.0))


def say(made: KeyCeremony, sender: str, stage: str, body: bytes = b"x", *, attempt: int = 1) -> list[Command]:
    return [c for part in split_body(body, 5, attempt, stage) for c in made.receive(DeviceId(sender), part, 1.0)]


def test_everyone_is_called_and_the_collusion_bound_is_told() -> None:
    _, commands = begun()
    called = [c.topic.receiver for c in commands if isinstance(c, Publish)]
    assert called == [A, B, C]
    (told,) = [c for c in commands if isinstance(c, KeyGenerationBegun)]
    assert told.threshold == 2
    assert told.collusion_bound == 1
    assert timers(commands)[DEADLINE] == 30.0, "half the deadline: leaders are reminded first"


@pytest.mark.parametrize(
    ("leaders", "threshold", "bound"), [(2, "all", 0), (2, "majority", 0), (3, "all", 1), (3, "majority", 1)]
)
def test_of_a_sum_and_all_terms_but_one_the_last_is_known(leaders: int, threshold: object, bound: int) -> None:
    (told,) = [
        c for c in maker(threshold=threshold).begin(5, MEMBERS[:leaders], 0.0) if isinstance(c, KeyGenerationBegun)
    ]
    assert told.collusion_bound == bound


@pytest.mark.parametrize(("threshold", "expected"), [("all", 3), ("majority", 2), (2, 2), (3, 3)])
def test_the_threshold_is_a_rule(threshold: object, expected: int) -> None:
    made = maker(threshold=threshold)
    begun(made)
    for name in SEALING:
        for stage in (ROUND1, ROUND2):
            commands = say(made, name, stage)
    (job,) = jobs(commands, MakeKeys)
    assert job.opened.threshold == expected


def test_a_threshold_beyond_the_leaders_is_refused() -> None:
    with pytest.raises(ConfigError, match="threshold 4"):
        begun(maker(threshold=4))


def test_a_key_belongs_to_its_leaders_and_their_term() -> None:
    circle = Circle(names(2))
    assert circle.make_key(term=5)
    made = circle.office.maker
    assert made.fits({A: 5, B: 4})
    assert not made.fits({A: 5, B: 6}), "a new term has a key of its own"
    assert not made.fits({A: 5})
    assert not made.fits({A: 5, B: 5, C: 5})
    circle.restart(COORDINATOR)
    assert circle.office.maker.fits({A: 5, B: 4})
    assert not circle.office.maker.under_way


def test_while_a_new_key_is_made_the_old_one_stays_in_use() -> None:
    circle = Circle(names(2))
    assert circle.make_key(term=5)
    old = circle.office.maker.key
    shares = [circle.keepers[name].material for name in circle.leaders]
    circle.fate = lambda _from, _to, message: int(getattr(message, "stage", "") != ROUND2)
    assert not circle.make_key(term=6, wait_s=1.0)
    circle.restart(COORDINATOR)
    assert circle.office.maker.key == old
    assert [circle.keepers[name].material for name in circle.leaders] == shares
    circle.fate = lambda *_: 1
    circle.wait(20.0, lambda: not circle.office.maker.under_way)
    assert circle.office.maker.fits({A: 6, B: 6}), "the coordinator resumed the ceremony"
    assert circle.ran(BeginKeys) == 4, "nobody had to begin anew"


def test_a_key_that_is_ready_waits_until_it_is_installed_also_over_a_restart() -> None:
    made, store = maker(), MemoryStore()
    for term, key_id in ((5, b"old"), (6, b"new")):
        persist(store, list(made.begin(term, MEMBERS, 0.0)))
        assert made._opened is not None
        persist(store, list(made.made(KeysMade(CoordinatorKey(made._opened, key_id, b"", b"")))))
    again = maker()
    again.restore(store.load())
    assert again.key is not None
    assert again.key.key_id == b"old"
    assert again.ready_for({A: 6, B: 6, C: 6})
    assert again.has_key_of({A: 6, B: 6, C: 6})
    persist(store, list(again.install()))
    last = maker()
    last.restore(store.load())
    assert last.fits({A: 6, B: 6, C: 6})
    assert last.ready is None


def test_whatever_a_leader_sent_is_durable_before_it_is_confirmed() -> None:
    made, _ = begun()
    for stage in (ROUND1, ROUND2):
        assert kinds(say(made, A, stage))[:2] == ["Persist", "Publish KEYS"]


def test_a_coordinator_that_restarts_goes_on_with_what_it_holds_and_asks_for_the_rest() -> None:
    made, store = maker(), MemoryStore()
    persist(store, begun(made)[1])
    for name in (A, B):
        persist(store, say(made, name, ROUND1))
    persist(store, say(made, A, ROUND2))
    again = maker()
    again.restore(store.load())
    commands = list(again.resume(7.0))
    assert timers(commands)[DEADLINE] == 37.0
    stages = {(c.topic.receiver, c.message.stage) for c in commands if isinstance(c, Publish)}  # type: ignore[union-attr]
    assert stages == {(name, stage) for name in (B, C) for stage in (OPEN, AGAIN)}, "A owes nothing"
    say(again, C, ROUND1)
    say(again, B, ROUND2)
    (job,) = jobs(say(again, C, ROUND2), MakeKeys)
    assert job.round1_shares.keys() == {A, B, C}


def test_progress_extends_the_deadline_but_not_for_ever() -> None:
    made, _ = begun()
    first, second = split_body(bytes(100_000), 5, 1, ROUND1)
    assert timers(list(made.receive(A, first, 20.0)))[DEADLINE] == 50.0
    assert DEADLINE not in timers(list(made.receive(A, PartReceipt(5, 1, OPEN, (0,)), 21.0)))
    assert timers(list(made.receive(A, second, 595.0)))[DEADLINE] == 600.0
    assert DEADLINE not in timers(list(made.receive(A, second, 596.0))), "a repetition is no progress"
    assert not made.expired(599.0)
    assert made.expired(600.0)


def test_leaders_that_owe_something_are_reminded_before_they_are_given_up() -> None:
    made, _ = begun()
    for name in (A, B, C):
        list(made.receive(name, PartReceipt(5, 1, OPEN, (0,)), 1.0))
    say(made, A, ROUND1)
    say(made, A, ROUND2)
    assert not made.expired(31.0)
    commands = list(made.overdue(31.0))
    assert {c.topic.receiver for c in commands if isinstance(c, Publish)} == {B, C}, "a confirmed opening is repeated"
    assert timers(commands)[DEADLINE] == 61.0
    assert made.expired(61.0)


def test_when_most_are_missing_they_are_slow_and_get_more_time_a_few_times() -> None:
    made, _ = begun()
    for _ in range(MOST_EXTENSIONS):
        assert made.slow
        commands = list(made.go_on(100.0))
        assert KeyGenerationSlow((A, B, C)) in commands
        assert timers(commands)[DEADLINE] == 130.0
    assert not made.slow
    fewer, _ = begun()
    for name in (A, B):
        say(fewer, name, ROUND1)
    assert not fewer.slow, "one of three is missing"


def test_a_leader_asks_for_a_repetition_only_so_often() -> None:
    made, _ = begun()
    list(made.receive(A, PartReceipt(5, 1, OPEN, (0,)), 1.0))
    answers = [published(say(made, A, AGAIN, str(number).encode()), Kind.KEYS) for number in range(MAX_REPEATS + 2)]
    repeated = [any(isinstance(message, Part) for message in answer) for answer in answers]
    assert repeated == [True] * MAX_REPEATS + [False] * 2


def test_every_attempt_has_another_number_also_after_a_restart() -> None:
    store, made = MemoryStore(), maker()
    persist(store, begun(made)[1])
    again = maker()
    again.restore(store.load())
    parts = published(begun(again)[1], Kind.KEYS)
    assert {part.round_no for part in parts if isinstance(part, Part)} == {2}


def test_who_is_missing_is_named_by_what_it_owes() -> None:
    made, _ = begun()
    assert made.missing() == {A, B, C}
    for name in (A, B):
        say(made, name, ROUND1)
    assert made.missing() == {C}
    say(made, C, ROUND1)
    assert made.missing() == set(), "somebody's deals are missing, and nobody can say whose"
    say(made, A, ROUND2)
    assert made.missing() == {B, C}
    say(made, B, FAULT, C.encode())
    assert made.missing() == {C}
    with pytest.raises(RefusedError):
        say(made, A, FAULT, b"nobody")
    assert made.missing() == {C}
    list(made.stop())
    assert made.missing() == set()


def test_a_key_generation_that_was_ended_does_not_come_back_with_a_restart() -> None:
    store, made = MemoryStore(), maker()
    persist(store, begun(made)[1])
    persist(store, list(made.stop()))
    again = maker()
    again.restore(store.load())
    assert not again.under_way
    assert list(again.resume(5.0)) == []


def test_a_complaint_ends_the_attempt_at_once() -> None:
    made, _ = begun()
    commands = say(made, B, FAULT, C.encode())
    assert timers(commands)[DEADLINE] == 1.0
    assert [c for c in commands if isinstance(c, Report)] == [KeyGenerationDisputed(B, C)]


def test_the_key_is_summed_once_when_all_is_there() -> None:
    made, _ = begun()
    commands = [c for name in SEALING for stage in (ROUND2, ROUND1, ROUND2, ROUND1) for c in say(made, name, stage)]
    assert len(jobs(commands, MakeKeys)) == 1


def test_the_key_is_not_summed_before_the_last_broadcast_is_here() -> None:
    made, _ = begun()
    commands = [c for name in SEALING for c in say(made, name, ROUND2)]
    commands += [c for name in (A, B) for c in say(made, name, ROUND1)]
    assert not jobs(commands, MakeKeys)
    assert jobs(say(made, C, ROUND1), MakeKeys)


def test_only_members_speak_and_only_of_what_is_expected() -> None:
    made, _ = begun()
    with pytest.raises(RefusedError, match="stranger takes no part"):
        say(made, "stranger", ROUND1)
    with pytest.raises(RefusedError, match="does not expect the stage 'open'"):
        say(made, A, OPEN)


def test_what_comes_late_is_confirmed_and_dropped() -> None:
    made, _ = begun()
    begun(made)
    late = made.receive(A, split_body(b"x", 5, 1, ROUND1)[0], 1.0)
    command = next(late)
    assert isinstance(command, Publish)
    assert command.topic == Topic(Kind.KEYS, COORDINATOR, A)
    assert command.message == PartReceipt(5, 1, ROUND1, (0,))
    with pytest.raises(LateError):
        next(late)
    with pytest.raises(LateError):
        list(made.receive(A, PartReceipt(5, 1, OPEN, (0,)), 1.0))


def test_a_key_of_an_earlier_attempt_is_void() -> None:
    made, _ = begun()
    for name in SEALING:
        for stage in (ROUND1, ROUND2):
            commands = say(made, name, stage)
    (job,) = jobs(commands, MakeKeys)
    begun(made)
    assert list(made.made(KeysMade(CoordinatorKey(job.opened, b"", b"", b"")))) == []
    assert made.key is None


def test_openings_are_sent_again_until_they_are_confirmed() -> None:
    made, _ = begun()
    list(made.receive(A, PartReceipt(5, 1, OPEN, (0,)), 0.5))
    assert len(published(list(made.send_due(2.1)), Kind.KEYS)) == 2
    made.link_lost()
    assert len(published(list(made.send_due(2.2)), Kind.KEYS)) == 2
    list(made.stop())
    assert list(made.send_due(9.0)) == []
