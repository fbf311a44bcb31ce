"""A link that has its session dropped: what waited at the broker is gone, what is subscribed to goes on."""

from __future__ import annotations

import asyncio
from typing import Any

from ofl_iot.transport.mqtt import MqttLink


def test_what_waits_for_a_thin_link_at_the_broker_is_forgotten_and_the_link_goes_on(
    open_broker: Any, linked: Any, tcp_proxy: Any, eventually: Any
) -> None:
    async def story() -> None:
        async with (
            open_broker() as port,
            tcp_proxy(port, small_buffers=True) as proxy,
            linked(proxy.port, "leader", "global", "control") as (link, heard),
            linked(port, "coordinator") as (other, _),
        ):
            await eventually(lambda: link.all_granted)
            proxy.stall()
            for number in range(200):
                assert other.publish("global", number.to_bytes(2, "big") + bytes(16_000), qos=1)
            link._connection.client.sock.rate.bytes_s = 2500.0
            link.unsubscribe("global")
            link.renew_session()
            await eventually(lambda: not link.connected)
            proxy.resume()
            await eventually(lambda: link.connected and link.all_granted)
            assert link.connections == 2
            other.publish("control", b"assignment", qos=1)
            await eventually(lambda: b"assignment" in heard.payloads)
            assert len(heard.payloads) < 150, "the backlog came first"

    asyncio.run(story())


def test_a_fast_link_keeps_its_session(open_broker: Any, linked: Any) -> None:
    async def story() -> None:
        async with open_broker() as port, linked(port, "leader", "t") as (link, _):
            assert isinstance(link, MqttLink)
            link.renew_session()
            assert not link._forget
            assert link._connection is not None
            assert not link._connection.ended.done()

    asyncio.run(story())
