"""MqttLink: a link over MQTT 3.1.1 that needs no thread, for one device or hundreds in one process.

A supervisor task connects, stays and connects again; what was taken with QoS 1 and not acknowledged is handed
to the next connection in the same order. paho's callbacks run under its locks, so they only note what
happened; `_dispatch` tells the handler afterwards.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ofl_iot.errors import ConfigError, TransportError
from ofl_iot.transport.backoff import Backoff
from ofl_iot.transport.connection import Client, Connection, Message
from ofl_iot.transport.echo import SelfPing
from ofl_iot.transport.failures import Failures
from ofl_iot.transport.flow import THIN_BYTES_S, LinkRate
from ofl_iot.transport.link import Delivery, Link, LinkDown, LinkEvent, LinkHandler, LinkUp
from ofl_iot.transport.network import is_local, netlink_watch
from ofl_iot.transport.pauses import Pauses
from ofl_iot.transport.pending import Outgoing
from ofl_iot.transport.receiver import Receiver
from ofl_iot.transport.requests import Requests
from ofl_iot.transport.sender import Sender
from ofl_iot.transport.session import drop_session
from ofl_iot.transport.settings import Address, MqttSettings, TlsSettings, Will
from ofl_iot.transport.sockets import CountedSocket, explain, open_socket
from ofl_iot.transport.subscriptions import Subscriptions, checked_topic
from ofl_iot.transport.waiting import first_of, unless_ended

__all__ = ["MqttLink", "MqttSettings", "TlsSettings", "Will"]

logger = logging.getLogger(__name__)

STEADY_S = 5.0
"""A connection that lasted this long was no accident: the next outage begins with short waits."""

FORGOTTEN = "session renewed"

GRANT_TIMEOUTS = 6
"""So many times `echo_timeout_s` a broker has for granting the subscription to our echoes, where there is another.

