"""What a link receives: its own echoes, what must be dropped, and deliveries."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ofl_iot.transport.connection import Ack, Client, Message, nothing_to_acknowledge
from ofl_iot.transport.echo import SelfPing
from ofl_iot.transport.link import Delivery
from ofl_iot.transport.subscriptions import Subscriptions

logger = logging.getLogger(__name__)


class Receiver:
    """Sorts what the broker sends; called under paho's locks."""

    def __init__(
        self,
        client_id: str,
        echo: SelfPing,
        subscriptions: Subscriptions,
        *,
        max_bytes: int,
        clock: Callable[[], float],
    ) -> None:
        self._client_id = client_id
        self._echo = echo
        self._subscriptions = subscriptions
        self._max_bytes = max_bytes
        self._clock = clock
        self.dropped = 0

    def delivery(self, client: Client, message: Message) -> Delivery | None:
        """Return what is to be handed on; None for an echo and for what is dropped."""
        ack = Ack(client, message.mid) if message.qos == 1 else nothing_to_acknowledge
        self._echo.heard(self._clock())
        try:
            topic = message.topic
        except UnicodeDecodeError:
            self._drop("unreadable topic", "?", ack)
            return None
        if self._echo.takes(topic, message.payload):
            ack()
        elif len(message.payload) > self._max_bytes:
            self._drop(f"{len(message.payload)} bytes are too many", topic, ack)
        elif message.retain and message.qos == 0 and not self._subscriptions.covers(topic):
            # amqtt sends every retained message to whoever connects.
            self._drop("never asked for", topic, ack, level=logging.DEBUG)
        else:
            return Delivery(topic, bytes(message.payload), message.retain, ack)
        return None

    def _drop(self, why: str, topic: str, ack: Callable[[], None], level: int = logging.WARNING) -> None:
        self.dropped += 1
        logger.log(level, "dropped a message client=%s topic=%s reason=%r", self._client_id, topic, why)
        ack()
