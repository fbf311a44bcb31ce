"""Join tokens: what an operator carries from the authority to a device.

    ofl1.{base64url(secret | SHA-256 of the authority's certificate)}.{id, where it is for one id only}

The secret lets the device in, once. The fingerprint lets the device know the authority at first contact, before it
shows the secret. The authority keeps a hash of the secret only.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import dataclass, field

from ofl_iot.crypto.entropy import Entropy
from ofl_iot.errors import ConfigError
from ofl_iot.identity.names import party_id
from ofl_iot.ids import DeviceId

SECRET_BYTES = 20
FINGERPRINT_BYTES = 32
_PREFIX = "ofl1"


@dataclass(frozen=True)
class JoinToken:
    """One admission."""

    secret: bytes = field(repr=False)
    fingerprint: bytes
    name: DeviceId | None = None
    """The only id that it admits; None: any device that is not enrolled yet."""

    @classmethod
    def generate(cls, fingerprint: bytes, name: DeviceId | None, entropy: Entropy) -> JoinToken:
        """A fresh one."""
        return cls(entropy.random_bytes(SECRET_BYTES), fingerprint, name)

    @classmethod
    def parse(cls, text: str) -> JoinToken:
        """Read what the operator carried; ConfigError if it is no token."""
        words = text.strip().split(".")
        try:
            data = base64.urlsafe_b64decode(words[1] + "=" * (-len(words[1]) % 4)) if len(words) == 3 else b""
        except (binascii.Error, ValueError):
            data = b""
        if len(words) != 3 or words[0] != _PREFIX or len(data) != SECRET_BYTES + FINGERPRINT_BYTES:
            raise ConfigError("this is no join token: copy the whole line that `ofl enroll token` printed")
        return cls(data[:SECRET_BYTES], data[SECRET_BYTES:], party_id(words[2]) if words[2] else None)

    def text(self) -> str:
        """The line to carry. It is a secret until it is used."""
        body = base64.urlsafe_b64encode(self.secret + self.fingerprint).rstrip(b"=").decode()
        return f"{_PREFIX}.{body}.{self.name or ''}"


def hash_of(secret: bytes) -> bytes:
    """What the authority keeps. The secret has 160 random bits, so nothing slow is needed."""
    return hashlib.sha256(b"ofl-iot join token\n" + secret).digest()