Not fewer: a cluster that makes a replicated consumer for each pattern answers late, and leaving adds to its work.
"""


class MqttLink:
    """A Link over MQTT 3.1.1 with a persistent session. Implements `ofl_iot.transport.link.Link`."""

    def __init__(
        self,
        settings: MqttSettings,
        name: str,
        will: Will | None = None,
        *,
        federation: str = "",
        echo_topic: str | None = None,
        visitor: str = "",
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        """Make a link; a `visitor` leaves no session behind, and others of its name may visit under another word."""
        self._settings = settings
        self._name = name
        self._federation = federation
        self._visitor = visitor
        self._client_id = client_id = ".".join(filter(None, (federation, name, visitor)))
        """The session's id as logs show it, without the secret of `MqttSettings.client_id`."""
        self._failures = Failures(client_id)
        self._will = will
        self._clock = clock
        settings.context()  # what cannot work is told now and not at the first connection
        self._rng = rng or random.Random()  # noqa: S311 -- jitter
        waits = (settings.backoff_min_s, settings.backoff_max_s, self._rng)
        self._pauses = Pauses(Backoff(*waits))
        self._subscriptions = Subscriptions(Backoff(*waits))
        if echo_topic is not None:
            self._subscriptions.want(checked_topic(echo_topic), 0)
        self._requests = Requests(self._subscriptions, client_id)
        self._sender = Sender(settings)
        self._inbox: deque[LinkEvent] = deque()
        self._connection: Connection | None = None
        self._echo = SelfPing(echo_topic, settings, clock())
        self._receiver = Receiver(
            client_id, self._echo, self._subscriptions, max_bytes=settings.max_packet_bytes, clock=clock
        )
        self._forget = False
        """Whether the broker is to drop our session."""
        self._rate = LinkRate()
        self._looked_at = clock()
        self._up_at = 0.0
        self._supervisor: asyncio.Task[None] | None = None
        self._stopping = False
        self._given_up = False
        """Whether we ended this connection because the broker does not do its part."""
        self._closed_bytes_sent = 0
        self._closed_bytes_received = 0
        self.connected = False
        self.tried = False
        self.publishes = 0
        self.deliveries = 0
        self.connections = 0
        """How often the broker accepted us."""

    # ---- the Link protocol ----

    def start(self, handler: LinkHandler) -> None:
        """Connect in the background and report events to `handler`, one at a time and in order."""
        if self._supervisor is not None:
            raise TransportError("this link was started before: make a new one")
        self._handler = handler
        name = f"mqtt link {self._client_id}"
        self._supervisor = asyncio.get_running_loop().create_task(self._supervise(), name=name)
        self._supervisor.add_done_callback(self._report_death)

    async def stop(self) -> None:
        """Flush what was handed over, send DISCONNECT and close, within `stop_timeout_s` seconds."""
        if self._supervisor is None:
            return
        self._stopping = True
        try:
            if (connection := self._connection) is not None and self.connected:
                await asyncio.wait_for(self._say_goodbye(connection), self._settings.stop_timeout_s)
        except asyncio.TimeoutError:
            logger.warning(
                "link stopped before all was sent client=%s left=%d", self._client_id, self._sender.unsettled
            )
        finally:
            self._supervisor.cancel()
            await asyncio.wait({self._supervisor})
            if self.connected:
                self._note_down("stopped")
            self._dispatch()

    def subscribe(self, pattern: str, qos: int) -> None:
        """Ask for every message whose topic matches; remembered over reconnects, allowed while down."""
        qos = min(_checked_qos(qos), self._settings.qos)
        self._subscriptions.want(pattern, qos)
        if self.connected and self._connection is not None:
            self._requests.subscribe(self._connection.client, [(pattern, qos)])

    def unsubscribe(self, pattern: str) -> None:
        """Take `subscribe` back; remembered likewise."""
        self._subscriptions.cancel(pattern)
        if self.connected and self._connection is not None:
            self._requests.cancel_unwanted(self._connection.client)

    def publish(self, topic: str, payload: bytes, *, qos: int, retain: bool = False, urgency: int = 0) -> bool:
        """Hand a message over; False if it was not taken because the link is down or clogged.

        While messages wait, lower `urgency` leaves first, and a repetition of one that the broker has not
        acknowledged adds nothing. Raises
        TransportError for a message of more than `max_packet_bytes`.
        """
        message = Outgoing(checked_topic(topic), payload, min(_checked_qos(qos), self._settings.qos), retain, urgency)
        if message.size > self._settings.max_packet_bytes:
            raise TransportError(
                f"a message of {message.size} bytes to {topic} exceeds max_packet_bytes = "
                f"{self._settings.max_packet_bytes}: send smaller chunks or raise it here and at the broker"
            )
        if not self.connected or self._stopping or self._connection is None or not self._sender.has_room(message):
            return False
        self._sender.take(message)
        self.publishes += 1
        self._feed()
        return True

    def withdraw(self, topic: str) -> None:
        """Drop messages to `topic` that the client does not have yet."""
        self._sender.withdraw(topic)

    def renew_session(self) -> None:
        """Connect anew without what waits at the broker, if the link is thin; a fast one takes that in no time."""
        connection, rate = self._connection, self.rate_bytes_s
        if connection is not None and self.connected and rate is not None and rate < THIN_BYTES_S:
            self._forget = True
            connection.end("what waits at the broker is no longer wanted")

    @property
    def rate_bytes_s(self) -> float | None:
        """Bytes a second that leave while data wait; None as long as none had to."""
        return self._rate.bytes_s

    def _feed(self) -> None:
        if (connection := self._connection) is not None and self.connected and not connection.ended.done():
            self._sender.feed(connection.client)

    @property
    def alive(self) -> bool:
        """Whether the supervisor that connects again and again still runs, or is yet to be started."""
        return self._supervisor is None or not self._supervisor.done()

    @property
    def last_failure(self) -> str:
        """Why the last connection ended or never began."""
        return self._failures.last

    @property
    def dropped(self) -> int:
        """Messages that were not handed on: too large, unreadable or never asked for."""
        return self._receiver.dropped

    @property
    def granted(self) -> frozenset[str]:
        """Patterns the broker confirmed."""
        return self._subscriptions.granted

    @property
    def all_granted(self) -> bool:
        """Whether the broker confirmed every pattern."""
        return not self._subscriptions.to_request()

    @property
    def bytes_sent(self) -> int:
        """Bytes written to the network since the start, protocol overhead included."""
        return self._closed_bytes_sent + (self._connection.client.sock.bytes_sent if self._connection else 0)

    @property
    def bytes_received(self) -> int:
        """Bytes read from the network since the start, protocol overhead included."""
        return self._closed_bytes_received + (self._connection.client.sock.bytes_received if self._connection else 0)

    # ---- the life of the link ----

    async def _supervise(self) -> None:
        """Connect, stay, and try again for ever: every address in turn, then a pause.

        Who does not spread begins at the first address again after a connection that went well: a moment without a
        link must not leave a party alone at the standby.
        """
        addresses = self._settings.addresses()
        first = turn = self._rng.randrange(len(addresses)) if self._settings.spread else 0
        watch = netlink_watch()
        watch.listen(self._pauses.network_changed.set)
        try:
            await self._connect_again_and_again(addresses, first, turn)
        finally:
            watch.forget(self._pauses.network_changed.set)

    async def _connect_again_and_again(self, addresses: tuple[Address, ...], first: int, turn: int) -> None:
        while not self._stopping:
            self._pauses.network_changed.clear()
            address = addresses[turn % len(addresses)]
            began = self._clock()
            self._given_up = False
            reason = await self._live(address)
            reason = self._failures.explain(reason, connected=self.connected)
            was_connected, steady = self.connected, self._clock() - began >= STEADY_S
            if was_connected:
                self._note_down(reason)
                asyncio.get_running_loop().call_soon(self._dispatch)
                if steady:
                    self._pauses.backoff.reset()
            self.tried = True
            if reason == FORGOTTEN or (was_connected and self._forget):
                continue
            self._failures.failed(address, reason, self._clock(), expected=self._stopping)
            back = was_connected and steady and not self._given_up and not self._settings.spread
            turn = first if back else turn + 1
            if was_connected or (turn - first) % len(addresses) == 0:
                await self._pauses.pause()

    def _note_down(self, reason: str) -> None:
        self.connected = False
        self._inbox.append(LinkDown(reason))

    def _report_death(self, supervisor: asyncio.Task[None]) -> None:
        if not supervisor.cancelled() and (error := supervisor.exception()) is not None:
            logger.critical("link died client=%s", self._client_id, exc_info=error)

    async def _live(self, address: Address) -> str:
        """One connection from beginning to end; returns why it ended or never began."""
        timeout_s = self._settings.connect_timeout_s
        self._pauses.no_network = False
        try:
            tls = self._settings.context()  # a certificate may have been renewed since
            client_id = ".".join(filter(None, (self._settings.client_id(self._federation, self._name), self._visitor)))
            sock = await asyncio.wait_for(open_socket(address, tls), timeout_s)
        except asyncio.TimeoutError:
            return f"no connection within {timeout_s:g} s"
        except OSError as error:
            self._pauses.no_network = is_local(error)
            return explain(error)
        except ConfigError as error:
            return str(error)
        if self._stopping:  # wait_for may finish although it was cancelled
            sock.close()
            return "stopped"
        if self._forget:
            return await self._drop_session(client_id, address, sock)
        client = Client(client_id, self._name, self._settings, self._will, sock, clean=bool(self._visitor))
        sock.rate = self._rate
        self._rate.connected(self._clock())
        self._connection = connection = Connection(client, self._dispatch)
        self._listen_to(connection)
        try:
            connection.open(address, self._settings.keepalive_s)
            await first_of(connection.accepted, connection.ended, timeout_s=timeout_s)
            if not connection.accepted.done():
                connection.end(f"no answer to CONNECT within {timeout_s:g} s")
            while not connection.ended.done():
                await first_of(connection.ended, timeout_s=self._tick_s())
                self._look_after(connection)
            return connection.ended.result()
        finally:
            self._bury(connection)

    async def _drop_session(self, client_id: str, address: Address, sock: CountedSocket) -> str:
        """Have the broker forget us; returns why this attempt ended."""
        client = Client(client_id, self._name, self._settings, None, sock, clean=True)
        self._forget = not await drop_session(client, address, self._settings)
        self._closed_bytes_sent += sock.bytes_sent
        self._closed_bytes_received += sock.bytes_received
        self._subscriptions.session_lost()
        return "no answer to CONNECT" if self._forget else FORGOTTEN

    def _tick_s(self) -> float:
        settings = self._settings
        return min(1.0, settings.keepalive_s / 4, settings.echo_interval_s / 4, settings.echo_timeout_s / 4)

    def _look_after(self, connection: Connection) -> None:
        """Keep-alive, refused subscriptions and self-ping."""
        connection.client.loop_misc()
        now = self._clock()
        self._echo.delivered(connection.client.sock.delivered(now), now)
        coming_in = self._echo.received(connection.client.sock.bytes_received, now)
        if coming_in:
            self._rate.coming_in(coming_in, now - self._looked_at, now)
        self._looked_at = now
        if connection.ended.done():
            return
        self._requests.subscribe(connection.client, self._subscriptions.to_ask_again(now))
        if self._echo.topic is None:
            return
        timeout_s = self._settings.echo_timeout_s
        granted = self._echo.topic in self._subscriptions.granted
        if self._echo.deaf(now):
            self._give_up(connection, f"deaf: no echo within {timeout_s:g} s")
        elif not granted and self._overdue(now - GRANT_TIMEOUTS * timeout_s):
            self._give_up(connection, f"no subscription granted within {GRANT_TIMEOUTS * timeout_s:g} s")
        elif granted:
            self._echo.send_if_due(connection.client, now)

    def _overdue(self, since: float) -> bool:
        """Whether the connection is older than that, and there is another broker to go to."""
        return self.connected and self._up_at <= since and len(self._settings.addresses()) > 1

    def _give_up(self, connection: Connection, reason: str) -> None:
        self._subscriptions.distrust()
        self._given_up = True
        connection.end(reason)

    def _bury(self, connection: Connection) -> None:
        connection.client.abandon()
        connection.accepted.cancel()
        self._closed_bytes_sent += connection.client.sock.bytes_sent
        self._closed_bytes_received += connection.client.sock.bytes_received
        self._connection = None

    async def _say_goodbye(self, connection: Connection) -> None:
        """Wait until everything is settled and, with echoes, passed on; send DISCONNECT and see it leave.

        amqtt acknowledges before it passes on, and forgets to pass on once we are gone; it keeps the order,
        so when the last echo is back all else has left.
        """
        await unless_ended(self._sender.drained(), connection.ended)
        if self._echo.topic in self._subscriptions.granted:
            await unless_ended(self._echo.farewell(connection.client), connection.ended)
        connection.client.disconnect()
        await first_of(connection.ended)

    # ---- what paho reports; called under its locks, so only noted here ----

    def _listen_to(self, connection: Connection) -> None:
        client = connection.client

        def on_connect(_client: Any, _userdata: Any, flags: Any, reason: Any, _properties: Any) -> None:
            if reason.is_failure:
                connection.end(f"refused by the broker: {reason}")
            elif not connection.accepted.done():
                connection.accepted.set_result(None)
                self._inbox.append(LinkUp(flags.session_present))

        client.on_connect = on_connect
        client.on_message = lambda _c, _u, message: self._on_message(client, message)
        client.on_publish = lambda _c, _u, packet, _r, _p: self._on_settled(packet)
        client.on_subscribe = lambda _c, _u, packet, reasons, _p: self._requests.answered(
            packet, reasons, self._clock()
        )
        client.on_unsubscribe = lambda _c, _u, packet, _r, _p: self._requests.cancelled(packet)

    def _on_message(self, client: Client, message: Message) -> None:
        if (delivery := self._receiver.delivery(client, message)) is not None:
            self._inbox.append(delivery)

    def _on_settled(self, packet: int) -> None:
        written = self._connection.client.sock.bytes_sent if self._connection else 0
        if not self._echo.written(packet, written):
            self._sender.settle(packet)
            self._echo.acknowledged()

    # ---- outside paho's locks ----

    def _dispatch(self) -> None:
        """Tell the handler what was noted, in order; a handler that raises does not hold up the rest."""
        try:
            while self._inbox:
                event = self._inbox.popleft()
                if isinstance(event, LinkUp):
                    self._resume(event)
                elif isinstance(event, Delivery):
                    self.deliveries += 1
                self._handler(event)
        finally:
            self._feed()
            if self._inbox:
                asyncio.get_running_loop().call_soon(self._dispatch)

    def _resume(self, up: LinkUp) -> None:
        """Subscribe to what the broker does not know, then hand over again what it never acknowledged."""
        if self._connection is None:
            return
        client = self._connection.client
        self.connected = self.tried = True
        self.connections += 1
        self._failures.over()
        self._up_at = self._clock()
        self._echo.connected(self._up_at)
        logger.info("link up client=%s session_present=%s", self._client_id, up.session_present)
        if not up.session_present:
            self._subscriptions.session_lost()
        elif self._settings.qos == 0:
            self._subscriptions.distrust()  # what was retained while we were away comes only to who asks again
        self._requests.begin_anew(client)
        self._sender.begin_anew()


def _checked_qos(qos: int) -> int:
    if qos not in (0, 1):
        raise TransportError(f"QoS {qos} is not used here: choose 0 or 1")
    return qos


if TYPE_CHECKING:
    _implements: type[Link] = MqttLink
