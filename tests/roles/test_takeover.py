"""A coordinator that takes over reads what the one before left at the broker."""

from __future__ import annotations

import random

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofl_iot.errors import ConfigError
from ofl_iot.fleet.assignment import FleetSettings
from ofl_iot.ids import COORDINATOR
from ofl_iot.protocol.codec import decode_body
from ofl_iot.protocol.key_messages import KeyOpen
from ofl_iot.protocol.messages import Assignment, Books, Manifest, Part
from ofl_iot.protocol.seqset import SeqSet
from ofl_iot.protocol.topics import Kind
from ofl_iot.roles.commands import Publish, Unsubscribe
from ofl_iot.roles.coordinator.claim import CoordinatorClaim
from ofl_iot.roles.coordinator.global_model import GlobalModel
from ofl_iot.roles.coordinator.machine import CoordinatorMachine
from ofl_iot.roles.coordinator.profile import CoordinatorRules, ModelProfile
from ofl_iot.roles.coordinator.takeover import TakeoverReader
from ofl_iot.roles.events import Arrived, LinkUp, Started, TimerFired
from ofl_iot.roles.keys.ceremony import MOST_EXTENSIONS
from ofl_iot.roles.keys.participant import OPEN
from ofl_iot.roles.reports.coordinator import NothingToTakeOver, TakeoverBegun, TakeoverDone
from ofl_iot.roles.settings import FleetRules, ProtectionRules, RoundRules
from ofl_iot.runtime.store import MemoryStore
from tests.roles.laws import PendingTimers, waits_for_ever
from tests.roles.parties import MODEL, SIZE, A, B, C, D, arrived, persist, published, status, timers, told

SETTLED = {str(A): SeqSet(4), "gone": SeqSet(2, (5, 6))}
SIZES = st.integers(0, 40_000)


def left_behind(values: np.ndarray, settled: dict[str, SeqSet], *, final: bool = False) -> list[Arrived]:
    """What another coordinator retains at the broker after its round 7, of which 6 were closed."""
    model = GlobalModel(MODEL, values, lambda: 3, lambda: Books(6, settled))
    model.incarnation = b"other"
    model.advance(values, 7, (), lambda _: True, final=final)
    return [
        Arrived(command.topic, command.message)
        for command in model.publish()
        if isinstance(command, Publish) and not isinstance(command.message, bytes)
    ]


@given(SIZES, st.dictionaries(st.sampled_from(["a", "b", "c"]), st.builds(SeqSet, st.integers(1, 99))), st.randoms())
@settings(deadline=None, max_examples=30)
def test_a_legacy_is_complete_in_any_order_and_with_repetitions_and_never_before(
    size: int, settled: dict[str, SeqSet], order: random.Random
) -> None:
    values = np.random.default_rng(size).normal(size=size).astype(np.float32)
    messages = left_behind(values, settled)
    order.shuffle(messages)
    inheritance = TakeoverReader(MODEL, size)
    for event in messages[:1] + messages:
        assert inheritance.complete() is None
        if isinstance(event.message, Manifest):
            inheritance.take_manifest(event.message)
        else:
            inheritance.take_part(event.topic.kind, event.message)  # type: ignore[arg-type]
    legacy = inheritance.complete()
    assert legacy is not None
    np.testing.assert_array_equal(legacy.values, values)
    assert legacy.books == Books(6, settled)
    assert inheritance.complete() is None, "once"


def test_a_model_of_another_kind_is_not_taken_over() -> None:
    manifest = left_behind(np.zeros(SIZE, np.float32), {})[-1].message
    assert isinstance(manifest, Manifest)
    with pytest.raises(ConfigError, match="another one than is to be learnt"):
        TakeoverReader(MODEL, SIZE + 1).take_manifest(manifest)


