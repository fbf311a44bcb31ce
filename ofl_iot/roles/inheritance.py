"""What a coordinator whose store is lost left at the broker: its last model, and the books of what that model holds.

Parts and manifest are retained, and come in any order. A model without its books is worth nothing: chunks that it
holds would be merged again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ofl_iot.errors import ConfigError
from ofl_iot.protocol.codec import decode_body
from ofl_iot.protocol.messages import Books, Manifest, Part
from ofl_iot.protocol.parts import BodyJoiner
from ofl_iot.protocol.topics import Kind
from ofl_iot.roles.events import Vector

_MAX_BOOKS_BYTES = 1 << 28


@dataclass(frozen=True)
class Legacy:
    """A model and its books, which belong together."""

    manifest: Manifest
    values: Vector
    books: Books


@dataclass
class Inheritance:
    """Collects a legacy for a model of `size` parameters that is known by its `digest`."""

    digest: bytes
    size: int
    manifest: Manifest | None = None
    _given: Manifest | None = None
    _joiners: dict[bytes, BodyJoiner] = field(default_factory=dict)
    _bodies: dict[bytes, bytes] = field(default_factory=dict)

    def take_manifest(self, manifest: Manifest) -> None:
        """The last one counts; a model of another kind cannot be taken over."""
        if (manifest.model, manifest.size) != (self.digest, self.size):
            raise ConfigError(
                f"the federation's last model has {manifest.size} parameters and is another one than is to be learnt "
                f"now ({self.size} parameters): start with the settings it was made with, or in another federation"
            )
        self.manifest = manifest

    def take_part(self, kind: Kind, part: Part) -> None:
        """A part of a model or of books, of this or an earlier version."""
        limit = 4 * self.size if kind == Kind.GLOBAL_PART else _MAX_BOOKS_BYTES
        joiner = self._joiners.setdefault(part.digest, BodyJoiner.expecting(part, limit))
        body = joiner.add(part)
        if body is not None:
            self._bodies[part.digest] = body

    def complete(self) -> Legacy | None:
        """The legacy when all of it has come: once for each version of it."""
        manifest = self.manifest
        if manifest is None or manifest == self._given:
            return None
        if not {manifest.digest, manifest.books} <= self._bodies.keys():
            return None
        self._given = manifest
        values = np.frombuffer(self._bodies[manifest.digest], "<f4").astype(np.float32)
        return Legacy(manifest, values, decode_body(Books, self._bodies[manifest.books]))
