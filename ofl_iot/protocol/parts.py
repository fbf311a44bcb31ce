"""Large bodies in parts that fit an MQTT packet, and back.

A body is a leader's contribution, a decryption request or share, or the global model. Parts carry the digest of the
whole, so parts of two bodies never mix, and a complete set that does not match its digest is an error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

from ofl_iot.errors import DecodeError
from ofl_iot.protocol.messages import Part

TARGET_PART_BYTES = 64 * 1024
MAX_BODY_BYTES = 1 << 30


def digest_of(body: bytes) -> bytes:
    """16 bytes of BLAKE2b."""
    return hashlib.blake2b(body, digest_size=16).digest()


def split_body(body: bytes, term: int, round_no: int, stage: str, target_bytes: int = TARGET_PART_BYTES) -> list[Part]:
    """The parts of a body; an empty one has a single empty part."""
    digest = digest_of(body)
    slices = [body[at : at + target_bytes] for at in range(0, len(body), target_bytes)] or [b""]
    return [Part(term, round_no, stage, number, len(slices), digest, each) for number, each in enumerate(slices)]


@dataclass
class BodyJoiner:
    """Collects the parts of one body, in any order, with repetitions."""

    digest: bytes
    parts: int
    max_bytes: int = MAX_BODY_BYTES
    _slices: dict[int, bytes] = field(default_factory=dict)
    _bytes: int = 0

    @classmethod
    def expecting(cls, part: Part, max_bytes: int = MAX_BODY_BYTES) -> BodyJoiner:
        """A joiner for the body that `part` belongs to."""
        return cls(part.digest, part.parts, max_bytes)

    def add(self, part: Part) -> bytes | None:
        """Take a part; the body when it is complete."""
        if part.digest != self.digest or part.parts != self.parts:
            raise DecodeError("a part of another body")
        if part.part not in self._slices:
            self._bytes += len(part.body)
            if self._bytes > self.max_bytes:
                raise DecodeError(f"a body of more than {self.max_bytes} bytes")
            self._slices[part.part] = part.body
        if len(self._slices) < self.parts:
            return None
        body = b"".join(self._slices[number] for number in range(self.parts))
        if digest_of(body) != self.digest:
            raise DecodeError("the parts do not make the body they were cut from")
        return body

    @property
    def held(self) -> Iterable[int]:
        """Numbers of the parts that have arrived."""
        return self._slices.keys()
