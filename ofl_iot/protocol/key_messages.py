"""Joint keys and decryptions: what leaders, coordinator and decryptor send each other as bodies of parts."""

from __future__ import annotations

from typing import Annotated

import msgspec

from ofl_iot.protocol.fields import BodyDigest, Certificate, Count, Id, Text


class KeyMember(msgspec.Struct, frozen=True, array_like=True):
    """A leader that takes part in a key generation."""

    leader: Id
    sealing_key: Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
    certificate: Certificate = b""
    """By which the other members know that the key is this leader's, whoever passed it on."""


class KeyOpen(msgspec.Struct, frozen=True, array_like=True, tag="keyopen"):
    """The coordinator begins a key generation: who makes the key, and how many of them decrypt."""

    term: Count
    attempt: Count
    members: tuple[KeyMember, ...]
    threshold: Count
    params: Text
    """Name of the parameter set."""


class KeyOne(msgspec.Struct, frozen=True, array_like=True, tag="keyone"):
    """A leader's broadcast of a key generation: its part of the public key and of the relinearisation key."""

    contribution: bytes
    relin: bytes


class ServerDecAsk(msgspec.Struct, frozen=True, array_like=True, tag="serverdecask"):
    """The coordinator gives the decryptor a ciphertext to decrypt with the leaders.

    Key term, round, attempt and turn order these: what is not above the last one is void.
    """

    round_no: Count
    attempt: Count
    """Attempt of the round."""
    turn: Count
    """Grows with every ciphertext of an attempt."""
    stage: Text
    """`scores` or `model`: what the ciphertext holds."""
    opened: KeyOpen
    """Which joint key."""
    public: bytes
    """The joint public key, under which the ciphertext is made fresh."""
    active: tuple[Id, ...]
    """Leaders that may be asked."""
    contributors: tuple[Id, ...]
    """Whose updates the ciphertext holds."""
    ciphertext: bytes


class ServerDecAnswer(msgspec.Struct, frozen=True, array_like=True, tag="serverdecanswer"):
    """What the decryptor got out of a ciphertext."""

    values: bytes
    """Scores: int64, one for each query; a model: float32; little-endian. Empty when it came to nothing."""
    decrypted_by: tuple[Id, ...] = ()
    failing: tuple[Id, ...] = ()
    """Leaders that did not answer, or not with a share."""
    reason: Text = ""
    """Why it came to nothing."""


class PartDecAsk(msgspec.Struct, frozen=True, array_like=True, tag="partdecask"):
    """The decryptor asks a leader for its decryption share."""

    public: BodyDigest
    """Digest of the public key with which the ciphertext was made fresh: leaders answer for their own alone."""
    request: bytes
