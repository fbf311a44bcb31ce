"""A link against networks and brokers that fail: it comes back, and says what is wrong."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
import time
from typing import Any

import pytest

from ofl_broker.embedded import EmbeddedBroker
from ofl_iot.transport.link import LinkUp
from ofl_iot.transport.mqtt import STEADY_S, MqttLink
from tests.links import Recorder, impatient, linked
from tests.netfaults import TcpProxy
from tests.waiting import eventually


async def test_a_link_survives_the_brokers_restart_and_subscribes_again(open_broker: Any, free_port: int) -> None:
    async with open_broker(free_port) as port:
        opened = linked(port, "a", "t")
        a, heard = await opened.__aenter__()
    await eventually(lambda: heard.downs)
    assert not a.connected
    assert not a.publish("t", b"lost", qos=1)
    a.subscribe("u", 1)
    a.unsubscribe("t")
    a.subscribe("t", 1)
    async with open_broker(free_port):
        await eventually(lambda: len(heard.ups) == 2 and a.granted >= {"t", "u"})
        assert heard.ups[1] == LinkUp(session_present=False)
        a.publish("t", b"1", qos=1)
        a.publish("u", b"2", qos=1)
        await eventually(lambda: sorted(heard.payloads) == [b"1", b"2"])
        await opened.__aexit__(None, None, None)
    assert a.connections == 2


async def test_a_link_recovers_from_a_reset(open_broker: Any) -> None:
    async with (
        open_broker() as port,
        TcpProxy(port) as proxy,
        linked(port, "b", "t") as (_, heard),
        linked(proxy.port, "a", "t") as (a, _),
    ):
        for attempt in range(3):
            proxy.reset()
            await eventually(lambda n=attempt: a.connections == n + 2 and a.connected)
            assert a.publish("t", b"%d" % attempt, qos=1)
        await eventually(lambda: heard.payloads[-1:] == [b"2"])


async def test_what_was_in_flight_at_a_reset_is_sent_again_in_order(open_broker: Any) -> None:
    async with (
        open_broker() as port,
        TcpProxy(port) as proxy,
        linked(port, "b", "t") as (_, heard),
        linked(proxy.port, "a", max_inflight=3) as (a, _),
    ):
        proxy.stall()
        sent = [b"%02d" % i for i in range(20)]
        for payload in sent:
            assert a.publish("t", payload, qos=1)
        proxy.reset()
        proxy.resume()
        await eventually(lambda: len(heard.deliveries) >= 20)
        assert heard.payloads == sent
        await eventually(lambda: not a._sender.unsettled)


async def test_a_half_open_connection_is_noticed_by_keep_alive(open_broker: Any) -> None:
    async with (
        open_broker() as port,
        TcpProxy(port) as proxy,
        linked(proxy.port, "a", keepalive_s=1) as (a, heard),
    ):
        proxy.half_open("client")
        await eventually(lambda: heard.downs and a.connected)
        assert "Keep alive" in heard.downs[0].reason


async def test_a_stalled_connection_is_noticed_by_the_missing_echo(open_broker: Any) -> None:
    async with (
        open_broker() as port,
        TcpProxy(port) as proxy,
        linked(
            proxy.port,
            "a",
            "t",
            echo_topic="echo/a",
            echo_interval_s=0.02,
            echo_timeout_s=0.2,
            connect_timeout_s=0.3,
        ) as (a, heard),
    ):
        proxy.stall()
        await eventually(lambda: heard.downs)
        assert heard.downs[0].reason == "deaf: no echo within 0.2 s"
        proxy.resume()
        await eventually(lambda: a.connected and a.granted >= {"t", "echo/a"})
        a.publish("t", b"back", qos=1)
        await eventually(lambda: heard.payloads == [b"back"])


async def test_echoes_stay_inside_the_link(open_broker: Any) -> None:
    async with (
        open_broker() as port,
        linked(port, "a", "t", echo_topic="echo/a", echo_interval_s=0.01, echo_timeout_s=5.0) as (a, heard),
        linked(port, "b", "echo/a") as (_, witness),
    ):
        await eventually(lambda: len(witness.deliveries) >= 3)
        assert not heard.deliveries
        assert len(heard.ups) == 1
        assert a.publishes == 0


async def test_an_unreachable_broker_is_complained_about_once_a_minute(
    free_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, logger="ofl_iot.transport"):
        now = 0.0
        link = MqttLink(
            impatient(free_port, backoff_min_s=0.001, backoff_max_s=0.001), "a", clock=lambda: now, rng=random.Random(1)
        )

        def attempts(level: int) -> int:
            return sum(record.levelno == level for record in caplog.records)

        link.start(Recorder())
        await eventually(lambda: attempts(logging.DEBUG) >= 10)
        assert attempts(logging.WARNING) == 1
        now = 59.9
        more = attempts(logging.DEBUG) + 10
        await eventually(lambda: attempts(logging.DEBUG) >= more)
        assert attempts(logging.WARNING) == 1
        now = 60.1
        await eventually(lambda: attempts(logging.WARNING) == 2)
        complaint = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING][-1]
        assert f"broker=127.0.0.1:{free_port}" in complaint
        assert "refused" in complaint
        assert "since_s=60" in complaint
        await link.stop()


async def test_several_addresses_are_tried_in_turn(open_broker: Any, free_port: int) -> None:
    async with open_broker() as port:
        hosts = (f"127.0.0.1:{free_port}", f"localhost:{port}")
        async with linked(free_port, "a", hosts=hosts, backoff_min_s=60.0, backoff_max_s=60.0) as (a, _):
            assert a.connected


async def test_a_link_moves_on_when_its_broker_dies_and_comes_back_when_the_others_do() -> None:
    brokers = [EmbeddedBroker() for _ in range(3)]
    for broker in brokers:
        await broker.__aenter__()
    hosts = tuple(f"127.0.0.1:{broker.port}" for broker in brokers)
    link = MqttLink(impatient(1, hosts=hosts), "a", rng=random.Random(1), clock=lambda: 0.0)  # no time to settle
    heard = Recorder()
    link.subscribe("t", 1)
    link.start(heard)
    for number in (0, 1, 2, 0):
        await eventually(lambda: link.connected and "t" in link.granted)
        assert len(brokers[number]._broker.connections) == 1  # type: ignore[union-attr]
        assert link.publish("t", b"%d" % number, qos=1)
        await eventually(lambda number=number: heard.payloads[-1:] == [b"%d" % number])
        await brokers[number].__aexit__(None, None, None)
        brokers[number] = EmbeddedBroker(hosts[number])
        if number == 0:
            await brokers[0].__aenter__()
    await link.stop()
    await brokers[0].__aexit__(None, None, None)
    assert len(heard.ups) == 4


async def test_a_link_that_is_lost_for_a_moment_returns_to_the_first_address_although_the_standby_runs(
    open_broker: Any,
) -> None:
    async with (
        open_broker() as port,
        open_broker() as standby,
        TcpProxy(port) as proxy,
        linked(port, "b", "t") as (_, at_the_first),
    ):
        now = 0.0
        hosts = (f"127.0.0.1:{proxy.port}", f"127.0.0.1:{standby}")
        link = MqttLink(impatient(1, hosts=hosts), "a", rng=random.Random(1), clock=lambda: now)
        link.start(Recorder())
        for count in (1, 2, 3):
            await eventually(lambda count=count: link.connections == count and link.connected)
            assert link.publish("t", b"%d" % count, qos=1)
            await eventually(lambda count=count: at_the_first.payloads[-1:] == [b"%d" % count])
            now += STEADY_S
            proxy.reset()
        await link.stop()


async def test_a_link_that_went_deaf_moves_on_however_long_it_was_well(open_broker: Any) -> None:
    async with (
        open_broker() as port,
        open_broker() as standby,
        TcpProxy(port) as proxy,
        linked(standby, "b", "t") as (_, at_the_standby),
    ):
        ahead_s, heard = 0.0, Recorder()
        hosts = (f"127.0.0.1:{proxy.port}", f"127.0.0.1:{standby}")
        settings = impatient(1, hosts=hosts, echo_interval_s=0.02, echo_timeout_s=3.0)
        link = MqttLink(settings, "a", echo_topic="echo/a", clock=lambda: time.monotonic() + ahead_s)
        link.start(heard)
        await eventually(lambda: "echo/a" in link.granted)
        proxy.stall()
        ahead_s = STEADY_S
        await eventually(lambda: heard.downs and link.connected)
        assert heard.downs[0].reason.startswith("deaf")
        assert link.publish("t", b"moved", qos=1)
        await eventually(lambda: at_the_standby.payloads == [b"moved"])
        await link.stop()


async def test_a_broker_that_never_answers_a_subscription_is_left_if_there_is_another(open_broker: Any) -> None:
    async def accept_and_no_more(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"\x20\x02\x00\x00")  # CONNACK
        await reader.read()
        writer.close()

    half_dead = await asyncio.start_server(accept_and_no_more, "127.0.0.1", 0)
    async with open_broker() as standby:
        heard = Recorder()
        hosts = (f"127.0.0.1:{half_dead.sockets[0].getsockname()[1]}", f"127.0.0.1:{standby}")
        link = MqttLink(impatient(1, hosts=hosts, echo_timeout_s=0.25), "a", echo_topic="echo/a")
        link.start(heard)
        await eventually(lambda: "echo/a" in link.granted)
        assert [down.reason for down in heard.downs] == ["no subscription granted within 1.5 s"]
        await link.stop()
    half_dead.close()
    await half_dead.wait_closed()


async def test_a_broker_that_never_answers_a_subscription_is_kept_if_it_is_the_only_one() -> None:
    now, pings = 0.0, 0

    async def answer_pings(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal pings
        await reader.read(1)
        writer.write(b"\x20\x02\x00\x00")  # CONNACK
        with contextlib.suppress(asyncio.IncompleteReadError):
            while await reader.readuntil(b"\xc0\x00"):  # PINGREQ
                pings += 1
                writer.write(b"\xd0\x00")
        writer.close()

    server = await asyncio.start_server(answer_pings, "127.0.0.1", 0)
    heard, port = Recorder(), server.sockets[0].getsockname()[1]
    link = MqttLink(impatient(port, keepalive_s=1), "a", echo_topic="echo/a", clock=lambda: now)
    link.start(heard)
    await eventually(lambda: link.connected)
    now = 1e6
    await eventually(lambda: pings >= 2)
    assert not heard.downs
    await link.stop()
    server.close()
    await server.wait_closed()


async def test_after_every_address_failed_there_is_a_pause_and_then_all_are_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.DEBUG, logger="ofl_iot.transport"):
        waits: list[float] = []
        link = MqttLink(impatient(1, hosts=("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3")), "a", rng=random.Random(1))
        pause = link._pauses.backoff.next_s
        link._pauses.backoff.next_s = lambda: waits.append(pause()) or waits[-1]  # type: ignore[func-returns-value]
        link.start(Recorder())
        await eventually(lambda: len(waits) == 5)
        await link.stop()
        tried = [record.getMessage().split("broker=127.0.0.1:")[1][0] for record in caplog.records]
        assert "".join(tried).startswith("123" * 5)
        assert len(set(waits)) == 5  # jitter: no two alike


async def test_a_fleet_spreads_over_the_brokers_when_told() -> None:
    async with EmbeddedBroker() as one, EmbeddedBroker() as two:
        hosts = (f"127.0.0.1:{one.port}", f"127.0.0.1:{two.port}")
        links = [MqttLink(impatient(1, hosts=hosts, spread=True), f"n-{i}", rng=random.Random(i)) for i in range(20)]
        for link in links:
            link.start(Recorder())
        await eventually(lambda: all(link.connected for link in links))
        counts = [len(broker._broker.connections) for broker in (one, two)]  # type: ignore[union-attr]
        assert sum(counts) == 20
        assert min(counts) >= 5
        await asyncio.gather(*(link.stop() for link in links))


async def test_a_host_without_an_answer_does_not_stall_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    """A listener with a full backlog never answers SYN: connecting to it takes for ever."""

    async def story() -> None:
        with socket.socket() as deaf:
            deaf.bind(("127.0.0.1", 0))
            deaf.listen(0)
            fillers = []
            for _ in range(4):
                filler = socket.socket()
                filler.setblocking(False)
                filler.connect_ex(deaf.getsockname())
                fillers.append(filler)
            link = MqttLink(impatient(deaf.getsockname()[1], connect_timeout_s=0.3), "a")
            link.start(Recorder())
            longest, last = 0.0, time.monotonic()
            while not any("no connection within 0.3 s" in r.getMessage() for r in caplog.records):
                await asyncio.sleep(0.001)
                longest, last = max(longest, time.monotonic() - last), time.monotonic()
            assert longest < 0.2
            await link.stop()
            for filler in fillers:
                filler.close()

    with caplog.at_level(logging.DEBUG, logger="ofl_iot.transport"):
        await asyncio.wait_for(story(), 20)


async def test_a_server_that_does_not_speak_mqtt_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="ofl_iot.transport"):

        async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        async def garble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            await mute(reader, writer)

        first = await asyncio.start_server(mute, "127.0.0.1", 0)
        second = await asyncio.start_server(garble, "127.0.0.1", 0)
        hosts = tuple(f"127.0.0.1:{server.sockets[0].getsockname()[1]}" for server in (first, second))
        link = MqttLink(impatient(1, hosts=hosts, connect_timeout_s=0.1), "a")
        handler = Recorder()
        link.start(handler)
        await eventually(lambda: "no answer to CONNECT within 0.1 s" in caplog.text)
        await eventually(lambda: caplog.text.count("no link to the broker") >= 4)
        assert handler.events == []
        await link.stop()
        for server in (first, second):
            server.close()
            await server.wait_closed()


async def test_two_hundred_links_share_one_loop(open_broker: Any) -> None:
    """A ring: every link publishes to its neighbour."""
    count = 200

    async with open_broker() as port:
        links = [MqttLink(impatient(port), f"n-{i}", rng=random.Random(i)) for i in range(count)]
        heard = [Recorder() for _ in links]
        for i, link in enumerate(links):
            link.subscribe(f"n/{i}", 1)
            link.start(heard[i])
        await eventually(lambda: all(f"n/{i}" in link.granted for i, link in enumerate(links)))
        for i, link in enumerate(links):
            for turn in range(5):
                assert link.publish(f"n/{(i + 1) % count}", b"%d of %d" % (turn, i), qos=1)
        await eventually(lambda: all(len(h.deliveries) >= 5 for h in heard))
        assert all(
            set(h.payloads) == {b"%d of %d" % (n, (i - 1) % count) for n in range(5)} for i, h in enumerate(heard)
        )
        await asyncio.gather(*(link.stop() for link in links))
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("mqtt link")]


async def test_a_broker_that_refuses_us_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="ofl_iot.transport"):

        async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.write(b"\x20\x02\x00\x05")
            await reader.read()
            writer.close()

        server = await asyncio.start_server(refuse, "127.0.0.1", 0)
        link = MqttLink(impatient(server.sockets[0].getsockname()[1]), "a")
        handler = Recorder()
        link.start(handler)
        await eventually(lambda: caplog.text.count("refused by the broker: Not authorized") >= 3)
        assert handler.events == []
        await link.stop()
        server.close()
        await server.wait_closed()


async def test_a_broker_that_sends_rubbish_does_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    """A topic that is not UTF-8 is dropped; a refused subscription is told; a broken packet ends the connection."""

    with caplog.at_level(logging.DEBUG, logger="ofl_iot.transport"):

        async def misbehave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.write(b"\x20\x02\x00\x00")  # CONNACK
            writer.write(b"\x30\x05\x00\x02\xff\xfeX")  # PUBLISH to a topic that is not UTF-8
            await reader.readuntil(b"\x00\x01t\x01")  # the end of SUBSCRIBE
            writer.write(b"\x90\x03\x00\x01\x80")  # SUBACK: refused
            writer.write(b"\xf0\x00")  # no such packet
            await reader.read()
            writer.close()

        server = await asyncio.start_server(misbehave, "127.0.0.1", 0)
        link = MqttLink(impatient(server.sockets[0].getsockname()[1]), "a")
        link.subscribe("t", 1)
        handler = Recorder()
        link.start(handler)
        await eventually(lambda: len(handler.downs) >= 2)
        assert handler.deliveries == []
        assert link.dropped >= 2
        assert link.granted == frozenset()
        await link.stop()
        server.close()
        await server.wait_closed()
    assert "unreadable topic" in caplog.text
    assert "subscription refused client=a pattern=t" in caplog.text


async def test_a_subscription_refused_for_a_while_is_asked_for_again(caplog: pytest.LogCaptureFixture) -> None:
    """A cluster that has just lost a node refuses what it grants a moment later."""

    async def refuse_twice(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"\x20\x02\x00\x00")  # CONNACK
        for packet, answer in ((1, 0x80), (2, 0x80), (3, 1)):
            await reader.readuntil(b"\x00\x01t\x01")  # the end of SUBSCRIBE
            writer.write(b"\x90\x03\x00" + bytes([packet, answer]))  # SUBACK
        await reader.read()
        writer.close()

    server = await asyncio.start_server(refuse_twice, "127.0.0.1", 0)
    link = MqttLink(impatient(server.sockets[0].getsockname()[1], keepalive_s=1), "a")
    link.subscribe("t", 1)
    assert not link.all_granted
    link.start(Recorder())
    await eventually(lambda: link.granted == {"t"})
    assert link.all_granted
    assert link.connections == 1
    await link.stop()
    server.close()
    await server.wait_closed()
    assert caplog.text.count("subscription refused client=a pattern=t") == 2


async def test_without_acknowledgements_a_link_that_was_away_hears_what_is_retained(open_broker: Any) -> None:
    """With QoS 0 the session keeps nothing; asking again brings what must be known."""

    async with (
        open_broker() as port,
        TcpProxy(port) as proxy,
        linked(port, "b", "t/#") as (b, seen),
        linked(proxy.port, "a", "t/#", qos=0) as (a, heard),
    ):
        assert a.publish("t/now", b"1", qos=1)
        await eventually(lambda: heard.payloads == [b"1"] and seen.payloads == [b"1"])
        proxy.refuse()
        proxy.reset()
        await eventually(lambda: heard.downs)
        assert b.publish("t/kept", b"2", qos=1, retain=True)
        await eventually(lambda: seen.payloads == [b"1", b"2"])
        proxy.resume()
        await eventually(lambda: b"2" in heard.payloads)


async def test_stopping_a_stalled_link_gives_up_at_the_deadline(
    open_broker: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        open_broker() as port,
        TcpProxy(port) as proxy,
        linked(proxy.port, "a", stop_timeout_s=0.1) as (a, heard),
    ):
        proxy.stall()
        assert a.publish("t", b"x", qos=1)
        await asyncio.wait_for(a.stop(), 5)
        assert [down.reason for down in heard.downs] == ["stopped"]
    assert "link stopped before all was sent client=a left=1" in caplog.text


@pytest.mark.parametrize("open_broker", ["mosquitto"], indirect=True)  # amqtt keeps both
async def test_federations_share_a_broker_and_a_stolen_session_is_named(open_broker: Any) -> None:
    async with open_broker() as port:
        one, two, twin = (
            MqttLink(impatient(port), "coordinator", federation=name, rng=random.Random(seed))
            for seed, name in enumerate(("plant-a", "plant-b", "plant-a"))
        )
        for link in (one, two):
            link.start(Recorder())
        await eventually(lambda: one.connected and two.connected)
        assert (one.connections, two.connections) == (1, 1)
        twin.start(Recorder())
        said = "another client with this id connected; the id 'plant-a.coordinator' must be unique there"
        await eventually(lambda: said in one.last_failure or said in twin.last_failure)
        assert (two.connected, two.connections) == (True, 1)
        for link in (twin, two, one):
            await link.stop()
