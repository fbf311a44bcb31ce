"""Topics: built and parsed in one place, so that an access rule is one comparison."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofl_iot.errors import TopicError
from ofl_iot.ids import COORDINATOR, DECRYPTOR, RESERVED, DeviceId, FederationId
from ofl_iot.protocol.topics import MAX_INDEX, Kind, Topic, Topics
from ofl_iot.runtime.topic_tree import matches
from tests.protocol.samples import ids

TOPICS = Topics(FederationId("mine"))
devices = ids.filter(lambda text: text not in RESERVED).map(DeviceId)


@st.composite
def topics(draw: st.DrawFn) -> Topic:
    """Any topic that a party of the protocol can mean."""
    kind = draw(st.sampled_from(list(Kind)))
    sender = draw(devices) if "{sender}" in kind.value else COORDINATOR
    receiver = draw(devices) if "{receiver}" in kind.value else None
    return Topic(kind, sender, receiver, draw(st.integers(0, MAX_INDEX)) if "{index}" in kind.value else 0)


@given(topics())
def test_what_was_built_parses_to_itself(topic: Topic) -> None:
    assert TOPICS.parse(TOPICS.build(topic)) == topic


@given(topics(), topics())
def test_two_topics_share_no_text(first: Topic, second: Topic) -> None:
    assert (TOPICS.build(first) == TOPICS.build(second)) == (first == second)


@given(topics(), devices)
def test_a_pattern_matches_exactly_the_topics_it_names(topic: Topic, other: DeviceId) -> None:
    text = TOPICS.build(topic)
    assert matches(TOPICS.pattern(topic.kind), text)
    assert matches(TOPICS.pattern(topic.kind, topic.sender, topic.receiver or "+"), text)
    if "{receiver}" in topic.kind.value:
        assert matches(TOPICS.pattern(topic.kind, receiver=other), text) == (other == topic.receiver)
    if "{sender}" in topic.kind.value:
        assert matches(TOPICS.pattern(topic.kind, sender=other), text) == (other == topic.sender)
    for kind in Kind:
        if kind is not topic.kind:
            assert not matches(TOPICS.pattern(kind), text)


@given(topics())
def test_who_publishes_is_in_the_topic_or_is_the_coordinator(topic: Topic) -> None:
    """Access patterns need nothing else: a device's own id, or a topic that only the coordinator may publish to."""
    text = TOPICS.build(topic)
    if "{sender}" in topic.kind.value:
        assert topic.sender in text.split("/")
    else:
        assert TOPICS.parse(text).sender == COORDINATOR


@given(st.text(max_size=80), st.booleans())
def test_any_other_text_is_a_topic_error(text: str, below: bool) -> None:
    try:
        parsed = TOPICS.parse("ofl/v1/mine/" + text if below else text)
    except TopicError:
        return
    assert TOPICS.build(parsed) == "ofl/v1/mine/" + text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ofl/v1/mine",
        "ofl/v1/mine/",
        "ofl/v1/other/round/open",
        "ofl/v2/mine/round/open",
        "/ofl/v1/mine/round/open",
        "ofl/v1/mine/round/open/",
        "ofl/v1/mine/round/close",
        "ofl/v1/mine/device/a",
        "ofl/v1/mine/device//status",
        "ofl/v1/mine/device/A/status",
        "ofl/v1/mine/device/+/status",
        "ofl/v1/mine/device/#",
        "ofl/v1/mine/device/a/status/more",
        "ofl/v1/mine/device/a\n/status",
        f"ofl/v1/mine/device/{'x' * 49}/status",
        "ofl/v1/mine/global/chunk/-1",
        "ofl/v1/mine/global/chunk/1.5",
        "ofl/v1/mine/global/chunk/007",
        "ofl/v1/mine/global/chunk/٣",
        "ofl/v1/mine/global/chunk/1000001",
        "ofl/v1/mine/global/chunk/99999999999999999999",
    ],
)
def test_foreign_topics_are_refused(text: str) -> None:
    with pytest.raises(TopicError):
        TOPICS.parse(text)


@pytest.mark.parametrize("kind", list(Kind))
def test_the_coordinator_is_no_device(kind: Kind) -> None:
    """`device/coordinator/status` would enter the coordinator into its own fleet."""
    text = TOPICS.build(Topic(kind, COORDINATOR, DeviceId("truck-1")))
    if "{sender}" in kind.value and kind not in (Kind.ECHO, Kind.RECEIPT, Kind.KEYS, Kind.SERVERDEC, Kind.REFUSAL):
        with pytest.raises(TopicError):
            TOPICS.parse(text)
    else:
        assert TOPICS.parse(text).sender == COORDINATOR


@pytest.mark.parametrize("kind", [kind for kind in Kind if "{sender}" in kind.value])
def test_the_decryptor_is_no_device_either(kind: Kind) -> None:
    text = TOPICS.build(Topic(kind, DECRYPTOR, DeviceId("truck-1")))
    if kind in (Kind.ECHO, Kind.RECEIPT, Kind.SERVERDEC):
        assert TOPICS.parse(text).sender == DECRYPTOR
    else:
        with pytest.raises(TopicError):
            TOPICS.parse(text)


def test_a_topic_to_someone_needs_a_receiver() -> None:
    with pytest.raises(ValueError, match="UPDATE topic needs a receiver"):
        TOPICS.build(Topic(Kind.UPDATE, DeviceId("truck-1")))
