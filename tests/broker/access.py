"""Tries every topic of the tree as some party and tells what got through; the same for every broker."""

from __future__ import annotations

import contextlib
import itertools
import logging
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ofl_broker.policy import Party, may_publish, may_receive
from ofl_iot.errors import TopicError
from ofl_iot.ids import OBSERVER, OPERATOR, DeviceId, FederationId
from ofl_iot.protocol.topics import Kind, Topic, Topics
from ofl_iot.transport.mqtt import MqttLink, MqttSettings, TlsSettings
from tests.certificates import Authority
from tests.links import Recorder
from tests.waiting import eventually

FEDERATION = FederationId("access")
TOPICS = Topics(FEDERATION)
DEVICE, LEADER, WATCHER = DeviceId("truck-1"), DeviceId("truck-2"), DeviceId("watcher")
"""A device, the leader of another cluster, and one who may do everything and watches."""
PARTIES = (DEVICE, LEADER, *(DeviceId(party.value) for party in Party if party is not Party.MEMBER))


def whole_tree(topics: Topics = TOPICS) -> list[str]:
    """Every topic that any of the parties could write to any other, of every kind there is."""
    found: dict[str, None] = {}
    for kind, sender, receiver in itertools.product(Kind, PARTIES, PARTIES):
        text = topics.build(Topic(kind, sender, receiver))
        with contextlib.suppress(TopicError):
            topics.parse(text)
            found[text] = None
    return list(found)


def whole_pattern_tree() -> list[str]:
    """Every pattern by which a party could ask for them: for itself, for another, for all."""
    anyone = (*PARTIES, "+")
    filled = (TOPICS.pattern(kind, sender, receiver) for kind in Kind for sender in anyone for receiver in anyone)
    return [*dict.fromkeys(filled), f"ofl/v1/{FEDERATION}/#", "ofl/#", "#", "+/+/+/#"]


def echo_of(name: str) -> str:
    return TOPICS.build(Topic(Kind.ECHO, DeviceId(name)))


@dataclass(frozen=True)
class Door:
    """How one party comes in."""

    port: int
    tls: TlsSettings | None = None

    def settings(self, **changes: Any) -> MqttSettings:
        waits = {"backoff_min_s": 0.02, "backoff_max_s": 0.2, "connect_timeout_s": 5.0}
        return MqttSettings(**{"port": self.port, "tls": self.tls, **waits, **changes})


@contextlib.asynccontextmanager
async def present(
    door: Door, name: str, patterns: tuple[str, ...] = (), *, qos: int = 1
) -> AsyncIterator[tuple[MqttLink, Any]]:
    """A party that is connected; its subscriptions may have been refused."""
    link, heard = MqttLink(door.settings(), name), Recorder()
    for pattern in patterns:
        link.subscribe(pattern, qos)
    link.start(heard)
    try:
        await eventually(lambda: heard.ups)
        yield link, heard
    finally:
        await link.stop()


def last_of(name: str) -> str:
    """What a party may publish at the end of its tries: its echo, or an order."""
    return TOPICS.build(Topic(Kind.ORDER, OPERATOR, LEADER)) if name == OPERATOR else echo_of(name)


async def published_by(name: str, doors: dict[str, Door]) -> set[str]:
    """What a watcher sees of all that a party tries to publish; its echo, which is allowed, comes last."""
    async with (
        present(doors[WATCHER], WATCHER, (f"ofl/v1/{FEDERATION}/#",)) as (watcher, seen),
        present(doors[name], name) as (link, _),
    ):
        await eventually(lambda: watcher.granted)
        for topic in whole_tree():
            if topic != last_of(name):
                assert link.publish(topic, b"x", qos=0)
        last = last_of(name)
        if name == OBSERVER:  # may not even echo: once its next request is granted, the broker has seen all before it
            link.subscribe(TOPICS.pattern(Kind.ROUND_NOTE), 1)
            await eventually(lambda: TOPICS.pattern(Kind.ROUND_NOTE) in link.granted)
            last = f"ofl/v1/{FEDERATION}/end"
            assert watcher.publish(last, b"x", qos=0)
        else:
            assert link.publish(last, b"x", qos=0)
        await eventually(lambda: any(delivery.topic == last for delivery in seen.deliveries))
        return {delivery.topic for delivery in seen.deliveries} - {f"ofl/v1/{FEDERATION}/end"}


async def received_by(name: str, doors: dict[str, Door]) -> set[str]:
    """What reaches a party that asked for everything, while a watcher publishes first what is forbidden to it.

    At QoS 0, because NATS takes no more than 65 subscriptions of QoS 1 in a session.
    A broker may keep the order within a subscription only, so the wait is for all that is allowed.
    """
    async with (
        present(doors[name], name, tuple(whole_pattern_tree()), qos=0) as (link, heard),
        present(doors[WATCHER], WATCHER) as (watcher, _),
    ):
        asked = TOPICS.pattern(Kind.STATUS) if name in (OBSERVER, OPERATOR) else echo_of(name)
        await eventually(lambda: asked in link.granted and not link._requests)
        for topic in sorted(whole_tree(), key=may_be_received_by(name).__contains__):
            assert watcher.publish(topic, b"x", qos=1)
        await eventually(lambda: {delivery.topic for delivery in heard.deliveries} >= may_be_received_by(name))
        return {delivery.topic for delivery in heard.deliveries}


def disguised(how: str, door: Door, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Door:
    """A member's way in, taken by an outsider; any other name of an outsider leaves it as it is."""
    assert door.tls is not None
    if how == "without certificate":
        return Door(door.port, TlsSettings(ca=door.tls.ca))
    if how == "stranger":
        mine = Authority(folder / "foreign").issue(DEVICE)
        return Door(door.port, TlsSettings(ca=door.tls.ca, cert=mine.cert, key=mine.key))
    if how == "old protocol":
        context = door.tls.context()
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
        monkeypatch.setattr(TlsSettings, "context", lambda _: context)
    return door


async def refused(link: MqttLink, caplog: pytest.LogCaptureFixture) -> str:
    """What a link says of a broker that does not let it in, however often it tries."""
    heard = Recorder()
    with caplog.at_level(logging.DEBUG, logger="ofl_iot.transport"):
        link.start(heard)
        await eventually(lambda: caplog.text.count("no link to the broker") >= 3)
        await link.stop()
    assert heard.events == []
    return caplog.text


def may_be_published_by(name: str) -> set[str]:
    return {topic for topic in whole_tree() if may_publish(TOPICS, name, topic)}


def may_be_received_by(name: str) -> set[str]:
    return {topic for topic in whole_tree() if may_receive(TOPICS, name, topic)}
