"""The access policy as a table: complete, no wider than what a federation does, and the same however it is asked."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofl_agents.app import open_app
from ofl_agents.sim.simulation import Simulation
from ofl_agents.sim.summary import Progress
from ofl_broker.mosquitto import acl_text
from ofl_broker.policy import POLICY, Action, Party, granted_to, may_publish, may_receive, may_subscribe
from ofl_iot.ids import OBSERVER, OPERATOR, DeviceId, federation_id
from ofl_iot.protocol.topics import Kind, Topic, Topics
from ofl_iot.runtime.settings import Settings
from ofl_iot.runtime.settings_file import load_settings
from ofl_iot.runtime.virtual_broker import VirtualBroker
from ofl_iot.transport.subscriptions import matches
from tests.broker.access import DEVICE, FEDERATION, LEADER, PARTIES, TOPICS, whole_pattern_tree, whole_tree

NAMES = st.sampled_from([*PARTIES, "truck-3"])
QUICK = {"privacy.mode": "off", "fleet.clusters": "2", "fleet.gather_s": "0.5", "round.interval_s": "2"}
NAMED = {party.value for party in Party if party is not Party.MEMBER}
STRANGERS = ["", "#", "+", "%u", "Truck-1", "truck-1/x", "$SYS", "truck 1"]


def test_every_kind_of_topic_has_a_rule() -> None:
    assert set(POLICY) == set(Kind)


@given(NAMES, st.sampled_from(whole_tree()))
def test_nobody_publishes_in_anothers_name(name: str, topic: str) -> None:
    if may_publish(TOPICS, name, topic):
        assert TOPICS.parse(topic).sender == name


@given(NAMES, st.sampled_from(whole_tree()))
def test_nobody_reads_what_is_for_another(name: str, topic: str) -> None:
    if may_receive(TOPICS, name, topic):
        assert TOPICS.parse(topic).receiver in (None, name) or name in (OBSERVER, OPERATOR)


OBSERVED = {Kind.STATUS, Kind.VITALS, Kind.REFUSAL, Kind.CLUSTER_NOTE, Kind.ROUND_NOTE, Kind.ROUND_OPEN, Kind.CARD,
            Kind.ORDER}  # fmt: skip


def test_an_observer_publishes_nothing_and_reads_no_model_no_chunk_and_no_telemetry() -> None:
    assert not any(may_publish(TOPICS, OBSERVER, topic) for topic in whole_tree())
    assert granted_to(TOPICS, OBSERVER, Action.PUBLISH) == []
    assert {TOPICS.parse(each).kind for each in whole_tree() if may_receive(TOPICS, OBSERVER, each)} == OBSERVED


def test_an_operator_orders_and_reads_what_an_observer_reads_and_nobody_else_orders() -> None:
    for name in PARTIES:
        kinds = {TOPICS.parse(each).kind for each in whole_tree() if may_publish(TOPICS, name, each)}
        assert (Kind.ORDER in kinds) == (name == OPERATOR)
        assert name != OPERATOR or kinds == {Kind.ORDER}
    assert {TOPICS.parse(each).kind for each in whole_tree() if may_receive(TOPICS, OPERATOR, each)} == OBSERVED


@pytest.mark.parametrize("name", STRANGERS)
def test_who_has_no_valid_name_may_do_nothing(name: str) -> None:
    for topic in whole_tree():
        assert not may_publish(TOPICS, name, topic)
        assert not may_receive(TOPICS, name, topic)
    assert not any(may_subscribe(TOPICS, name, pattern) for pattern in whole_pattern_tree())


@given(NAMES, st.sampled_from(whole_tree()))
def test_patterns_say_the_same_as_questions(name: str, topic: str) -> None:
    """What a broker checks by patterns and what the plugin asks are one policy."""
    for action, may in ((Action.PUBLISH, may_publish), (Action.SUBSCRIBE, may_receive)):
        assert any(matches(grant, topic) for grant in granted_to(TOPICS, name, action)) == may(TOPICS, name, topic)


@given(NAMES, st.sampled_from(whole_pattern_tree()), st.sampled_from(whole_tree()))
def test_a_granted_subscription_delivers_nothing_forbidden(name: str, pattern: str, topic: str) -> None:
    if may_subscribe(TOPICS, name, pattern) and matches(pattern, topic):
        assert may_receive(TOPICS, name, topic)


@pytest.mark.parametrize(
    "topic", ["ofl/v1/other/device/truck-1/status", "ofl/v2/access/round/open", "$SYS/uptime", "x"]
)
def test_outside_the_federations_tree_nothing_is_allowed(topic: str) -> None:
    for name in PARTIES:
        assert not may_publish(TOPICS, name, topic)
        assert not may_receive(TOPICS, name, topic)
        assert not may_subscribe(TOPICS, name, topic)


def test_a_leader_cannot_play_the_leader_of_another_cluster() -> None:
    """Neither read what is sent to it, nor answer for it, nor contribute for it."""
    update = TOPICS.build(Topic(Kind.UPDATE, DEVICE, LEADER))
    receipt = TOPICS.build(Topic(Kind.RECEIPT, LEADER, DEVICE))
    contribution = TOPICS.build(Topic(Kind.CONTRIBUTION, LEADER))
    other = DeviceId("truck-3")
    assert may_receive(TOPICS, LEADER, update)
    assert not may_receive(TOPICS, other, update)
    for topic in (receipt, contribution):
        assert may_publish(TOPICS, LEADER, topic)
        assert not may_publish(TOPICS, other, topic)


def test_the_acl_file_names_every_kind_and_nobody_but_the_named_parties() -> None:
    text = acl_text(FEDERATION)
    assert re.findall(r"^user (.*)$", text, re.M) == [party.value for party in Party if party.value]
    for line in text.splitlines():
        assert re.fullmatch(r"(#.*|user .*|(pattern|topic) (read|write|deny) ofl/v1/access/[^#]+|)", line), line
    for kind in Kind:
        path = re.sub(r"\\\{\w+\\\}", "[^/\n]+", re.escape(kind.value))
        assert set(re.findall(rf" (read|write) ofl/v1/access/{path}\n", text)) == {"read", "write"}


def rights_used_by_a_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, server_dec: str
) -> set[tuple[Kind, Action, str]]:
    """Who published and who subscribed to which kind in an encrypted federation of six devices."""
    params = "main" if server_dec == "decryptor" else "lean"
    publish_by = "beat" if server_dec == "coordinator" else "arrival"
    given = {"simulation.devices": "6", "simulation.rounds": "2", "round.count": "2", **QUICK}
    given["leader.publish"] = publish_by
    settings = load_settings(
        Settings, [], {}, {**given, "protection.server_dec": server_dec, "protection.params": params}
    ).settings
    topics = Topics(federation_id(settings.federation.id))
    used: set[tuple[Kind, Action, str]] = set()
    publish, subscribe = VirtualBroker.publish, VirtualBroker.subscribe

    def watched_publish(broker: VirtualBroker, client: str, topic: str, *rest: Any, **more: Any) -> None:
        used.add((topics.parse(topic).kind, Action.PUBLISH, client))
        assert may_publish(topics, client, topic), (client, topic)
        publish(broker, client, topic, *rest, **more)

    def watched_subscribe(broker: VirtualBroker, client: str, pattern: str, *rest: Any, **more: Any) -> None:
        used.add((topics.parse(pattern.replace("+", "0")).kind, Action.SUBSCRIBE, client))
        assert may_subscribe(topics, client, pattern), (client, pattern)
        subscribe(broker, client, pattern, *rest, **more)

    monkeypatch.setattr(VirtualBroker, "publish", watched_publish)
    monkeypatch.setattr(VirtualBroker, "subscribe", watched_subscribe)
    fleet = open_app(settings).fleet(settings.simulation.devices, repeats=True)
    summary = Simulation(settings, Progress(settings.simulation.rounds), "virtual", fleet).run(folder)
    assert summary.rounds == settings.simulation.rounds
    return used


def test_no_right_is_given_that_a_federation_does_not_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole encrypted run in virtual time with beats, and one with a decryptor, need every rule and no other.

    Echoes belong to the link beneath, notes to observers, refusals to faults, orders to operators;
    the books are read only by a coordinator that takes over.
    """
    used: set[tuple[Kind, Action, str]] = set()
    for server_dec in ("coordinator", "decryptor"):
        with monkeypatch.context() as patch:
            used |= rights_used_by_a_run(tmp_path, patch, server_dec)
    assert {(kind, action) for kind, action, _ in used} == {
        (kind, action) for kind in Kind if kind is not Kind.ECHO for action in Action
    } - {(Kind.BOOKS, Action.SUBSCRIBE), (Kind.REFUSAL, Action.PUBLISH), (Kind.ORDER, Action.PUBLISH)} - {
        (kind, Action.SUBSCRIBE) for kind in (Kind.VITALS, Kind.CLUSTER_NOTE, Kind.ROUND_NOTE)
    }
    for kind, action, who in used:
        assert POLICY[kind].parties(action) & Party.of(who), (kind, action, who)
    for kind, rule in POLICY.items():
        for action in Action:
            actors = {who for used_kind, used_action, who in used if (used_kind, used_action) == (kind, action)}
            if Party.MEMBER in rule.parties(action) and actors:
                assert actors - NAMED, f"only a party with a name of its own does this: {kind} {action}"