class Heir:
    """A coordinator without a past that takes over, or one that has nobody before it."""

    def __init__(self, *, discard_model: bool = False, take_over: bool = True, mode: str = "clear") -> None:
        self._claim = {"take_over": take_over, "discard_model": discard_model}
        self._mode = mode
        self.store = MemoryStore()
        self.machine, self.timers = self._new(), PendingTimers()
        self.give(Started())
        self.give(LinkUp())

    def _new(self) -> CoordinatorMachine:
        protection = ProtectionRules(mode=self._mode)  # type: ignore[arg-type]
        rules = CoordinatorRules(RoundRules(), FleetRules(gather_s=1.0), protection, FleetSettings())
        name = b"heir" if self._claim["take_over"] else b"other"
        return CoordinatorMachine(
            ModelProfile(MODEL, np.zeros(SIZE, np.float32)), rules, CoordinatorClaim(name, **self._claim)
        )

    def give(self, event: object) -> list:
        commands = self.machine.handle(event, 1.0)  # type: ignore[arg-type]
        persist(self.store, commands)
        self.timers.step(event, commands)
        assert not self.timers.linked or not waits_for_ever(self.machine, self.timers.names)
        return commands

    def restart(self) -> None:
        self.machine, self.timers = self._new(), PendingTimers()
        self.give(Started(self.store.load()))


def test_an_heir_goes_on_from_the_model_the_books_and_the_rounds_of_the_one_before() -> None:
    heir, values = Heir(), np.arange(SIZE, dtype=np.float32)
    *parts, manifest = left_behind(values, SETTLED)
    for device in (A, B):
        assert not timers(heir.give(arrived(Kind.STATUS, device, status()))), "it does not begin before it has read"
    for part in parts:
        heir.give(part)
    commands = heir.give(manifest)
    assert told(commands) == [TakeoverBegun, TakeoverDone]
    assert "coordinator.gather" in timers(commands), "until then a later version may come"
    np.testing.assert_array_equal(heir.machine.model, values)
    assert (heir.machine.counter.closed, heir.machine.counter.completed) == (7, 6)
    begun = heir.give(TimerFired("coordinator.gather"))
    assert {c.kind for c in begun if isinstance(c, Unsubscribe)} == {Kind.GLOBAL_PART, Kind.BOOKS}
    assigned = [each for each in published(begun, Kind.ASSIGNMENT) if isinstance(each, Assignment)]
    assert {each.term for each in assigned} == {5}, "above the other's and above its own claim"
    assert SETTLED[A] in [each.settled for each in assigned]
    heir.restart()
    assert heir.machine.roster.settled == SETTLED, "a device that was not heard of yet keeps its books"
    heir.give(arrived(Kind.STATUS, "gone", status()))
    assert heir.machine.roster.settled == SETTLED


def openings(commands: list) -> list[KeyOpen]:
    """The key generations that leaders are called to."""
    return [
        decode_body(KeyOpen, message.body)
        for message in published(commands, Kind.KEYS)
        if isinstance(message, Part) and message.stage == OPEN
    ]


def test_the_first_key_of_an_heir_is_above_all_that_leaders_have_heard_of() -> None:
    """Leaders take part in no key generation below one they were called to, though no term came of it."""
    other, heir = Heir(take_over=False, mode="threshold"), Heir(mode="threshold")
    present = [
        arrived(Kind.STATUS, device, msgspec.structs.replace(status(), sealing_key=bytes([number]) * 32))
        for number, device in enumerate((A, B, C, D), 1)
    ]
    for each in present:
        other.give(each)
    commands = other.give(TimerFired("coordinator.gather"))
    for _ in range(4):
        other.machine._rounds.progress.recluster_soon()
        for _ in range(2 * MOST_EXTENSIONS + 2):  # reminded and given more time, again and again; then given up
            commands += other.give(TimerFired("coordinator.keys.deadline"))
    retained = {c.topic: c.message for c in commands if isinstance(c, Publish) and c.retain}
    heard_of = [(opened.term, opened.attempt) for opened in openings(commands)]
    assert {term for term, _ in heard_of} == {1, 2, 3, 4, 5}, "none of them began"
    heir_says: list = []
    for event in (*present, *(Arrived(topic, message) for topic, message in retained.items())):
        if event.topic.kind in (Kind.STATUS, Kind.MANIFEST, Kind.GLOBAL_PART, Kind.BOOKS):
            heir_says += heir.give(event)
    heir_says += heir.give(TimerFired("coordinator.gather"))
    first = openings(heir_says)[0]
    assert (first.term, first.attempt) > max(heard_of)


