"""The embedded broker: amqtt inside this process, for the demo and for tests.

It has known faults (tests/broker/test_faults.py shows each): what is in flight is dropped, a takeover
leaves a deaf session, keep-alive is not enforced. In production run mosquitto or a clustered broker.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import amqtt
from amqtt.broker import Broker
from amqtt.errors import BrokerError
from amqtt.session import Session

from ofl_broker.guard import guard_plugins
from ofl_iot.errors import ConfigError
from ofl_iot.ids import FederationId

logger = logging.getLogger(__name__)

SHUTDOWN_TIMEOUT_S = 5.0
_AMQTT_FOLDER = str(Path(amqtt.__file__).parent)


class _Subscriptions(dict[str, Any]):
    """amqtt's subscriptions, which it goes through with pauses in which others subscribe: a copy stands still."""

    def __iter__(self) -> Iterator[str]:
        return iter(list(super().__iter__()))

    def items(self) -> Any:
        """Return the present pairs."""
        return list(super().items())


class _TrackedBroker(Broker):  # type: ignore[misc]  # amqtt is not typed
    """amqtt's broker, which forgets its connections' tasks, with a list of them."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self._subscriptions = _Subscriptions()
        self.connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def stream_connected(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, listener_name: str
    ) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 -- a coroutine runs in a task
        self.connections[task] = writer
        try:
            await super().stream_connected(reader, writer, listener_name)
        except OSError as error:
            logger.debug("a connection broke error=%r", error)
        finally:
            del self.connections[task]
            writer.close()


class _GuardedBroker(_TrackedBroker):
    """A broker that keeps to an access policy where amqtt does not ask its plugins."""

    async def _publish_retained_messages_for_subscription(
        self, subscription: tuple[str, int], session: Session
    ) -> None:
        """amqtt offers retained messages of everybody's subscriptions to whoever connects: only one's own count."""
        holders = self._subscriptions.get(subscription[0], ())
        if any(holder.client_id == session.client_id for holder, _ in holders):
            await super()._publish_retained_messages_for_subscription(subscription, session)


class EmbeddedBroker:
    """An MQTT 3.1.1 broker that lives as long as its `async with` block.

    Clients must send a user name (any): amqtt keeps no messages for absent anonymous ones. With a `federation` its
    access policy is kept, by the names clients give.
    """

    def __init__(
        self,
        bind: str = "127.0.0.1:0",
        *,
        federation: FederationId | None = None,
        log_level: int = logging.CRITICAL,
    ) -> None:
        if not bind.rpartition(":")[0] or not bind.rpartition(":")[2].isdecimal():
            raise ConfigError(f"cannot listen on {bind!r}: write it as 'address:port', for example '127.0.0.1:1883'")
        self._bind = bind
        self._federation = federation
        self._log_level = log_level
        self._broker: _TrackedBroker | None = None
        self.port = 0
        """The port it listens on; chosen by the system when `bind` ends in `:0`."""

    async def __aenter__(self) -> EmbeddedBroker:  # noqa: PYI034 -- typing.Self needs Python 3.11
        for chatty in ("amqtt", "transitions"):
            logging.getLogger(chatty).setLevel(self._log_level)
        broker = self._make()
        try:
            await broker.start()
        except BrokerError as error:
            await broker.plugins_manager.close()
            raise ConfigError(_explain(self._bind, error)) from error
        self._broker = broker
        self.port = _server(broker).sockets[0].getsockname()[1]
        self._mute_lost_tasks()
        logger.info("embedded broker listens bind=%s port=%d", self._bind, self.port)
        return self

    def _make(self) -> _TrackedBroker:
        plugins = {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": False}}
        listeners = {"default": {"type": "tcp", "bind": self._bind}}
        if self._federation is None:
            return _TrackedBroker({"listeners": listeners, "plugins": plugins})
        return _GuardedBroker({"listeners": listeners, "plugins": {**plugins, **guard_plugins(self._federation)}})

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        broker, self._broker = self._broker, None
        if broker is None:
            return
        try:
            await self._shut_down(broker)
        finally:
            asyncio.get_running_loop().set_exception_handler(self._outer_handler)

    async def _shut_down(self, broker: _TrackedBroker) -> None:
        """Stop listening, cut every connection, then let amqtt tidy up; each stage has a deadline."""
        _server(broker).close()
        for writer in broker.connections.values():
            writer.transport.abort()
        await _finish(broker.connections)
        try:
            await asyncio.wait_for(broker.shutdown(), SHUTDOWN_TIMEOUT_S)
        except asyncio.TimeoutError:
            logger.warning("embedded broker did not shut down timeout_s=%g", SHUTDOWN_TIMEOUT_S)
        logger.info("embedded broker stopped port=%d", self.port)

    def _mute_lost_tasks(self) -> None:
        """Keep amqtt's abandoned tasks, which fail with nobody listening, out of the program's log."""
        loop = asyncio.get_running_loop()
        self._outer_handler = outer = loop.get_exception_handler()

        def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            task = context.get("future") or context.get("task")
            if isinstance(task, asyncio.Task) and _is_amqtt(task):
                logger.debug("amqtt lost a task name=%s error=%r", task.get_name(), context.get("exception"))
            elif outer is not None:
                outer(loop, context)
            else:
                loop.default_exception_handler(context)

        loop.set_exception_handler(handle)


def _server(broker: _TrackedBroker) -> asyncio.Server:
    server: asyncio.Server = broker._servers["default"].instance  # noqa: SLF001 -- amqtt offers no other way
    return server


def _is_amqtt(task: asyncio.Task[Any]) -> bool:
    code = getattr(task.get_coro(), "cr_code", None)
    return code is not None and code.co_filename.startswith(_AMQTT_FOLDER)


async def _finish(tasks: Any) -> None:
    """Wait for `tasks` to end, and end those that do not."""
    if not (remaining := set(tasks)):
        return
    _, remaining = await asyncio.wait(remaining, timeout=SHUTDOWN_TIMEOUT_S)
    for task in remaining:
        task.cancel()
    await asyncio.gather(*remaining, return_exceptions=True)


def _explain(bind: str, error: BrokerError) -> str:
    cause = error.__cause__
    number = cause.errno if isinstance(cause, OSError) else None
    host, _, port = bind.rpartition(":")
    if number == errno.EADDRINUSE:
        return f"port {port} on {host} is in use by another program: stop it or choose another port (0: any)"
    if number == errno.EACCES:
        return f"port {port} on {host} is reserved for the system: choose one above 1023"
    return f"cannot listen on {bind}: {cause or error}; choose an address of this machine"
