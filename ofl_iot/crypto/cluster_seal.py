"""Seals what a leader publishes for all members of its cluster, so that nobody else at the broker reads it.

    key = HKDF-SHA256(the leader's private sealing key, info = leader and term)
    box = ChaCha20-Poly1305(key, nonce = version | part, plaintext, associated data = round and number of parts)

A leader hands the key to each member on a topic that only this member may read. Versions of a term are stored before
they are published and never used twice, so no nonce is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from ofl_iot.errors import CryptoError
from ofl_iot.ids import DeviceId

KEY_BYTES: Final = 32


@dataclass(frozen=True)
class Place:
    """What a box stands for in the order of a term's changes."""

    version: int
    part: int
    parts: int
    round_no: int

    @property
    def nonce(self) -> bytes:
        """Twelve bytes that no other box under the same key has."""
        return self.version.to_bytes(8, "little") + self.part.to_bytes(4, "little")

    @property
    def bound(self) -> bytes:
        """What a box is bound to beside its nonce."""
        return self.parts.to_bytes(8, "little") + self.round_no.to_bytes(8, "little")


@dataclass(frozen=True)
class ClusterSeal:
    """The key of one leader and term; an empty one leaves everything as it is."""

    key: bytes = field(repr=False)

    @classmethod
    def of_leader(cls, private: bytes, leader: DeviceId, term: int) -> ClusterSeal:
        """The key that follows from a leader's private sealing key."""
        if not private:
            return cls(b"")
        info = b"ofl-iot cluster change v1\n" + f"{leader}\n{term}".encode()
        return cls(HKDF(SHA256(), KEY_BYTES, salt=None, info=info).derive(private))

    def close(self, plaintext: bytes, place: Place) -> bytes:
        """Seal a part of a change."""
        if not self.key:
            return plaintext
        return ChaCha20Poly1305(self.key).encrypt(place.nonce, plaintext, place.bound)

    def open(self, box: bytes, place: Place) -> bytes:
        """Open a part, or raise CryptoError if it is not of this leader, term and place."""
        if not self.key:
            return box
        try:
            return ChaCha20Poly1305(self.key).decrypt(place.nonce, box, place.bound)
        except (InvalidTag, ValueError) as error:
            raise CryptoError("a cluster's change that is not sealed by its leader for this term and place") from error