def test_the_last_model_of_the_one_before_may_come_late() -> None:
    heir = Heir()
    for event in left_behind(np.ones(SIZE, np.float32), {}):
        heir.give(event)
    *parts, manifest = left_behind(np.full(SIZE, 2.0, np.float32), SETTLED)
    waiting = heir.give(manifest)
    assert "coordinator.inherit" in timers(waiting)
    assert "coordinator.gather" not in timers(waiting)
    for part in parts:
        heir.give(part)
    np.testing.assert_array_equal(heir.machine.model, np.full(SIZE, 2.0))
    assert heir.machine.roster.settled == SETTLED


def test_a_broker_that_holds_nothing_lets_the_heir_begin_anew_with_a_warning() -> None:
    heir = Heir()
    commands = heir.give(TimerFired("coordinator.inherit"))
    assert told(commands) == [NothingToTakeOver]
    assert "coordinator.gather" in timers(commands)
    assert not heir.machine.model.any()


@pytest.mark.parametrize("known", [slice(0, 1), slice(1, 2), slice(2, 3), slice(0, 2), slice(1, 3)])
def test_a_broker_that_holds_half_of_it_is_not_overwritten_unless_the_operator_says_so(known: slice) -> None:
    heir = Heir()
    for event in left_behind(np.ones(SIZE, np.float32), SETTLED)[known]:
        assert "coordinator.inherit" in timers(heir.give(event)), "the time begins anew with every piece"
    with pytest.raises(ConfigError, match="--take-over anew"):
        heir.give(TimerFired("coordinator.inherit"))


def test_who_begins_anew_does_not_wait_for_a_model() -> None:
    heir = Heir(discard_model=True)
    for event in left_behind(np.ones(SIZE, np.float32), SETTLED):
        heir.give(event)
    for device in (A, B):
        heir.give(arrived(Kind.STATUS, device, status()))
    begun = heir.give(TimerFired("coordinator.gather"))
    assert {each.term for each in published(begun, Kind.ASSIGNMENT) if isinstance(each, Assignment)} == {5}
    assert not heir.machine.model.any()


def test_a_damaged_model_is_not_taken_over() -> None:
    heir = Heir()
    *events, last = left_behind(np.full(SIZE, np.nan, np.float32), SETTLED)
    for event in events:
        heir.give(event)
    with pytest.raises(ConfigError, match="damaged"):
        heir.give(last)


def test_a_federation_that_had_ended_has_ended_for_its_heir_too() -> None:
    heir = Heir()
    for event in left_behind(np.ones(SIZE, np.float32), SETTLED, final=True):
        heir.give(event)
    assert heir.machine.finished
    assert heir.give(TimerFired("coordinator.gather")) == []


def test_whoever_does_not_take_over_ignores_models_and_books() -> None:
    rules = CoordinatorRules(RoundRules(), FleetRules(), ProtectionRules(mode="clear"), FleetSettings())
    machine = CoordinatorMachine(
        ModelProfile(MODEL, np.zeros(SIZE, np.float32)), rules, CoordinatorClaim(b"me", take_over=False)
    )
    machine.handle(Started(), 0.0)
    for event in left_behind(np.ones(SIZE, np.float32), SETTLED)[:-1]:
        assert machine.handle(event, 0.0) == []
    assert COORDINATOR not in machine.roster.settled
