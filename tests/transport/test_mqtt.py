"""A link against real brokers: what it carries, and how it says goodbye."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ofl_iot.errors import TopicError, TransportError
from ofl_iot.transport.link import Delivery, LinkDown, LinkUp
from ofl_iot.transport.mqtt import MqttLink, Will
from tests.links import Recorder, impatient, linked
from tests.netfaults import TcpProxy
from tests.waiting import eventually


async def test_two_links_talk_in_order(open_broker: Any) -> None:
    async with open_broker() as port, linked(port, "a") as (a, _), linked(port, "b", "t/+") as (_, heard):
        sent = [bytes([i]) * 1000 for i in range(100)]
        for payload in sent:
            assert a.publish("t/x", payload, qos=1)
        await eventually(lambda: len(heard.deliveries) == 100)
        assert heard.payloads == sent
        assert not heard.deliveries[0].retained
        assert a.publishes == 100
        assert a.bytes_sent > 100_000


async def test_a_thousand_small_messages_arrive(open_broker: Any) -> None:
    async with open_broker() as port, linked(port, "a") as (a, _), linked(port, "b", "t") as (_, heard):
        assert all(a.publish("t", b"%d" % i, qos=0) for i in range(1000))
        await eventually(lambda: heard.payloads == [b"%d" % i for i in range(1000)])


async def test_binary_payloads_arrive_unchanged(open_broker: Any) -> None:
    payloads = [b"", bytes(range(256)), b"\xff\xfe\x00" * 20_000]
    async with open_broker() as port, linked(port, "a", "t") as (a, heard):
        for payload in payloads:
            a.publish("t", payload, qos=1)
        await eventually(lambda: len(heard.deliveries) == 3)
        assert heard.payloads == payloads
        assert a.bytes_received > 60_000


async def test_a_late_subscriber_gets_what_was_retained(open_broker: Any) -> None:
    async with open_broker() as port, linked(port, "a", "seen") as (a, heard):
        a.publish("seen", b"kept", qos=1, retain=True)
        await eventually(lambda: heard.payloads == [b"kept"])
        async with linked(port, "b", "seen") as (_, late):
            await eventually(lambda: late.deliveries)
            assert set(late.payloads) == {b"kept"}  # amqtt sends it twice
            assert late.deliveries[0].retained


async def test_the_will_is_published_after_a_cut_but_not_after_a_goodbye(open_broker: Any) -> None:
    async with open_broker() as port, linked(port, "b", "gone/#") as (_, heard):
        async with linked(port, "polite", will=Will("gone/polite", b"x")):
            pass
        async with TcpProxy(port) as proxy, linked(proxy.port, "cut", will=Will("gone/cut", b"x")):
            proxy.refuse()
            proxy.reset()
            await eventually(lambda: heard.deliveries)
            assert [d.topic for d in heard.deliveries] == ["gone/cut"]


async def test_events_come_as_up_deliveries_down(open_broker: Any) -> None:
    async with open_broker() as port:
        async with linked(port, "a", "t") as (a, heard):
            assert a.connected
            a.publish("t", b"1", qos=0)
            await eventually(lambda: heard.deliveries)
        assert not a.connected
        assert not a.publish("t", b"2", qos=1)
        assert [type(event) for event in heard.events] == [LinkUp, Delivery, LinkDown]


async def test_stopping_flushes_what_was_handed_over(open_broker: Any) -> None:
    async with open_broker() as port, linked(port, "b", "t") as (_, heard):
        async with linked(port, "a", echo_topic="echo/a", max_inflight=4) as (a, _):
            await eventually(lambda: "echo/a" in a.granted)
            for i in range(50):
                assert a.publish("t", b"%d" % i, qos=1)
        assert not a._sender.unsettled
        await eventually(lambda: heard.payloads == [b"%d" % i for i in range(50)])


async def test_what_is_not_acknowledged_comes_again_after_a_reconnect(
    open_broker: Any, request: pytest.FixtureRequest
) -> None:
    if "amqtt" in request.node.name:
        pytest.skip("amqtt drops it: tests/broker/test_faults.py")

    async with open_broker() as port, linked(port, "a") as (a, _):
        async with linked(port, "b", "t") as (_, first):
            first.acknowledging = False
            a.publish("t", b"precious", qos=1)
            await eventually(lambda: first.deliveries)
        async with linked(port, "b") as (_, second):
            await eventually(lambda: second.deliveries)
            assert second.ups == [LinkUp(session_present=True)]
            first.deliveries[0].ack()  # too late, on a connection that is gone: harmless
        async with linked(port, "b") as (b, third):
            b.subscribe("marker", 1)
            await eventually(lambda: "marker" in b.granted)
            a.publish("marker", b"m", qos=1)
            await eventually(lambda: third.deliveries)
            assert third.payloads == [b"m"]


async def test_acknowledging_twice_is_harmless(open_broker: Any) -> None:
    async with open_broker() as port, linked(port, "a", "t") as (a, heard):
        a.publish("t", b"1", qos=1)
        await eventually(lambda: heard.deliveries)
        sent = a.bytes_sent
        heard.deliveries[0].ack()
        a.publish("t", b"2", qos=0)
        await eventually(lambda: len(heard.deliveries) == 2)
        assert len(heard.ups) == 1
        assert a.bytes_sent - sent < 4 + 9 + 4  # its first PUBACK at most, and the second message


async def test_unsubscribed_topics_fall_silent(open_broker: Any) -> None:
    async with open_broker() as port, linked(port, "a", "t", "u") as (a, heard):
        a.unsubscribe("t")
        await eventually(lambda: not a._subscriptions.to_cancel())
        a.publish("t", b"no", qos=1)
        a.publish("u", b"yes", qos=1)
        await eventually(lambda: heard.deliveries)
        assert heard.payloads == [b"yes"]


async def test_a_message_that_is_too_large_is_refused(open_broker: Any) -> None:
    async with open_broker() as port, linked(port, "a", max_packet_bytes=2048) as (a, _):
        with pytest.raises(TransportError, match="max_packet_bytes = 2048"):
            a.publish("t", bytes(2048), qos=1)
        assert a.publish("t", bytes(2000), qos=1)


async def test_a_message_that_is_too_large_is_dropped_on_receipt(open_broker: Any) -> None:
    async with (
        open_broker() as port,
        linked(port, "a") as (a, _),
        linked(port, "b", "t", max_packet_bytes=2048) as (b, heard),
    ):
        a.publish("t", bytes(5000), qos=1)
        a.publish("t", b"small", qos=1)
        await eventually(lambda: heard.deliveries)
        assert heard.payloads == [b"small"]
        assert b.dropped == 1
        assert b.deliveries == 1


async def test_a_clogged_link_takes_no_more(open_broker: Any) -> None:
    async with (
        open_broker() as port,
        TcpProxy(port) as proxy,
        linked(proxy.port, "a", max_pending_bytes=10_000, stop_timeout_s=0.05) as (a, _),
    ):
        proxy.stall()
        taken = sum(a.publish("t", bytes([i]) * 900, qos=1) for i in range(50))
        assert taken == 10
        assert a.publishes == 10


async def test_misuse_is_told_apart(free_port: int) -> None:
    link = MqttLink(impatient(free_port), "a")
    await link.stop()
    with pytest.raises(TopicError):
        link.publish("t/#", b"", qos=0)
    with pytest.raises(TopicError):
        link.subscribe("a/#/b", 1)
    with pytest.raises(TransportError, match="QoS 2"):
        link.subscribe("t", 2)
    assert not link.publish("t", b"", qos=1)
    link.start(Recorder())
    with pytest.raises(TransportError, match="started before"):
        link.start(Recorder())
    await link.stop()


async def test_a_handler_that_raises_does_not_hold_up_the_next_event(open_broker: Any) -> None:
    seen: list[bytes] = []
    complaints: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))

    def handler(event: Any) -> None:
        if isinstance(event, Delivery):
            event.ack()
            seen.append(event.payload)
            if event.payload != b"good":
                raise ValueError(event.payload)

    async with open_broker() as port:
        link = MqttLink(impatient(port), "a")
        link.subscribe("t", 1)
        link.start(handler)
        await eventually(lambda: "t" in link.granted)
        for payload in (b"bad", b"worse", b"good"):
            link.publish("t", payload, qos=1)
        await eventually(lambda: seen == [b"bad", b"worse", b"good"])
        await link.stop()
    assert len(complaints) == 2
