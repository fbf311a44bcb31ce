"""What a link does where bytes leave slowly: nothing stale, nothing twice, what is urgent first, no false alarm."""

from __future__ import annotations

import asyncio
import errno
import shutil
import socket
import subprocess
import sys
import time
from typing import Any

import pytest

from ofl_iot.transport.flow import UNSENT_BYTES
from ofl_iot.transport.link import Delivery
from ofl_iot.transport.mqtt import MqttLink, MqttSettings
from ofl_iot.transport.network import is_local
from ofl_iot.transport.pauses import NO_NETWORK_PAUSE_S
from ofl_iot.transport.sender import FEED_BYTES
from tests.links import linked
from tests.netfaults import TcpProxy
from tests.waiting import eventually

CHUNK = 4096
MANY = 400
"""Chunks that no buffer on the way could hold."""
FEW = 50
"""Chunks that may have left before the link noticed that it is stalled."""


def chunks() -> list[bytes]:
    return [number.to_bytes(4, "big") * (CHUNK // 4) for number in range(MANY)]


async def test_what_is_urgent_overtakes_and_what_is_stale_is_withdrawn(open_broker: Any) -> None:
    async with (
        open_broker() as port,
        TcpProxy(port, small_buffers=True) as proxy,
        linked(proxy.port, "device") as (link, _),
        linked(port, "leader", "old", "new", "control") as (_, heard),
    ):
        proxy.stall()
        for payload in chunks():
            assert link.publish("old", payload, qos=1, urgency=1)
        assert link.publish("new", b"chunk", qos=1, urgency=1)
        assert link.publish("control", b"receipt", qos=1)
        link.withdraw("old")
        proxy.resume()
        await eventually(lambda: {"new", "control"} <= {each.topic for each in heard.deliveries})
        topics = [each.topic for each in heard.deliveries]
        assert topics.count("old") <= FEW
        assert topics.index("control") < topics.index("new")


async def test_a_resend_of_what_has_not_left_adds_nothing(open_broker: Any) -> None:
    async with (
        open_broker() as port,
        TcpProxy(port, small_buffers=True) as proxy,
        linked(proxy.port, "device") as (link, _),
        linked(port, "leader", "t") as (_, heard),
    ):
        proxy.stall()
        payloads = chunks()[:100]
        for _ in range(20):
            for payload in payloads:
                assert link.publish("t", payload, qos=1, urgency=1)
        proxy.resume()
        await eventually(lambda: len(heard.deliveries) >= len(payloads))
        assert link.publish("t", b"last", qos=1, urgency=9)
        await eventually(lambda: heard.payloads[-1:] == [b"last"])
        assert heard.payloads[:-1] == payloads


async def test_little_is_where_it_cannot_be_withdrawn(open_broker: Any) -> None:
    async with (
        open_broker() as port,
        TcpProxy(port, small_buffers=True) as proxy,
        linked(proxy.port, "device") as (link, _),
    ):
        proxy.stall()
        before = link.bytes_sent
        for payload in chunks():
            link.publish("t", payload, qos=1)
        writable = asyncio.Event()
        for _ in range(50):  # turns of the loop in which it may write what the kernel takes
            asyncio.get_running_loop().call_soon(writable.set)
            await writable.wait()
            writable.clear()
        held_by_the_way = 64 * 1024
        assert link.bytes_sent - before <= UNSENT_BYTES + FEED_BYTES + held_by_the_way
        proxy.reset()


async def test_a_thin_link_is_not_called_deaf(open_broker: Any) -> None:
    """Its echo waits behind other data; only once the peer has it does the time run."""

    class Clock:
        ahead_s, calls = 0.0, 0

        def __call__(self) -> float:
            self.calls += 1
            return time.monotonic() + self.ahead_s

    clock = Clock()
    async with open_broker() as port, TcpProxy(port, small_buffers=True) as proxy:
        async with linked(proxy.port, "other", "t"):
            pass  # the broker and the proxy work
        from_link: list[Any] = []
        settings = {"echo_interval_s": 5.0, "echo_timeout_s": 0.4}
        link = MqttLink(impatient_settings(proxy.port, **settings), "device", echo_topic="e", clock=clock)
        link.start(from_link.append)
        await eventually(lambda: link.connected and link.all_granted)
        proxy.stall()
        for payload in chunks():
            link.publish("t", payload, qos=1)
        clock.ahead_s = 1000.0
        seen = clock.calls
        await eventually(lambda: clock.calls >= seen + 20)  # the echo is handed over, and overdue by any clock
        assert link.connections == 1
        assert link.connected
        proxy.resume()
        await link.stop()
        assert not [event for event in from_link if isinstance(event, Delivery)]


def impatient_settings(port: int, **changes: Any) -> MqttSettings:
    return MqttSettings(port=port, backoff_min_s=0.02, backoff_max_s=0.2, connect_timeout_s=5.0, **changes)


WATCH = """
import asyncio, fcntl, socket, struct
from ofl_iot.transport.network import netlink_watch

async def main():
    changed = asyncio.Event()
    watch = netlink_watch()
    watch.listen(changed.set)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:  # bring the loopback interface up
        request = struct.pack("16sH14x", b"lo", 0x1 | 0x40)
        fcntl.ioctl(s, 0x8914, request)
    await asyncio.wait_for(changed.wait(), 20)
    watch.forget(changed.set)
    print("changed")

asyncio.run(main())
"""


def test_a_change_of_the_network_is_noticed() -> None:
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed")
    command = ["unshare", "--net", "--", sys.executable, "-c", WATCH]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)  # noqa: S603
    if "Operation not permitted" in done.stderr or "unshare failed" in done.stderr:
        pytest.skip(f"no network namespace can be made here: {done.stderr.strip()}")
    assert done.stdout == "changed\n", done.stderr


async def test_a_link_tries_at_once_when_the_network_changes(open_broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Watch:
        changed: Any = None

        def listen(self, changed: Any) -> None:
            self.changed = changed

        def forget(self, changed: Any) -> None:
            self.changed = None

    watch = Watch()
    monkeypatch.setattr("ofl_iot.transport.mqtt.netlink_watch", lambda: watch)
    async with open_broker() as port:
        from_link: list[Any] = []
        patient = MqttSettings(port=port, backoff_min_s=600.0, backoff_max_s=600.0)
        link = MqttLink(patient, "device")
        link.start(from_link.append)
        await eventually(lambda: link.connected)
        link._connection.end("the test said so")  # a pause of ten minutes begins
        await eventually(lambda: not link.connected)
        assert watch.changed is not None
        watch.changed()
        await eventually(lambda: link.connections == 2)
        await link.stop()
        assert watch.changed is None


async def test_pauses_stay_short_while_this_machine_has_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unreachable(*_: object) -> Any:
        raise OSError(errno.ENETUNREACH, "Network is unreachable")

    monkeypatch.setattr("ofl_iot.transport.mqtt.open_socket", unreachable)
    link = MqttLink(MqttSettings(port=1, backoff_min_s=600.0, backoff_max_s=600.0), "device")
    assert link._pauses.next_s() >= 300.0
    link.start(lambda _: None)
    await eventually(lambda: link.tried)
    assert link._pauses.next_s() <= NO_NETWORK_PAUSE_S
    await link.stop()


@pytest.mark.parametrize(
    ("error", "local"),
    [
        (OSError(errno.EHOSTUNREACH, "No route to host"), True),
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"), True),
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), False),
        (OSError("no errno"), False),
    ],
)
def test_no_network_is_told_from_no_broker(error: OSError, local: bool) -> None:
    assert is_local(error) is local
