"""The embedded broker: starts on a free port, says why it cannot, leaves nothing behind."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import threading
import time
from typing import Any

import pytest

from ofl_broker.embedded import EmbeddedBroker, _Subscriptions
from ofl_broker.program import main, serve
from ofl_iot.errors import ConfigError
from tests.links import linked
from tests.waiting import eventually


def test_whoever_subscribes_meanwhile_breaks_no_walk_through_the_subscriptions() -> None:
    """amqtt goes through them with pauses when somebody connects; a plain dictionary then ends that connection."""
    subscriptions = _Subscriptions({"t/a": [], "t/b": []})
    for pattern in subscriptions:
        subscriptions[f"{pattern}/later"] = []
    for pattern, sessions in subscriptions.items():
        assert sessions == []
        del subscriptions[pattern]
    assert subscriptions == {}


async def test_it_leaves_no_task_behind() -> None:
    async with EmbeddedBroker() as broker:
        assert broker.port > 0
        stray_reader, stray_writer = await asyncio.open_connection("127.0.0.1", broker.port)
        async with linked(broker.port, "a", "t/#") as (a, heard):
            for i in range(20):
                a.publish(f"t/{i}", b"x", qos=1, retain=True)
            await eventually(lambda: len(heard.deliveries) == 20)
            heard.acknowledging = False
            a.publish("t/unacknowledged", b"x", qos=1)
            await eventually(lambda: len(heard.deliveries) == 21)
            await broker.__aexit__(None, None, None)
            await eventually(lambda: heard.downs)
        assert await stray_reader.read() == b""
        stray_writer.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_port_in_use_is_named() -> None:
    async with EmbeddedBroker() as broker:
        with pytest.raises(ConfigError, match=rf"port {broker.port} on 127.0.0.1 is in use"):
            async with EmbeddedBroker(f"127.0.0.1:{broker.port}"):
                pass


@pytest.mark.parametrize("bind", ["1883", "127.0.0.1", "127.0.0.1:", "127.0.0.1:mqtt", ":1883"])
def test_a_bind_that_means_nothing_is_refused(bind: str) -> None:
    with pytest.raises(ConfigError, match="write it as 'address:port'"):
        EmbeddedBroker(bind)


async def test_a_foreign_address_is_refused() -> None:
    with pytest.raises(ConfigError, match="choose an address of this machine"):
        async with EmbeddedBroker("192.0.2.1:0"):
            pass


async def test_clients_need_a_user_name() -> None:
    """Ours always send one; amqtt keeps nothing for absent anonymous clients."""

    async with EmbeddedBroker() as broker:
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
        writer.write(b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x3c\x00\x01a")
        assert await asyncio.wait_for(reader.read(4), 5) == b"\x20\x02\x00\x05"  # CONNACK: not authorised
        writer.close()


async def test_it_does_not_chatter(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        async with EmbeddedBroker() as broker, linked(broker.port, "a", "t"):
            _, writer = await asyncio.open_connection("127.0.0.1", broker.port)
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            writer.close()
    assert {record.name for record in caplog.records} <= {
        "ofl_broker.embedded",
        "ofl_iot.transport.mqtt",
        "ofl_iot.transport.failures",
    }


async def test_errors_of_other_tasks_still_reach_the_loops_handler() -> None:
    async def story() -> list[Any]:
        seen: list[Any] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: seen.append(context["message"]))
        async with EmbeddedBroker():
            loop.call_exception_handler({"message": "ours"})
        loop.call_exception_handler({"message": "after"})
        return seen

    assert await story() == ["ours", "after"]


async def test_serving_ends_when_told(free_port: int) -> None:
    stop = asyncio.Event()
    serving = asyncio.create_task(serve("127.0.0.1", free_port, stop))
    async with linked(free_port, "a"):
        stop.set()
        await asyncio.wait_for(serving, 5)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_program_ends_on_a_signal_with_exit_code_0(number: signal.Signals, free_port: int) -> None:
    def ask_to_end() -> None:
        until = time.monotonic() + 10
        while time.monotonic() < until:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", free_port)) == 0:
                    break
        os.kill(os.getpid(), number)

    asker = threading.Thread(target=ask_to_end)
    asker.start()
    assert main(["--port", str(free_port)]) == 0
    asker.join()


def test_the_program_says_that_the_port_is_in_use(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        assert main(["--port", str(other.getsockname()[1])]) == 2
    assert "is in use by another program" in capsys.readouterr().err
