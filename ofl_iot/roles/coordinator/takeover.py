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
_WAYS_OUT = (
    "Try again; or start with the state folder that was in use last; or, to give that model up, with --take-over anew"
)


@dataclass(frozen=True)
class TakeoverState:
    """A model and its books, which belong together."""

    manifest: Manifest
    values: Vector
    books: Books


@dataclass
class TakeoverReader:
    """Collects a left for a model of `size` parameters that is known by its `digest`."""

    digest: bytes
    size: int
    manifest: Manifest | None = None
    _given: Manifest | None = None
    """The version that was handed out last."""
    _joiners: dict[bytes, BodyJoiner] = field(default_factory=dict)
    _bodies: dict[bytes, bytes] = field(default_factory=dict)

    @property
    def waiting(self) -> bool:
        """Whether the last manifest's model and books, or the manifest, are still to come."""
        return self.manifest is None or self.manifest != self._given

    def take_manifest(self, manifest: Manifest) -> bool:
        """The last one counts: whether it is news. A model of another kind cannot be taken over."""
        if (manifest.model, manifest.size) != (self.digest, self.size):
            raise ConfigError(
                f"the federation's last model has {manifest.size} parameters and is another one than is to be learnt "
                f"now ({self.size} parameters): start with the settings it was made with, or in another federation"
            )
        news = manifest != self.manifest
        self.manifest = manifest
        return news

    def take_part(self, kind: Kind, part: Part) -> bool:
        """A part of a model or of books, of this or an earlier version: whether it is news."""
        limit = 4 * self.size if kind == Kind.GLOBAL_PART else _MAX_BOOKS_BYTES
        joiner = self._joiners.setdefault(part.digest, BodyJoiner.expecting(part, limit))
        if part.part in joiner.held:
            return False
        body = joiner.add(part)
        if body is not None:
            self._bodies[part.digest] = body
        return True

    def complete(self) -> TakeoverState | None:
        """The left when all of it has come: once for each version of it."""
        manifest = self.manifest
        if manifest is None or not self.waiting:
            return None
        if not {manifest.digest, manifest.books} <= self._bodies.keys():
            return None
        values = np.frombuffer(self._bodies[manifest.digest], "<f4").astype(np.float32)
        if len(values) != self.size or not np.isfinite(values).all():
            raise ConfigError(f"the model of round {manifest.round_no} at the broker is damaged. {_WAYS_OUT}")
        self._given = manifest
        return TakeoverState(manifest, values, decode_body(Books, self._bodies[manifest.books]))

    def check_empty(self) -> None:
        """Raise ConfigError if there is something that did not become complete: it must not be overwritten unasked."""
        if self.manifest or self._joiners:
            raise ConfigError(
                "the broker holds a part of another coordinator's model and not all of it: it may be slow, or that "
                f"coordinator died while it published. {_WAYS_OUT}"
            )
