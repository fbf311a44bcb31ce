"""What is said to the enrolment service: over TLS 1.3, one question and one answer a connection.

A message is its length in four bytes and a msgpack array `[version, message]`.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias, TypeVar

import msgspec

from ofl_iot.errors import DecodeError
from ofl_iot.identity.tokens import SECRET_BYTES

VERSION = 1
MAX_BYTES = 1 << 20
"""Largest question in bytes."""
MAX_ANSWER_BYTES = 1 << 28
"""Largest answer in bytes: a revocation list of a verified authority has no other bound."""
LENGTH_BYTES = 4
Pem = Annotated[bytes, msgspec.Meta(max_length=8192)]


class AskAuthority(msgspec.Struct, frozen=True, array_like=True, tag="authority?"):
    """Which certificate do you go by? The asker compares its fingerprint with the token's."""


class Join(msgspec.Struct, frozen=True, array_like=True, tag="join"):
    """Admit me: a token's secret and a request for a certificate."""

    secret: Annotated[bytes, msgspec.Meta(min_length=SECRET_BYTES, max_length=SECRET_BYTES)]
    request: Pem

    def __repr__(self) -> str:
        """Without the secret."""
        return "Join(...)"


class Renew(msgspec.Struct, frozen=True, array_like=True, tag="renew"):
    """Certify me anew: whoever asks is connected by its present certificate."""


class AskRevoked(msgspec.Struct, frozen=True, array_like=True, tag="revoked?"):
    """Who was revoked? It is public."""


class AuthorityIs(msgspec.Struct, frozen=True, array_like=True, tag="authority"):
    """The authority's certificate, not yet to be trusted."""

    certificate: Pem


class Issued(msgspec.Struct, frozen=True, array_like=True, tag="issued"):
    """A certificate for the asker."""

    certificate: Pem


class Revoked(msgspec.Struct, frozen=True, array_like=True, tag="revoked"):
    """The revocation list."""

    crl: bytes


class Refused(msgspec.Struct, frozen=True, array_like=True, tag="refused"):
    """Why not, and what to do."""

    reason: Annotated[str, msgspec.Meta(max_length=500)]


ShareRequest: TypeAlias = AskAuthority | Join | Renew | AskRevoked
Answer: TypeAlias = AuthorityIs | Issued | Revoked | Refused
T = TypeVar("T")


def frame(message: ShareRequest | Answer) -> bytes:
    """The message with its length in front."""
    body = msgspec.msgpack.encode([VERSION, message])
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def length_of(head: bytes, most: int = MAX_BYTES) -> int:
    """How many bytes follow; DecodeError beyond what anybody has to say."""
    length = int.from_bytes(head, "big")
    if length > most:
        raise DecodeError(f"an enrolment message of {length} bytes: at most {most} are allowed")
    return length


def read_question(body: bytes) -> ShareRequest:
    """Decode what a device asks."""
    return _decoded(body, tuple[int, ShareRequest])


def read_answer(body: bytes) -> Answer:
    """Decode what the service answers."""
    return _decoded(body, tuple[int, Answer])


def _decoded(body: bytes, kind: type[tuple[int, T]]) -> T:
    try:
        version, message = msgspec.msgpack.decode(body, type=kind)
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
        raise DecodeError(f"not a message of the enrolment: {str(error)[:200]!a}") from error
    if version != VERSION:
        raise DecodeError(f"enrolment version {version}, and this is {VERSION}: update the older side")
    return message
