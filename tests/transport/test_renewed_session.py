"""A link that has its session dropped: what waited at the broker is gone, what is subscribed to goes on."""

from __future__ import annotations

from typing import Any

from ofl_iot.transport.flow import FORGET_S, LinkRate
from tests.links import linked
from tests.netfaults import TcpProxy
from tests.waiting import eventually


async def test_what_waits_for_a_thin_link_at_the_broker_is_forgotten_and_the_link_goes_on(open_broker: Any) -> None:
    async with (
        open_broker() as port,
        TcpProxy(port, small_buffers=True) as proxy,
        linked(proxy.port, "leader", "global", "control") as (link, heard),
        linked(port, "coordinator") as (other, _),
    ):
        await eventually(lambda: link.all_granted)
        proxy.stall()
        for number in range(200):
            assert other.publish("global", number.to_bytes(2, "big") + bytes(16_000), qos=1)
        link._rate.bytes_s = 2500.0
        link.unsubscribe("global")
        link.renew_session()
        await eventually(lambda: not link.connected)
        proxy.resume()
        await eventually(lambda: link.connected and link.all_granted)
        assert link.connections == 2
        other.publish("control", b"assignment", qos=1)
        await eventually(lambda: b"assignment" in heard.payloads)
        assert len(heard.payloads) < 150, "the backlog came first"


async def test_a_fast_link_keeps_its_session(open_broker: Any) -> None:
    async with open_broker() as port, linked(port, "leader", "t") as (link, _):
        link.renew_session()
        assert not link._forget
        assert link._connection is not None
        assert not link._connection.ended.done()


def test_the_rate_of_a_link_outlives_its_connection_and_is_forgotten_when_more_passes() -> None:
    rate = LinkRate()
    rate.sample(1.0, 20_000, 10_000)
    rate.sample(2.0, 20_000, 7_500)
    assert rate.bytes_s == 2500.0
    rate.connected(3.0)
    rate.sample(4.0, 5_000, 5_000)
    rate.sample(5.0, 5_000, 5_000)
    assert rate.bytes_s == 2500.0, "what does not move at all is an outage"
    rate.sample(6.0, 25_000, 0)
    assert rate.bytes_s == 2500.0, "buffers on the way took it"
    rate.sample(7.0, 125_000, 0)
    assert rate.bytes_s is None, "it carries more than that"


def test_a_message_that_takes_long_to_come_in_tells_the_rate() -> None:
    rate = LinkRate()
    rate.coming_in(2500, 1.0, 5.0)
    assert rate.bytes_s == 2500.0
    rate.sample(6.0, 100, 0)
    assert rate.bytes_s == 2500.0
    rate.sample(6.0 + FORGET_S, 200, 0)
    assert rate.bytes_s is None
