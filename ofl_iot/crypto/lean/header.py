"""What a leader states about its body, signed; leaders open a sum only if these statements agree.

A header is a version byte and a msgpack array: the same fields are the same bytes everywhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Annotated, Final

import msgspec

from ofl_iot.crypto.context import KeyContext
from ofl_iot.crypto.lean.params import check_precision
from ofl_iot.errors import CryptoError

VERSION: Final = 1
_DOMAIN: Final = b"ofl-iot lean header v1\n"
Digest = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
KeyId = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
Number = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]


class Weighed(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A contributor and its weight."""

    leader: Name
    weight: Number


class Header(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One body: whose it is, for what, and on which common ground it stands."""

    federation: Name
    term: Number
    key_id: KeyId
    round_no: Number
    attempt: Number
    """How often this leader made a body for this round before."""
    sender: Name
    n_params: Number
    precision: Number
    """P, bits a parameter."""
    body: Digest
    """SHA-256 of the body."""
    base: Digest
    """Digest of the global model that the update stands on."""
    bounds: Digest
    """Digest of the quantisation bounds."""
    pinned: tuple[Weighed, ...] = ()
    """The vector for which this leader signed an earlier body of the same update: it will sign no other."""

    def encode(self) -> bytes:
        """The canonical bytes."""
        return bytes([VERSION]) + msgspec.msgpack.encode(self)

    @property
    def digest(self) -> bytes:
        """SHA-256 of the canonical bytes."""
        return hashlib.sha256(_DOMAIN + self.encode()).digest()

    @property
    def signed_bytes(self) -> bytes:
        """What the signature covers."""
        return _DOMAIN + self.encode()


def decode_header(data: bytes) -> Header:
    """A header from bytes; refuses another version, and bytes that are not the canonical ones."""
    if not data or data[0] != VERSION:
        raise CryptoError("a lean header of another version: update this program or the sender's")
    try:
        header = msgspec.msgpack.decode(data[1:], type=Header)
    except (msgspec.DecodeError, ValueError) as error:
        raise CryptoError(f"a lean header that cannot be read: {error}") from error
    if header.encode() != data:
        raise CryptoError(f"header of {header.sender}: not in its canonical form")
    check_precision(header.precision)
    return header


def body_digest(body: bytes) -> bytes:
    """What a header says of its body."""
    return hashlib.sha256(b"ofl-iot lean body v1\n" + body).digest()


def base_digest(model: bytes) -> bytes:
    """What a header says of the global model (float32, little-endian)."""
    return hashlib.sha256(b"ofl-iot lean base v1\n" + model).digest()


def check_agreement(context: KeyContext, round_no: int, headers: Sequence[Header]) -> None:
    """Refuse headers that do not belong to one key, round, base model, bounds and precision.

    With other bounds for one leader than for the rest, the others' values would round to zero and the sum would be
    that leader's update.
    """
    if not headers:
        raise CryptoError(f"round {round_no}: no header")
    first = headers[0]
    for header in headers:
        title = f"header of {header.sender}"
        context.point_of_name(header.sender)
        if (header.federation, header.term, header.key_id) != (context.federation, context.term, context.key_id):
            raise CryptoError(f"{title}: made under another key than that of term {context.term}")
        if header.round_no != round_no:
            raise CryptoError(f"{title}: made for round {header.round_no}, this is round {round_no}")
        for what in ("base", "bounds", "precision", "n_params"):
            if getattr(header, what) != getattr(first, what):
                raise CryptoError(f"{title}: another {_WORDS[what]} than {first.sender}'s")
    if len({header.sender for header in headers}) != len(headers):
        raise CryptoError(f"round {round_no}: a leader has two headers")


_WORDS = {
    "base": "base model",
    "bounds": "set of quantisation bounds",
    "precision": "number of bits a parameter",
    "n_params": "number of parameters",
}


def by_sender(headers: Iterable[Header]) -> dict[str, Header]:
    """Headers by who made them."""
    return {header.sender: header for header in headers}
