"""The names that certificates carry.

The subject is `CN=id` and nothing else: mosquitto takes the user name from it, NATS the whole subject. Everything that
is ours stands in one alternative name, a URI, which any TLS library carries along without understanding it:

    ofl:{federation}:{id}:{X25519 public key in hex, or nothing}
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ofl_iot.errors import ConfigError, CryptoError
from ofl_iot.ids import COORDINATOR, DECRYPTOR, OBSERVER, OPERATOR, DeviceId, FederationId, device_id, is_id

BROKER = DeviceId("broker")
ENROLMENT = DeviceId("enrolment")
"""The enrolment service: its certificate names it and not a machine, so it may move without a new one."""
PARTIES = (COORDINATOR, DECRYPTOR, BROKER, OBSERVER, OPERATOR)
"""Who may be enrolled beside devices; each by a token made for it."""
_SEALING = re.compile(r"(?:[0-9a-f]{64})?\Z")


def party_id(text: str) -> DeviceId:
    """Check the id of whoever asks for a certificate: a device, or one of the other parties."""
    if text == ENROLMENT:
        raise ConfigError(f"the id {ENROLMENT!r} belongs to the enrolment service: choose another")
    return DeviceId(text) if text in PARTIES else device_id(text)


@dataclass(frozen=True)
class Bearer:
    """Whom a certificate names."""

    federation: FederationId
    name: DeviceId
    sealing_public: bytes = b""
    """The X25519 key that others seal to; empty for those to whom nobody seals."""

    def uri(self) -> str:
        """The form in a certificate."""
        return f"ofl:{self.federation}:{self.name}:{self.sealing_public.hex()}"

    @classmethod
    def parse(cls, uri: str) -> Bearer:
        """Read the form in a certificate, or CryptoError."""
        words = uri.split(":")
        well_formed = len(words) == 4 and words[0] == "ofl" and is_id(words[1]) and is_id(words[2])
        if not well_formed or _SEALING.match(words[3]) is None:
            raise CryptoError(f"the name {uri[:120]!r} is none that this federation gives")
        return cls(FederationId(words[1]), DeviceId(words[2]), bytes.fromhex(words[3]))
