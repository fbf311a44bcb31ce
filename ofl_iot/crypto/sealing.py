"""Sealed boxes: bytes that one named device reads and one named device wrote, for one federation and term.

An ephemeral key makes every box different, the sender's enrolled key proves who wrote it (as in HPKE's auth mode):

    key = HKDF-SHA256(X25519(ephemeral, receiver) | X25519(sender, receiver), info = names and public keys)
    box = ephemeral public key | ChaCha20-Poly1305(key, nonce 0, plaintext)

The key is used for one box only, so the constant nonce is safe.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from ofl_iot.crypto.entropy import Entropy
from ofl_iot.errors import ConfigError, CryptoError
from ofl_iot.ids import DeviceId, FederationId, Term

KEY_BYTES: Final = 32
OVERHEAD_BYTES: Final = KEY_BYTES + 16
_NONCE: Final = bytes(12)


@dataclass(frozen=True)
class SealingKey:
    """A device's private X25519 key; its public half is enrolled with the coordinator."""

    private_bytes: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.private_bytes) != KEY_BYTES:
            raise ConfigError(
                f"a sealing key has {KEY_BYTES} bytes, got {len(self.private_bytes)}: enrol the device again"
            )

    @classmethod
    def generate(cls, entropy: Entropy) -> SealingKey:
        """A fresh key."""
        return cls(entropy.random_bytes(KEY_BYTES))

    @property
    def public_bytes(self) -> bytes:
        """The half that others seal to."""
        return self._private().public_key().public_bytes_raw()

    def agree(self, public_bytes: bytes) -> bytes:
        """The secret shared with the owner of a public key."""
        try:
            return self._private().exchange(X25519PublicKey.from_public_bytes(public_bytes))
        except ValueError as error:  # wrong length, or a point that yields nothing secret
            raise CryptoError(f"not a usable X25519 public key: {error}") from error

    def _private(self) -> X25519PrivateKey:
        return X25519PrivateKey.from_private_bytes(self.private_bytes)


@dataclass(frozen=True)
class Envelope:
    """Whose box it is: everything here must agree on both sides, or the box does not open."""

    federation: FederationId
    term: Term
    sender: DeviceId
    receiver: DeviceId
    purpose: str = "key deal"

    def info(self, *public_keys: bytes) -> bytes:
        """The bytes that bind a box to its names and keys; names cannot contain the separator."""
        names = (self.federation, str(self.term), self.sender, self.receiver, self.purpose)
        return b"ofl-iot sealed v1\n" + "\n".join(names).encode() + b"\n" + b"".join(public_keys)


def seal(plaintext: bytes, envelope: Envelope, sender: SealingKey, receiver_public: bytes, entropy: Entropy) -> bytes:
    """Close a box that only the receiver opens."""
    ephemeral = SealingKey.generate(entropy)
    info = envelope.info(ephemeral.public_bytes, sender.public_bytes, receiver_public)
    key = _derive(ephemeral.agree(receiver_public) + sender.agree(receiver_public), info)
    return ephemeral.public_bytes + ChaCha20Poly1305(key).encrypt(_NONCE, plaintext, None)


def open_sealed(box: bytes, envelope: Envelope, receiver: SealingKey, sender_public: bytes) -> bytes:
    """Open a box, or refuse it: truncated, altered, or of other names, term or keys than expected."""
    title = f"sealed {envelope.purpose} from {envelope.sender} to {envelope.receiver}"
    if len(box) < OVERHEAD_BYTES:
        raise CryptoError(f"{title}: truncated after {len(box)} bytes")
    ephemeral_public = box[:KEY_BYTES]
    info = envelope.info(ephemeral_public, sender_public, receiver.public_bytes)
    try:
        key = _derive(receiver.agree(ephemeral_public) + receiver.agree(sender_public), info)
        return ChaCha20Poly1305(key).decrypt(_NONCE, box[KEY_BYTES:], None)
    except (InvalidTag, CryptoError) as error:
        raise CryptoError(f"{title}: altered, or not made by this sender for this receiver and term") from error


def _derive(shared: bytes, info: bytes) -> bytes:
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=info).derive(shared)
