"""How a global model reaches a leader: parts and manifest in any order, asked for again when they do not come."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ofl_iot.errors import DecodeError
from ofl_iot.protocol.messages import Manifest, Part
from ofl_iot.protocol.parts import BodyJoiner
from ofl_iot.protocol.topics import Kind
from ofl_iot.roles.commands import CancelTimer, Command, SetTimer, Subscribe
from ofl_iot.roles.events import Vector

FETCH = "leader.fetch"
_FETCH_S = 5.0
_MAX_JOINERS = 2


@dataclass(frozen=True)
class GlobalVersion:
    """A global model that is complete."""

    manifest: Manifest
    values: Vector


class ModelReader:
    """Collects the parts of the newest global model."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._manifest: Manifest | None = None
        self._joiners: dict[bytes, BodyJoiner] = {}
        self._body: tuple[bytes, bytes] | None = None
        """Digest and bytes of the last complete body."""
        self._fetching = False

    def forget(self) -> None:
        """Another term: what was coming in no longer matters."""
        self._manifest, self._fetching = None, False

    def take_part(self, part: Part, now: float) -> Iterator[Command]:
        """A part of a global model."""
        if self._body and self._body[0] == part.digest:
            return
        joiner = self._joiners.setdefault(part.digest, BodyJoiner.expecting(part, 4 * self._size))
        while len(self._joiners) > _MAX_JOINERS:
            del self._joiners[next(iter(self._joiners))]
        if self._fetching:
            yield SetTimer(FETCH, now + _FETCH_S)  # it is coming in
        body = joiner.add(part)
        if body is not None:
            self._joiners.pop(part.digest, None)
            self._body = (part.digest, body)

    def take_manifest(self, manifest: Manifest, now: float) -> Iterator[Command]:
        """A manifest; if its parts do not follow, they are asked for."""
        self._manifest = manifest
        if not self._body or self._body[0] != manifest.digest:
            yield SetTimer(FETCH, now + _FETCH_S)

    def fetch(self, now: float) -> Iterator[Command]:
        """Ask the broker for the retained global model again, unless it was just asked."""
        if not self._fetching:
            self._fetching = True
            yield Subscribe(Kind.GLOBAL_PART)
            yield Subscribe(Kind.MANIFEST)
            yield SetTimer(FETCH, now + _FETCH_S)

    def timer(self, now: float) -> Iterator[Command]:
        """Nothing came for a while."""
        self._fetching = False
        if self._manifest:
            yield from self.fetch(now)

    def complete(self) -> GlobalVersion | None:
        """The model, once manifest and parts are here; it is handed out once."""
        manifest = self._manifest
        if manifest is None or self._body is None or self._body[0] != manifest.digest:
            return None
        (_, body), self._body, self._manifest, self._fetching = self._body, None, None, False
        if len(body) != 4 * self._size:
            raise DecodeError(f"a global model of {len(body)} bytes, expected {4 * self._size}")
        values = np.frombuffer(body, "<f4").astype(np.float32)
        if not np.isfinite(values).all():
            raise DecodeError("the global model holds a value that is not finite")
        return GlobalVersion(manifest, values)

    @staticmethod
    def stop() -> Iterator[Command]:
        """Nothing is waited for any more."""
        yield CancelTimer(FETCH)
