"""amqtt's known faults, one test each. A test that fails here tells that amqtt mended something.

They are why a link promises little: chunks are kept until the leader's receipt, whatever the broker says.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from ofl_broker.embedded import EmbeddedBroker
from ofl_iot.transport.link import LinkUp
from ofl_iot.transport.settings import Will
from tests.links import linked
from tests.netfaults import TcpProxy
from tests.waiting import eventually

NEVER_S = 0.5
"""How long we wait for what does not come."""


@pytest.fixture
def never() -> Any:
    """`await never(condition)`: it does not hold for a while."""

    async def wait(condition: Any, for_s: float = NEVER_S) -> None:
        with pytest.raises(AssertionError, match="not within"):
            await eventually(condition, for_s)

    return wait


async def test_a_delivery_in_flight_is_lost_when_its_receiver_reconnects(never: Any) -> None:
    """MQTT wants it redelivered. Hence: a receipt, not PUBACK, ends a chunk's stay in the outbox."""

    async with EmbeddedBroker() as broker, linked(broker.port, "a") as (a, _):
        async with linked(broker.port, "b", "t") as (_, first):
            first.acknowledging = False
            a.publish("t", b"precious", qos=1)
            await eventually(lambda: first.deliveries)
        async with linked(broker.port, "b") as (_, second):
            assert second.ups == [LinkUp(session_present=True)]
            await never(lambda: second.deliveries)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="asyncio's older scheduling hides it")
async def test_what_is_acknowledged_just_before_a_goodbye_waits_for_the_senders_return(never: Any) -> None:
    """PUBACK does not mean passed on. Hence: receipts, and a last echo before a link's goodbye."""

    async with EmbeddedBroker() as broker, linked(broker.port, "b", "t") as (_, heard):
        async with linked(broker.port, "a") as (a, _):
            for i in range(50):
                a.publish("t", b"%d" % i, qos=1)
        assert not a._sender.unsettled
        await never(lambda: len(heard.deliveries) == 50)
        async with linked(broker.port, "a"):
            await eventually(lambda: len(heard.deliveries) == 50)


async def test_keep_alive_is_not_enforced_so_a_vanished_client_gets_no_will(never: Any) -> None:
    """MQTT wants the will after 1.5 keep-alives. Hence: presence is also a heartbeat time-out."""

    async with (
        EmbeddedBroker() as broker,
        linked(broker.port, "b", "gone/#") as (_, heard),
        TcpProxy(broker.port) as proxy,
        linked(proxy.port, "a", will=Will("gone/a", b"x"), keepalive_s=1),
    ):
        proxy.refuse()
        proxy.half_open("server")
        await never(lambda: heard.deliveries, for_s=2.0)


async def test_a_takeover_leaves_the_new_connection_deaf(never: Any) -> None:
    """The broker marks the session as gone when the old connection ends. Hence: the self-ping."""

    async with (
        EmbeddedBroker() as broker,
        linked(broker.port, "b") as (b, _),
        TcpProxy(broker.port) as proxy,
        linked(proxy.port, "a", "t") as (a, heard),
    ):
        proxy.half_open("server")  # the client reconnects while the broker still holds the old connection
        await eventually(lambda: a.connections == 2 and a.connected)
        await never(lambda: b.publish("t", b"x", qos=1) and heard.deliveries)


async def test_a_link_with_echoes_recovers_from_the_deafness() -> None:
    async with (
        EmbeddedBroker() as broker,
        linked(broker.port, "b") as (b, _),
        TcpProxy(broker.port) as proxy,
        linked(proxy.port, "a", "t", echo_topic="echo/a", echo_interval_s=0.05, echo_timeout_s=0.1) as (a, heard),
    ):
        proxy.half_open("server")
        await eventually(lambda: any("deaf" in down.reason for down in heard.downs))
        await eventually(lambda: a.connected and "t" in a.granted)
        await eventually(lambda: b.publish("t", b"x", qos=1) and heard.deliveries)


async def test_retained_messages_reach_clients_that_never_asked() -> None:
    """The link drops them; the layers above check every topic anyway."""

    async with EmbeddedBroker() as broker, linked(broker.port, "a", "t") as (a, heard):
        a.publish("t", b"kept", qos=1, retain=True)
        await eventually(lambda: heard.deliveries)
        async with linked(broker.port, "b", "u") as (b, other):
            await eventually(lambda: b.dropped == 1)
            assert other.deliveries == []


async def test_what_was_kept_for_an_absent_client_is_flagged_as_retained() -> None:
    """Hence: no rule may tell old from new by the retained flag; terms and sequences do."""

    async with EmbeddedBroker() as broker, linked(broker.port, "a") as (a, _):
        async with linked(broker.port, "b", "t"):
            pass
        a.publish("t", b"while away", qos=1)
        async with linked(broker.port, "b") as (_, heard):
            await eventually(lambda: heard.deliveries)
            assert heard.payloads == [b"while away"]
            assert heard.deliveries[0].retained


async def test_a_connect_of_mqtt_5_gets_no_answer() -> None:
    """Hence: MQTT 3.1.1."""

    async with EmbeddedBroker() as broker:
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
        writer.write(b"\x10\x11\x00\x04MQTT\x05\x82\x00\x3c\x00\x00\x01a\x00\x01a")
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(reader.read(1), NEVER_S)
        writer.close()
