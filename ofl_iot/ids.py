"""Names of the parties, checked once where they enter the program.

An id becomes part of topics, file names and certificate subjects, so it is lower-case letters, digits and
single inner hyphens, at most 48 characters.
"""

from __future__ import annotations

import re
from typing import NewType

from ofl_iot.errors import ConfigError

DeviceId = NewType("DeviceId", str)
FederationId = NewType("FederationId", str)
Term = NewType("Term", int)
"""Number of an assignment; only grows."""

COORDINATOR = DeviceId("coordinator")
"""The coordinator's id wherever a sender or receiver is named; no device may take it."""

DECRYPTOR = DeviceId("decryptor")
"""The id of the party that performs ServerDec in the coordinator's place; no device may take it either."""

OBSERVER = DeviceId("observer")
"""The id of a party that reads what the fleet says and publishes nothing; no device may take it either."""

OPERATOR = DeviceId("operator")
"""The id of a party that gives orders to devices and reads what observers read; no device may take it either."""

RESERVED = frozenset({COORDINATOR, DECRYPTOR, OBSERVER, OPERATOR})

MAX_ID_LENGTH = 48
_ID = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*\Z")


def is_id(text: str) -> bool:
    """Whether `text` has the form of an id."""
    return len(text) <= MAX_ID_LENGTH and _ID.match(text) is not None


def device_id(text: str) -> DeviceId:
    """Check a device's id."""
    if text in RESERVED:
        raise ConfigError(f"the id {text!r} belongs to the {text}: choose another")
    return DeviceId(_checked(text, "device id"))


def federation_id(text: str) -> FederationId:
    """Check a federation's id."""
    return FederationId(_checked(text, "federation id"))


def _checked(text: str, what: str) -> str:
    if not is_id(text):
        raise ConfigError(
            f"{what} {text!r}: use 1 to {MAX_ID_LENGTH} lower-case letters, digits and single hyphens between "
            "them, for example 'truck-017'"
        )
    return text
