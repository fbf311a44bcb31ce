"""The bodies of lean rounds: a leader's upload, what the coordinator asks of leaders, what they answer.

sketch   all headers, the boxes for this leader     ─▶ a sketch of its update, encrypted
scores   headers, the others' sketches              ─▶ its part of their decryption
vouch    headers, weights                           ─▶ its signature on them
open     headers, weights, signatures, boxes        ─▶ its share of the sum's key
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from ofl_iot.protocol.fields import Count, Id

SKETCH, SCORES, VOUCH, OPEN = "sketch", "scores", "vouch", "open"
STAGES = (SKETCH, SCORES, VOUCH, OPEN)

Signature = Annotated[bytes, msgspec.Meta(max_length=128)]
"""ECDSA on P-256 in DER; empty where nobody is enrolled."""
Box = Annotated[bytes, msgspec.Meta(max_length=16 * 1024)]
"""A sealed share of a mask key."""


class SignedHeader(msgspec.Struct, frozen=True, array_like=True):
    """What a leader states about its body (`ofl_iot.crypto.lean.header`), with its signature."""

    header: Annotated[bytes, msgspec.Meta(max_length=8192)]
    signature: Signature = b""


class LeanUpload(msgspec.Struct, frozen=True, array_like=True, tag="leanupload"):
    """The payload of a contribution to a lean round."""

    signed: SignedHeader
    body: bytes
    boxes: dict[Id, Box]
    """Shares of the body's key, by receiver."""


class SketchAsk(msgspec.Struct, frozen=True, array_like=True, tag="sketchask"):
    """All bodies are in: asks a contributor for the sketch that their headers fix."""

    headers: tuple[SignedHeader, ...]
    boxes: dict[Id, Box]
    """The shares for this leader, by sender: it says now which do not open."""


class ScoresAsk(msgspec.Struct, frozen=True, array_like=True, tag="scoresask"):
    """Asks a leader to compute the score request of these sketches and to answer that."""

    headers: tuple[SignedHeader, ...]
    sketches: dict[Id, bytes]
    """Sketches of the other leaders."""
    active: tuple[Id, ...]
    retry: Count
    boxes: dict[Id, Box] = {}
    """The shares for this leader: one number of each shows whether a sketch is that of its body."""
    signatures: dict[Id, Signature] = {}
    """By whom each sketch is, this leader's own included."""


class VouchAsk(msgspec.Struct, frozen=True, array_like=True, tag="vouchask"):
    """Asks a contributor to sign for these weights."""

    headers: tuple[SignedHeader, ...]
    weights: dict[Id, Count]


class OpenAsk(msgspec.Struct, frozen=True, array_like=True, tag="openask"):
    """Asks a leader for its share of the sum's key; every contributor has signed for it."""

    headers: tuple[SignedHeader, ...]
    weights: dict[Id, Count]
    signatures: dict[Id, Signature]
    boxes: dict[Id, Box]


class LeanAnswer(msgspec.Struct, frozen=True, array_like=True, tag="leananswer"):
    """A leader's answer, or why there is none."""

    data: bytes
    accused: tuple[Id, ...] = ()
    """Contributors whose boxes do not open here."""
    numbers: bytes = b""
    """With scores: for each sketch and place, in the order of names, a number modulo both primes (uint32)."""
    signature: Signature = b""
    """With a sketch: that it is this leader's, for these headers."""
