"""What an operator orders a device to do: signed, for one device of one federation, by number and time.

Nothing in an order can loosen privacy or protection or name code to run: there are two actions, and no field for more.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec

from ofl_iot.protocol.fields import Certificate, Count, Id

Action: TypeAlias = Literal["pause", "resume"]
Signature = Annotated[bytes, msgspec.Meta(max_length=80)]
LIFETIME_S = 30 * 86_400.0
"""An order that is older is refused: nobody who returns after months obeys what is long forgotten."""
AHEAD_S = 300.0
"""An order may be so far ahead of the device's clock."""
_PURPOSE = "ofl order 1"
"""Keeps an order's signature from being taken for anything else's."""


class Order(msgspec.Struct, frozen=True, array_like=True, tag="order"):
    """One order; retained, so that a device that is away finds the last one when it returns."""

    federation: Id
    device: Id
    number: Count
    """Grows from order to order: a device obeys none of a number that it has seen or passed."""
    issued_s: Annotated[float, msgspec.Meta(ge=0, le=1e11)]
    """Seconds since 1970."""
    action: Action
    certificate: Certificate = b""
    """The operator's (DER)."""
    signature: Signature = b""
    """By the certificate's key, over `signed_bytes`."""


def signed_bytes(order: Order) -> bytes:
    """Return what an operator signs: all fields but certificate and signature, and what they are for."""
    return msgspec.msgpack.encode(
        (_PURPOSE, order.federation, order.device, order.number, order.issued_s, order.action)
    )
