"""Between machines and links: what goes out comes in, what cannot be read is counted by sender."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofl_iot.ids import COORDINATOR, DeviceId
from ofl_iot.protocol.codec import encode
from ofl_iot.protocol.messages import Pull, Status
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.roles.commands import Publish, Subscribe, Unsubscribe
from ofl_iot.roles.events import Arrived
from ofl_iot.runtime.addressing import Wire, urgency_of
from ofl_iot.runtime.topic_tree import matches
from tests.runtime.fakes import FEDERATION

ids = st.from_regex(r"[a-z0-9]{1,5}(-[a-z0-9]{1,5})?", fullmatch=True).map(DeviceId)


@given(sender=ids, receiver=ids, term=st.integers(0, 2**50))
def test_what_goes_out_comes_in(sender: DeviceId, receiver: DeviceId, term: int) -> None:
    topic, message = Topic(Kind.PULL, sender, receiver), Pull(term, b"\x00", 3)
    wire = Wire(FEDERATION)
    assert wire.incoming(*wire.outgoing(Publish(topic, message))) == Arrived(topic, message)
    assert not wire.dropped


@given(sender=ids, receiver=ids)
def test_a_pattern_matches_the_topics_it_was_made_for(sender: DeviceId, receiver: DeviceId) -> None:
    wire = Wire(FEDERATION)
    topic, _ = wire.outgoing(Publish(Topic(Kind.UPDATE, sender, receiver), b""))
    assert matches(wire.pattern(Subscribe(Kind.UPDATE)), topic)
    assert matches(wire.pattern(Subscribe(Kind.UPDATE, receiver=receiver)), topic)
    assert matches(wire.pattern(Unsubscribe(Kind.UPDATE, sender=sender, receiver=receiver)), topic)
    assert not matches(wire.pattern(Subscribe(Kind.UPDATE, receiver=f"{receiver}x")), topic)


def test_bytes_that_are_encoded_already_go_as_they_are() -> None:
    payload = encode(Pull(1, b"", 1))
    assert Wire(FEDERATION).outgoing(Publish(Topic(Kind.PULL, DeviceId("a"), DeviceId("b")), payload))[1] is payload


@given(payload=st.binary(max_size=200))
def test_random_bytes_are_dropped_or_valid_and_never_raise(payload: bytes) -> None:
    wire = Wire(FEDERATION)
    arrived = wire.incoming("ofl/v1/lab/device/d1/status", payload)
    assert arrived is None or isinstance(arrived.message, Status)
    assert wire.dropped == ({"d1": 1} if arrived is None else {})


@given(topic=st.text(max_size=60))
def test_random_topics_are_dropped(topic: str) -> None:
    wire = Wire(FEDERATION)
    assert wire.incoming(topic, b"") is None
    assert wire.dropped == {"unknown": 1}


def test_each_drop_counts_for_its_sender_and_is_logged_without_the_payload(caplog: pytest.LogCaptureFixture) -> None:
    wire = Wire(FEDERATION)
    for _ in range(3):
        wire.incoming("ofl/v1/lab/cluster/lead/update/d7", b"secret parameters")
    wire.incoming("ofl/v1/lab/round/open", b"\x92\x09")
    wire.incoming("ofl/v1/other/round/open", b"")
    assert wire.dropped == {"d7": 3, COORDINATOR: 1, "unknown": 1}
    assert "message dropped sender=d7 bytes=17" in caplog.text
    assert "version 09; this program speaks 1" in caplog.text
    assert "secret" not in caplog.text


def test_control_leaves_before_chunks_keys_and_models_and_a_manifest_behind_its_parts() -> None:
    ranks = [urgency_of(kind) for kind in (Kind.RECEIPT, Kind.UPDATE, Kind.KEYS, Kind.CONTRIBUTION)]
    assert ranks == sorted(set(ranks))
    assert urgency_of(Kind.STATUS) == urgency_of(Kind.ROUND_OPEN) == urgency_of(Kind.PULL) == ranks[0]
    assert urgency_of(Kind.MANIFEST) == urgency_of(Kind.GLOBAL_PART) == urgency_of(Kind.BOOKS)
