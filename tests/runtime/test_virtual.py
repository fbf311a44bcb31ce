"""The virtual runtime: MQTT's promises in memory, the same run for the same seed, speed."""

from __future__ import annotations

import heapq
import itertools
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofl_agents.app import open_app
from ofl_agents.sim.simulation import Simulation
from ofl_agents.sim.summary import Progress
from ofl_iot.roles.commands import CancelTimer, Command, Compute, Persist, SetTimer, Subscribe
from ofl_iot.roles.events import Event, LinkDown, LinkUp, Started, TimerFired, Trained
from ofl_iot.roles.job_kinds.device import TrainLocally
from ofl_iot.roles.reports.base import Report
from ofl_iot.roles.reports.device import DeviceAssigned
from ofl_iot.roles.storage import Put
from ofl_iot.runtime.settings import Settings
from ofl_iot.runtime.settings_file import load_settings
from ofl_iot.runtime.topic_tree import matches
from ofl_iot.runtime.virtual import Party, VirtualWorld
from ofl_iot.runtime.virtual_broker import Faults, LinkRates, Session, VirtualBroker
from tests.chaos.tally import TallyWorld
from tests.counting import count_calls
from tests.runtime.fakes import FEDERATION, ME, Script, Workshop, status

SLOW_NETWORK = Faults(latency_s=(0.01, 1.0))
BUDGET_S = 60.0


