"""The global model as the broker retains it, read by an enrolled party that does not run elsewhere."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from dataclasses import dataclass, field

import numpy as np

from ofl_agents.doctor.identity import enrolled_name
from ofl_agents.models.export import Trained
from ofl_agents.program import settings_of
from ofl_iot.errors import ConfigError, ProtocolError, TransportError
from ofl_iot.ids import COORDINATOR, RESERVED, DeviceId, device_id, federation_id
from ofl_iot.models.named import ModelCopy
from ofl_iot.models.stored import card_for
from ofl_iot.protocol.messages import Card, Manifest, Part
from ofl_iot.protocol.parts import MAX_BODY_BYTES, BodyJoiner
from ofl_iot.protocol.topics import Kind
from ofl_iot.runtime.addressing import Wire
from ofl_iot.runtime.settings import Settings
from ofl_iot.transport.link import Delivery, LinkEvent
from ofl_iot.transport.mqtt import MqttLink

_KINDS = (Kind.CARD, Kind.MANIFEST, Kind.GLOBAL_PART)
_CARD_S = 1.0
"""The card comes with the rest; a coordinator of an older version retains none."""
_MAX_BODIES = 3


@dataclass
class RetainedModel:
    """Collects manifest and parts, which come in any order."""

    wire: Wire
    manifest: Manifest | None = None
    card: bytes = b""
    _joiners: dict[bytes, BodyJoiner] = field(default_factory=dict)
    _bodies: dict[bytes, bytes] = field(default_factory=dict)

    def hear(self, event: LinkEvent) -> None:
        """Take what the broker sends; what is no part of a model is passed over."""
        if not isinstance(event, Delivery):
            return
        arrived = self.wire.incoming(event.topic, event.payload)
        if arrived is None or arrived.topic.kind not in _KINDS:
            return  # what else waits for the party stays with the broker
        event.ack()
        if isinstance(arrived.message, Manifest):
            self.manifest = arrived.message
        elif isinstance(arrived.message, Card):
            self.card = arrived.message.model
        elif isinstance(arrived.message, Part):
            with contextlib.suppress(ProtocolError):
                self._take(arrived.message)

    def _take(self, part: Part) -> None:
        joiner = self._joiners.setdefault(part.digest, BodyJoiner.expecting(part, MAX_BODY_BYTES))
        while len(self._joiners) > _MAX_BODIES:
            del self._joiners[next(iter(self._joiners))]
        if (body := joiner.add(part)) is not None:
            self._bodies = {part.digest: body}

    def complete(self) -> ModelCopy | None:
        """Return the model once all of it is here."""
        manifest = self.manifest
        body = self._bodies.get(manifest.digest) if manifest else None
        if manifest is None or body is None:
            return None
        values = np.frombuffer(body, "<f4").astype(np.float32)
        if len(values) != manifest.size or not np.isfinite(values).all():
            raise ConfigError(f"the model of round {manifest.round_no} at the broker is damaged: try again later")
        return ModelCopy(
            party=COORDINATOR,
            role="coordinator",
            which="federation",
            round_no=manifest.round_no,
            model=manifest.model,
            values=values,
            card=card_for(self.card, manifest.model),
            final=manifest.final,
        )


def from_broker(options: argparse.Namespace) -> Trained:
    """Return the retained model, read under the name of the identity or of `--id`."""
    settings = settings_of(options)
    given = options.id or enrolled_name(settings.mqtt)
    if not given:
        raise ConfigError("--broker: as whom? Name an enrolled party with --id, or its folder with mqtt.identity")
    name = DeviceId(given) if given in RESERVED else device_id(given)
    copy = asyncio.run(_read(settings, name, options.timeout))
    return Trained(copy.named(), copy.card)


async def _read(settings: Settings, name: DeviceId, timeout_s: float) -> ModelCopy:
    """Visit the broker; the session takes the name over, so its party must not run at the same time."""
    wire = Wire(federation_id(settings.federation.id))
    retained = RetainedModel(wire)
    link = MqttLink(settings.mqtt, name, federation=settings.federation.id)
    patterns = [wire.topics.pattern(kind) for kind in _KINDS]
    for pattern in patterns:
        link.subscribe(pattern, 1)
    link.start(retained.hear)
    until = time.monotonic() + timeout_s
    try:
        complete_at: float | None = None
        while True:
            copy, now = retained.complete(), time.monotonic()
            complete_at = complete_at or (now if copy else None)
            if copy and complete_at is not None and (retained.card or now > complete_at + _CARD_S):
                return copy
            if copy is None and now > until:
                raise TransportError(_missing(link, retained, timeout_s))
            await asyncio.sleep(0.02)
    finally:
        for pattern in patterns:
            link.unsubscribe(pattern)
        await link.stop()


def _missing(link: MqttLink, retained: RetainedModel, timeout_s: float) -> str:
    if not link.connected:
        return f"no session at the broker within {timeout_s:g} s: {link.last_failure or 'no answer'}"
    if retained.manifest is None:
        return (
            f"the broker retains no model of this federation ({timeout_s:g} s): has it begun, may this party read it?"
        )
    return f"parts of round {retained.manifest.round_no} did not come within {timeout_s:g} s: raise --timeout"
