"""One MQTT connection: paho's client, without a thread, on a socket the asyncio loop watches.

The only importer of paho. Every connection gets a fresh client, because paho's own reconnecting forgets its
in-flight cap and has no jitter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion

from ofl_iot.transport.pending import Outgoing
from ofl_iot.transport.settings import Address, MqttSettings, Will
from ofl_iot.transport.sockets import CountedSocket

Message = paho.MQTTMessage

_PACKETS_A_TURN = 100
"""Packets read before other links get their turn."""


class Client(paho.Client):
    """paho's client for one connection, on a socket that is already connected."""

    def __init__(
        self,
        client_id: str,
        name: str,
        settings: MqttSettings,
        will: Will | None,
        sock: CountedSocket,
        *,
        clean: bool = False,
    ) -> None:
        """`clean`: the broker drops the session, now and when this connection ends."""
        super().__init__(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            clean_session=clean,
            protocol=paho.MQTTv311,
            reconnect_on_failure=False,
            manual_ack=True,
        )
        self.sock = sock
        self.max_inflight_messages_set(settings.max_inflight)
        self.username_pw_set(settings.username or name, settings.password)
        if will is not None:
            self.will_set(will.topic, will.payload, will.qos, will.retain)

    def _create_socket(self) -> CountedSocket:
        return self.sock

    def send(self, message: Outgoing) -> int | None:
        """Queue a message; its packet number, or None if the connection is gone."""
        info = self.publish(message.topic, message.payload, message.qos, message.retain)
        return info.mid if info.rc == paho.MQTT_ERR_SUCCESS else None

    def abandon(self) -> None:
        """Close the socket without a goodbye."""
        self._sock_close()
        self.sock.close()


class Connection:
    """One connection from CONNECT to its end: the loop watches the socket and drives the client."""

    def __init__(self, client: Client, dispatch: Callable[[], None]) -> None:
        self.client = client
        self._dispatch = dispatch
        self._loop = loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[str] = loop.create_future()
        """Why it ended, once it has."""
        self.accepted: asyncio.Future[None] = loop.create_future()
        client.on_socket_open = lambda _c, _u, sock: loop.add_reader(sock.fileno(), self._read)
        client.on_socket_close = lambda _c, _u, sock: _discard(loop.remove_reader(sock.fileno()))
        client.on_socket_register_write = lambda _c, _u, sock: loop.add_writer(sock.fileno(), self._write)
        client.on_socket_unregister_write = lambda _c, _u, sock: _discard(loop.remove_writer(sock.fileno()))
        client.on_disconnect = lambda _c, _u, _f, reason, _p: self.end(client.sock.fault or str(reason))

    def open(self, address: Address, keepalive_s: int) -> None:
        """Send CONNECT."""
        self.client.connect_async(address.host, address.port, keepalive_s)
        self.client.reconnect()

    def end(self, reason: str) -> None:
        """Note the end; the first reason counts."""
        if not self.ended.done():
            self.ended.set_result(reason)

    def _read(self) -> None:
        try:
            for _ in range(_PACKETS_A_TURN):
                self.client.loop_read()
                if not self.client.sock.readable_now:
                    return
            self._loop.call_soon(self._read)
        finally:
            self._dispatch()

    def _write(self) -> None:
        try:
            self.client.loop_write()
        finally:
            self._dispatch()


class Ack:
    """Acknowledges one QoS 1 delivery, once, on the connection it came by."""

    __slots__ = ("_client", "_packet")

    def __init__(self, client: Client, packet: int) -> None:
        self._client: Client | None = client
        self._packet = packet

    def __call__(self) -> None:
        client, self._client = self._client, None
        if client is not None and client.socket() is not None:
            client.ack(self._packet, 1)


def nothing_to_acknowledge() -> None:
    """The `ack` of a QoS 0 delivery."""


def _discard(_: object) -> None:
    """Drop the loop's answer: paho's callbacks return nothing."""