class Clock:
    """Happenings in virtual time, for a broker without a world."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def at(self, when: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (when, next(self._order), happen))

    def run(self, until: float = 1e9) -> None:
        while self._heap and self._heap[0][0] <= until:
            self.now, _, happen = heapq.heappop(self._heap)
            happen()
        self.now = max(self.now, min(until, 1e8))


class Room:
    """A broker with clients that note what they get."""

    def __init__(self, *clients: str, faults: Faults = SLOW_NETWORK, seed: int = 0) -> None:
        self.clock = Clock()
        self.broker = VirtualBroker(faults, random.Random(seed), self.clock.at)
        self.got: dict[str, list[tuple[str, bytes]]] = {client: [] for client in clients}
        for client in clients:
            self.join(client)

    def join(self, client: str, will: tuple[str, bytes] | None = None) -> None:
        got = self.got.setdefault(client, [])
        self.broker.register(Session(client, lambda topic, payload: got.append((topic, payload)), will))
        self.broker.connect(client, self.clock.now)

    def subscribe(self, client: str, pattern: str) -> None:
        self.broker.subscribe(client, pattern, self.clock.now)

    def publish(self, client: str, topic: str, payload: bytes, *, retain: bool = False) -> None:
        self.broker.publish(client, topic, payload, self.clock.now, retain=retain)

    def leave(self, client: str) -> None:
        self.broker.disconnect(client, self.clock.now)

    def come_back(self, client: str) -> None:
        self.broker.connect(client, self.clock.now)

    def payloads(self, client: str) -> list[bytes]:
        return [payload for _, payload in self.got[client]]


# --- the broker


@given(seed=st.integers(0, 2**32), senders=st.integers(1, 4), count=st.integers(1, 30))
def test_messages_of_one_sender_reach_one_receiver_in_order(seed: int, senders: int, count: int) -> None:
    room = Room("r", *(f"s{i}" for i in range(senders)), seed=seed)
    room.subscribe("r", "t/+")
    for number, sender in itertools.product(range(count), range(senders)):
        room.publish(f"s{sender}", f"t/{sender}", bytes([number]))
    room.clock.run()
    for sender in range(senders):
        assert [p for t, p in room.got["r"] if t == f"t/{sender}"] == [bytes([n]) for n in range(count)]


@given(
    pattern=st.lists(st.sampled_from(["a", "b", "+"]), min_size=1, max_size=4).map("/".join),
    topics=st.lists(st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=4).map("/".join), max_size=8),
)
def test_a_subscriber_gets_exactly_the_topics_that_match(pattern: str, topics: list[str]) -> None:
    room = Room("r", "s")
    for topic in topics:  # seen before the subscription, so that its route is known
        room.publish("s", topic, b"early")
    room.clock.run()
    room.subscribe("r", pattern)
    for topic in topics:
        room.publish("s", topic, b"x")
    room.clock.run()
    assert [topic for topic, _ in room.got["r"]] == [topic for topic in topics if matches(pattern, topic)]
    room.broker.unsubscribe("r", pattern)
    room.publish("s", pattern.replace("+", "a"), b"x")
    room.clock.run()
    assert room.got["r"] == [(topic, b"x") for topic in topics if matches(pattern, topic)]


@given(
    pattern=st.lists(st.sampled_from(["a", "b", "+"]), min_size=1, max_size=4).map("/".join),
    topics=st.lists(st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=4).map("/".join), max_size=8),
)
def test_a_subscriber_gets_the_retained_topics_that_match_in_the_order_they_came(
    pattern: str, topics: list[str]
) -> None:
    room = Room("r", "s")
    for number, topic in enumerate(topics):
        room.broker.publish("s", topic, bytes([number]), room.clock.now, retain=True)
    room.clock.run()
    room.subscribe("r", pattern)
    room.clock.run()
    last = {topic: bytes([number]) for number, topic in enumerate(topics)}
    assert room.got["r"] == [(topic, value) for topic, value in last.items() if matches(pattern, topic)]


def test_a_message_and_a_subscription_cost_the_same_work_however_many_clients_there_are() -> None:
    def calls(clients: int) -> int:
        names = [f"c{number}" for number in range(clients)]
        room = Room("s", *names)
        for name in names:
            room.subscribe(name, f"to/{name}/+")
            room.broker.publish(name, f"status/{name}", b"here", 0.0, retain=True)
        room.clock.run()

        def once() -> None:
            room.subscribe("c1", "to/c1/again/+")
            room.publish("s", "to/c1/s", b"x")
            room.broker.unsubscribe("c1", "to/c1/again/+")
            room.clock.run()

        once()
        return count_calls(once)

    assert calls(400) <= 1.1 * calls(10)


@given(sizes=st.lists(st.integers(1, 10_000), min_size=1, max_size=8), up=st.integers(10, 10**6))
def test_a_link_with_a_rate_carries_one_message_after_the_other(sizes: list[int], up: int) -> None:
    room, at = Room(), list[float]()
    room.broker.register(Session("r", lambda _topic, _payload: at.append(room.clock.now)))
    room.broker.connect("r", 0.0)
    room.subscribe("r", "t")
    room.broker.register(Session("s", lambda _topic, _payload: None, rates=LinkRates(up=up)))
    room.broker.connect("s", 0.0)
    for size in sizes:
        room.publish("s", "t", bytes(size))
    room.clock.run()
    passed = np.cumsum([size + 1 for size in sizes]) / up
    assert (np.array(at) >= passed).all()
    assert at[-1] <= passed[-1] + 2 * SLOW_NETWORK.latency_s[1]
    assert room.broker.session("s").traffic.up_by_topic == {"t": sum(sizes) + len(sizes)}


def test_a_slow_receiver_waits_for_its_own_link_only() -> None:
    room = Room("s", "fast")
    at: list[float] = []
    room.broker.register(Session("slow", lambda _topic, _payload: at.append(room.clock.now), rates=LinkRates(down=10)))
    room.broker.connect("slow", 0.0)
    for client in ("slow", "fast"):
        room.subscribe(client, "t")
    room.publish("s", "t", bytes(99))
    room.clock.run()
    assert room.payloads("fast") == [bytes(99)]
    assert 10 <= at[0] <= 10 + 2 * SLOW_NETWORK.latency_s[1]


def test_a_message_that_two_patterns_match_comes_once() -> None:
    room = Room("r", "s")
    room.subscribe("r", "a/+")
    room.subscribe("r", "+/b")
    room.publish("s", "a/b", b"x")
    room.clock.run()
    assert room.got["r"] == [("a/b", b"x")]


def test_a_late_subscriber_gets_the_last_retained_message_each_time_it_subscribes() -> None:
    room = Room("r", "s")
    room.publish("s", "t", b"old", retain=True)
    room.publish("s", "t", b"new", retain=True)
    room.publish("s", "u", b"passing")
    room.clock.run()
    room.subscribe("r", "+")
    room.clock.run()
    room.subscribe("r", "+")
    room.clock.run()
    assert room.got["r"] == [("t", b"new"), ("t", b"new")]


def test_a_session_that_is_away_finds_its_messages_in_order() -> None:
    room = Room("r", "s")
    room.subscribe("r", "t")
    room.leave("r")
    for number in range(10):
        room.publish("s", "t", bytes([number]))
    room.clock.run(10)
    assert not room.got["r"]
    room.come_back("r")
    room.clock.run()
    assert room.payloads("r") == [bytes([number]) for number in range(10)]


def test_a_broker_may_forget_the_queue_of_a_session_that_is_away() -> None:
    room = Room("r", "s", faults=Faults(forget_queue=1.0))
    room.subscribe("r", "t")
    room.leave("r")
    room.publish("s", "t", b"x")
    room.clock.run(10)
    room.come_back("r")
    room.clock.run()
    assert not room.got["r"]


@pytest.mark.parametrize(("lose", "arrives"), [(0.0, [b"x"]), (1.0, [])])
def test_what_is_under_way_to_a_connection_that_breaks_comes_again_or_is_lost(
    lose: float, arrives: list[bytes]
) -> None:
    room = Room("r", "s", faults=Faults(latency_s=(1.0, 1.0), lose_under_way=lose))
    room.subscribe("r", "t")
    room.publish("s", "t", b"x")
    room.clock.run(1.5)  # at the broker, not yet at the receiver
    room.leave("r")
    room.clock.run(3)
    room.come_back("r")
    room.clock.run()
    assert room.payloads("r") == arrives


def test_what_is_handed_over_while_away_is_not_taken() -> None:
    room = Room("r", "s")
    room.subscribe("r", "t")
    room.leave("s")
    room.publish("s", "t", b"x")
    room.clock.run()
    assert not room.got["r"]
    assert room.broker.session("s").traffic.up == 0


def test_a_duplicate_comes_right_behind_the_first() -> None:
    room = Room("r", "s", faults=Faults(duplicate=1.0))
    room.subscribe("r", "t")
    for payload in (b"a", b"b"):
        room.publish("s", "t", payload)
    room.clock.run()
    assert room.payloads("r") == [b"a", b"a", b"b", b"b"]


def test_the_last_will_is_published_and_retained_when_a_client_stays_away() -> None:
    room = Room("r")
    room.join("s", will=("status", b"gone"))
    room.subscribe("r", "status")
    room.leave("s")
    room.clock.run()
    room.join("late")
    room.subscribe("late", "status")
    room.clock.run()
    assert room.payloads("r") == room.payloads("late") == [b"gone"]


def test_a_client_that_returns_in_time_has_no_last_will() -> None:
    room = Room("r", faults=Faults(will_delay_s=3.0))
    room.join("s", will=("status", b"gone"))
    room.subscribe("r", "status")
    room.leave("s")
    room.clock.run(2.0)
    room.come_back("s")
    room.clock.run()
    assert not room.got["r"]


def test_traffic_counts_topics_and_payloads_of_both_ways() -> None:
    room = Room("r", "s")
    room.subscribe("r", "topic")
    room.publish("s", "topic", b"12345")
    room.clock.run()
    assert room.broker.session("s").traffic.up == room.broker.session("r").traffic.down == 10


# --- the world


class NoPace:
    def seconds(self, job: Any) -> float:
        return 2.0


def world_with(
    rule: Callable[[Event, float], Sequence[Command]], **more: Any
) -> tuple[VirtualWorld, Party, list[Event]]:
    told: list[Event] = []
    world = VirtualWorld(FEDERATION, Faults(), seed=1)
    party = Party(ME, lambda: Script(rule, told), Workshop(more.pop("work", None)), NoPace(), **more)
    world.add(party)
    return world, party, told


def test_timers_fire_in_order_and_only_the_last_of_a_name() -> None:
    def rule(event: Event, now: float) -> Sequence[Command]:
        if isinstance(event, Started):
            return (
                SetTimer("a", now + 9),
                SetTimer("b", now + 2),
                SetTimer("a", now + 1),
                SetTimer("c", now + 3),
                CancelTimer("c"),
            )
        return ()

    world, _, told = world_with(rule)
    world.run(lambda: False, limit_s=20)
    assert [event for event in told if isinstance(event, TimerFired)] == [TimerFired("a"), TimerFired("b")]


def test_a_training_takes_and_reports_virtual_time() -> None:
    vector = np.zeros(1, np.float32)

    def rule(event: Event, now: float) -> Sequence[Command]:
        return (Compute(TrainLocally(vector, 1)),) if isinstance(event, Started) else ()

    world, _, told = world_with(rule, work=lambda _: Trained(vector, vector, 0.0, 1, seconds=0.001))
    assert world.run(lambda: isinstance(told[-1] if told else None, Trained), limit_s=5)
    assert world.now == 2.0
    assert isinstance(told[-1], Trained)
    assert told[-1].seconds == 2.0


def test_a_crash_voids_timers_and_jobs_but_not_the_store() -> None:
    def rule(event: Event, now: float) -> Sequence[Command]:
        if isinstance(event, Started) and not event.stored:
            job = TrainLocally(np.zeros(1, np.float32), 1)
            return Persist((Put("kept", 1, b"x"),)), SetTimer("old", now + 2), Compute(job)
        return ()

    world, party, told = world_with(rule)
    world.run(lambda: world.now >= 0.01, limit_s=1)
    world.crash(party, for_s=5)
    world.crash(party, for_s=5)
    world.run(lambda: False, limit_s=30)
    assert [type(event) for event in told] == [Started, LinkUp, Started, LinkUp]
    assert told[2] == Started({"kept": {1: b"x"}})
    assert party.crashes == 1


def test_a_cut_link_is_reported_and_mended() -> None:
    world, party, told = world_with(lambda event, now: ())
    world.run(lambda: party.linked, limit_s=1)
    world.cut(party, for_s=3)
    world.cut(party, for_s=3)
    world.run(lambda: False, limit_s=30)
    assert [type(event) for event in told] == [Started, LinkUp, LinkDown, LinkUp]


def test_a_process_that_dies_between_two_commands_does_not_carry_out_the_second() -> None:
    def rule(event: Event, now: float) -> Sequence[Command]:
        if isinstance(event, LinkUp):
            return Persist((Put("kept", 1, b"x"),)), status(1)
        return ()

    world, party, _ = world_with(rule, faults=Faults(crash_between_commands=1.0))
    world.run(lambda: party.crashes > 0, limit_s=60)
    assert party.store.load() == {"kept": {1: b"x"}}
    assert world.broker.session(ME).traffic.up == 0


def test_garbage_does_not_reach_a_machine() -> None:
    from ofl_iot.protocol.topics import Kind

    world, _, told = world_with(lambda event, now: (Subscribe(Kind.PULL),) if isinstance(event, Started) else ())
    world.broker.register(Session("intruder", lambda topic, payload: None))
    world.broker.connect("intruder", 0.0)
    world.broker.publish("intruder", "ofl/v1/lab/cluster/me/pull/intruder", b"garbage", 0.5, retain=False)
    world.run(lambda: False, limit_s=5)
    assert [type(event) for event in told] == [Started, LinkUp]


def test_what_machines_tell_is_counted_and_passed_on_with_the_virtual_time() -> None:
    heard: list[tuple[str, Report, float]] = []
    world = VirtualWorld(FEDERATION, Faults(), 1, lambda name, told, now: heard.append((name, told, now)))
    rule: Any = lambda event, now: (DeviceAssigned(1, ME),) if isinstance(event, Started) else ()  # noqa: E731
    world.add(Party(ME, lambda: Script(rule, []), Workshop(), NoPace()), at=7.0)
    assert not world.run(lambda: False, limit_s=100)
    assert heard == [(ME, DeviceAssigned(1, ME), 7.0)]
    assert world.told == {DeviceAssigned: 1}


def test_a_limit_ends_the_run_before_what_lies_behind_it() -> None:
    def rule(event: Event, now: float) -> Sequence[Command]:
        return (SetTimer("far", 1000.0),) if isinstance(event, Started) else ()

    world, _, told = world_with(rule)
    assert not world.run(lambda: TimerFired("far") in told, limit_s=999)
    assert world.run(lambda: TimerFired("far") in told, limit_s=1001)


# --- the same seed, the same run


class History(Progress):
    """Remembers all that was told, with its virtual time."""

    def __init__(self, rounds: int) -> None:
        super().__init__(rounds)
        self.lines: list[tuple[str, Report, float]] = []

    def listen(self, name: str, told: Report, now: float) -> None:
        super().listen(name, told, now)
        self.lines.append((name, told, now))


def simulate(devices: int, rounds: int, seed: int, folder: Path, mode: str = "rigorous") -> tuple[History, Any]:
    given_settings = {
        "simulation.devices": str(devices),
        "simulation.rounds": str(rounds),
        "simulation.seed": str(seed),
        "round.count": str(rounds),
        "round.interval_s": "1.5",
        "fleet.min_devices": str(devices),
        "fleet.gather_s": "0.5",
        "privacy.mode": mode,
        "federation.app": "digits",
    }
    loaded = load_settings(Settings, [], {}, given_settings).settings
    history = History(rounds)
    fleet = open_app(loaded).fleet(devices, repeats=True)
    return history, Simulation(loaded, history, "virtual", fleet).run(folder)


def test_the_same_seed_gives_the_same_run(tmp_path: Path) -> None:
    (first, summary), (second, again) = (simulate(12, 3, 5, tmp_path) for _ in range(2))
    assert len(first.lines) > 100
    assert first.lines == second.lines
    assert msgspec.structs.replace(summary, wall_s=0.0) == msgspec.structs.replace(again, wall_s=0.0)
    other, _ = simulate(12, 3, 6, tmp_path)
    assert other.lines != first.lines


@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_the_same_seed_gives_the_same_faults(seed: int) -> None:
    def run() -> tuple[float, dict[type[Report], int], list[int], list[float]]:
        rough = Faults(duplicate=0.2, lose_under_way=0.7, forget_queue=0.5, mean_connected_s=10.0, mean_alive_s=15.0)
        fleet = TallyWorld(devices=4, seed=seed, faults=rough)
        fleet.world.run(lambda: False, limit_s=40.0)
        assert fleet.coordinator is not None
        crashes = [party.crashes for party in fleet.world.parties.values()]
        return fleet.world.now, dict(fleet.world.told), crashes, fleet.coordinator.model.tolist()

    assert run() == run()


# --- speed


@pytest.mark.slow
def test_200_devices_run_20_rounds_of_digits_in_under_a_minute(tmp_path: Path) -> None:
    """Without privacy, whose noise 200 devices of six samples each do not outweigh; processor time of this thread."""
    began = time.thread_time()
    _, summary = simulate(200, 20, 0, tmp_path, mode="off")
    assert summary.rounds == 20
    assert summary.accuracy > 0.9
    assert (summary.lost_chunks, summary.doubled_chunks) == (0, 0)
    assert time.thread_time() - began < BUDGET_S


def test_40_devices_run_5_rounds_of_digits_in_the_time_that_20_rounds_of_200_allow(tmp_path: Path) -> None:
    """The same law on a twentieth of the work, with slack for the start and for the tracing of coverage."""
    began = time.thread_time()
    _, summary = simulate(40, 5, 0, tmp_path, mode="off")
    assert summary.rounds == 5
    assert time.thread_time() - began < 5 * BUDGET_S / 20
