"""One vector, signed by all: leaders open a sum only against every contributor's signature on the same statement.

A contributor signs ONE statement for a body of its own. So nobody can be shown another vector than the others, and no
second sum over the same bodies can be asked for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ec import (
    ECDSA,
    SECP256R1,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
)
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_der_public_key

from ofl_iot.crypto.context import KeyContext
from ofl_iot.crypto.lean.header import Digest, Header, KeyId, Name, Number, Weighed
from ofl_iot.crypto.lean.weights import check_weights
from ofl_iot.errors import CryptoError

VERSION: Final = 1
_DOMAIN: Final = b"ofl-iot lean vector v1\n"
_SKETCH_DOMAIN: Final = b"ofl-iot lean sketch v1\n"

Verify = Callable[[str, bytes, bytes], None]
"""(leader, statement, signature): CryptoError unless the leader signed it."""


class Entry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One contributor: its body, by the digest of its header, and its weight."""

    leader: Name
    header: Digest
    weight: Number


class Statement(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Which bodies are summed with which weights."""

    federation: Name
    term: Number
    key_id: KeyId
    round_no: Number
    entries: tuple[Entry, ...]

    @classmethod
    def over(cls, headers: Sequence[Header], weights: Mapping[str, int]) -> Statement:
        """The statement on these headers' bodies; contributors in the order of their names."""
        first = headers[0]
        entries = tuple(
            Entry(header.sender, header.digest, weights[header.sender])
            for header in sorted(headers, key=lambda header: header.sender)
            if header.sender in weights
        )
        return cls(first.federation, first.term, first.key_id, first.round_no, entries)

    @property
    def signed_bytes(self) -> bytes:
        """What the contributors sign: version byte and msgpack array."""
        return _DOMAIN + bytes([VERSION]) + msgspec.msgpack.encode(self)

    @property
    def digest(self) -> bytes:
        """SHA-256 of the signed bytes."""
        return hashlib.sha256(self.signed_bytes).digest()

    @property
    def weights(self) -> dict[str, int]:
        """Weights by contributor."""
        return {entry.leader: entry.weight for entry in self.entries}

    @property
    def vector(self) -> tuple[Weighed, ...]:
        """Contributors and weights without the bodies: what a later header is pinned to."""
        return tuple(Weighed(entry.leader, entry.weight) for entry in self.entries)


def check_vector(context: KeyContext, statement: Statement, round_no: int) -> None:
    """Refuse a vector of another key or round, of strangers, or with weights that show one contributor."""
    if (statement.federation, statement.term, statement.key_id) != (context.federation, context.term, context.key_id):
        raise CryptoError("a vector under another key than that of this term")
    if statement.round_no != round_no:
        raise CryptoError(f"a vector of round {statement.round_no}, the open contribution is of round {round_no}")
    names = [entry.leader for entry in statement.entries]
    if names != sorted(set(names)):
        raise CryptoError("a vector whose contributors are not in order, or named twice")
    for name in names:
        context.point_of_name(name)
    check_weights([entry.weight for entry in statement.entries])


def check_statement(context: KeyContext, statement: Statement, own: Header) -> None:
    """What a contributor checks before it signs: its own body is in it, the weights hide it, its pin is kept."""
    check_vector(context, statement, own.round_no)
    mine = [entry for entry in statement.entries if entry.leader == own.sender]
    if not mine or mine[0].header != own.digest:
        raise CryptoError("a vector without this leader's present body")
    if own.pinned and statement.vector != own.pinned:
        raise CryptoError("another vector than the one that was signed for this update before")


def check_vouched(statement: Statement, signatures: Mapping[str, bytes], verify: Verify) -> None:
    """Refuse a statement that not every contributor signed."""
    for entry in statement.entries:
        if entry.leader not in signatures:
            raise CryptoError(f"{entry.leader} did not sign for the sum that its body is part of")
        verify(entry.leader, statement.signed_bytes, signatures[entry.leader])


def sketch_bytes(headers: Iterable[Header], sketch: bytes) -> bytes:
    """What a leader signs for its encrypted sketch: whoever passes it on can put no other in its place."""
    return _SKETCH_DOMAIN + b"".join(sorted(header.digest for header in headers)) + hashlib.sha256(sketch).digest()


def sign(key: EllipticCurvePrivateKey, data: bytes) -> bytes:
    """An ECDSA signature (P-256, SHA-256, DER)."""
    return key.sign(data, ECDSA(SHA256()))


def verify_signature(public: bytes, data: bytes, signature: bytes, who: str) -> None:
    """CryptoError unless the holder of the public key (DER) signed the data."""
    try:
        key = load_der_public_key(public)
    except ValueError as error:
        raise CryptoError(f"{who}: no usable signing key") from error
    if not isinstance(key, EllipticCurvePublicKey) or not isinstance(key.curve, SECP256R1):
        raise CryptoError(f"{who}: the signing key is not an ECDSA key on P-256")
    try:
        key.verify(signature, data, ECDSA(SHA256()))
    except InvalidSignature as error:
        raise CryptoError(f"{who}: the signature is not its own, or of something else") from error
