"""A handler that records a link's events, and settings with short waits."""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator
from typing import Any

from ofl_iot.transport.link import Delivery, LinkDown, LinkEvent, LinkUp
from ofl_iot.transport.mqtt import MqttLink, MqttSettings
from tests.waiting import eventually


class Recorder:
    """Keeps events in order; acknowledges deliveries unless told not to."""

    def __init__(self) -> None:
        self.events: list[LinkEvent] = []
        self.acknowledging = True

    def __call__(self, event: LinkEvent) -> None:
        self.events.append(event)
        if isinstance(event, Delivery) and self.acknowledging:
            event.ack()

    @property
    def deliveries(self) -> list[Delivery]:
        return [event for event in self.events if isinstance(event, Delivery)]

    @property
    def payloads(self) -> list[bytes]:
        return [delivery.payload for delivery in self.deliveries]

    @property
    def ups(self) -> list[LinkUp]:
        return [event for event in self.events if isinstance(event, LinkUp)]

    @property
    def downs(self) -> list[LinkDown]:
        return [event for event in self.events if isinstance(event, LinkDown)]


def impatient(port: int, **changes: Any) -> MqttSettings:
    """Settings that wait milliseconds where production waits seconds."""
    defaults: dict[str, Any] = {"port": port, "backoff_min_s": 0.02, "backoff_max_s": 0.2, "connect_timeout_s": 5.0}
    return MqttSettings(**{**defaults, **changes})


@contextlib.asynccontextmanager
async def linked(
    port: int,
    client_id: str,
    *patterns: str,
    will: Any = None,
    echo_topic: str | None = None,
    **changes: Any,
) -> AsyncIterator[tuple[MqttLink, Recorder]]:
    """A link that is up and subscribed, and its recorder."""
    link = MqttLink(impatient(port, **changes), client_id, will, echo_topic=echo_topic, rng=random.Random(client_id))
    recorder = Recorder()
    for pattern in patterns:
        link.subscribe(pattern, 1)
    link.start(recorder)
    try:
        await eventually(lambda: recorder.ups and link.granted >= set(patterns))
        yield link, recorder
    finally:
        await link.stop()
