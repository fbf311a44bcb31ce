"""The wire form: frames of packed residues, each checkable on its own.

    magic 4 | version 1 | header length 2 | header (msgpack array) | payload | digest 16

The payload holds whole rows; a row holds one polynomial for each limb of each stack, every coefficient with as many
bits as its prime has. The digest (SHA-256, cut to 16 bytes) covers all before it: it finds damage, not forgery; who may
publish under a sender's name is the broker's access policy.
"""

from __future__ import annotations

import enum
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

import msgspec
import numpy as np

from ofl_iot.crypto.context import Origin
from ofl_iot.crypto.params import ParameterSet, parameter_set_of_code
from ofl_iot.errors import CryptoError
from ofl_iot.ids import DeviceId

if TYPE_CHECKING:
    from typing_extensions import Self

    from ofl_iot.crypto.ring import Residues

MAGIC: Final = b"OFLC"
VERSION: Final = 1
PART_BYTES: Final = 256 * 1024
"""Default limit of a part's payload; a row larger than that makes a part of its own."""
_PREFIX: Final = len(MAGIC) + 3
_DIGEST: Final = 16


class Kind(enum.IntEnum):
    """What a frame carries."""

    MODEL = 1
    KEY_CONTRIBUTION = 4
    RELIN_CONTRIBUTION = 5
    KEY_DEAL = 6
    KEY_SHARE = 7
    LEADER_SECRET = 8
    PUBLIC_KEY = 9
    RELIN_COMPLETION = 10
    DECRYPTION_REQUEST = 11
    DECRYPTION_SHARE = 12
    HELD_DECRYPTION = 13
    SCORE_REQUEST = 14
    SCORE_SHARE = 15
    HELD_SCORES = 16
    RELIN_FIRST = 17
    RELIN_KEY = 18
    SCORES = 19

    @property
    def words(self) -> str:
        """The kind as it reads in a sentence."""
        return self.name.lower().replace("_", " ")


class Header(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What every part says of itself."""

    kind: Kind
    params: int
    federation: str
    term: int
    round_no: int
    sender: str
    key_id: bytes
    part: int
    parts: int
    rows: int
    total_rows: int
    note: bytes
    """The msgpack note of the kind, the same in every part."""

    @property
    def title(self) -> str:
        """How errors name the object."""
        return f"{self.kind.words} from {self.sender}"


class Note(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of the small typed record that goes with each kind."""


def read_part(data: bytes) -> Header:
    """Check one part on its own: form, digest, header, payload length."""
    return _split(data)[0]


def _split(data: bytes) -> tuple[Header, memoryview]:
    if data[: len(MAGIC)] != MAGIC[: len(data)]:
        raise CryptoError("not one of our frames: wrong magic")
    if len(data) < _PREFIX + _DIGEST:
        raise CryptoError(f"frame truncated after {len(data)} bytes")
    if data[len(MAGIC)] != VERSION:
        raise CryptoError(f"frame of wire version {data[len(MAGIC)]}: this program speaks version {VERSION}")
    view = memoryview(data)
    if hashlib.sha256(view[:-_DIGEST]).digest()[:_DIGEST] != view[-_DIGEST:]:
        raise CryptoError(f"frame of {len(data)} bytes truncated or altered: its digest does not match")
    end = _PREFIX + int.from_bytes(data[_PREFIX - 2 : _PREFIX], "little")
    if end > len(data) - _DIGEST:
        raise CryptoError("frame header longer than the frame")
    try:
        header = msgspec.msgpack.decode(view[_PREFIX:end], type=Header)
    except (msgspec.DecodeError, ValueError) as error:
        raise CryptoError(f"frame header cannot be read: {error}") from error
    if not 0 <= header.part < header.parts or header.rows < 0:
        raise CryptoError(f"{header.title}: part {header.part} of {header.parts} with {header.rows} rows cannot be")
    return header, view[end:-_DIGEST]


def row_bytes(params: ParameterSet, layout: Sequence[int]) -> int:
    """Packed bytes of one row: N·Σ bits(p)/8 over the limbs of every stack."""
    return params.degree // 8 * sum(_limb_bits(params, layout))


def _limb_bits(params: ParameterSet, layout: Sequence[int]) -> list[int]:
    chain = params.primes
    return [p.bit_length() for limbs in layout for p in chain[:limbs]]


def _check_origin(header: Header, kind: Kind, origin: Origin) -> None:
    """Refuse a frame that does not belong to the expected key, round and sender."""
    context = origin.context
    if header.kind != kind:
        raise CryptoError(f"{header.title}: expected a {kind.words}")
    if header.sender != origin.sender:
        raise CryptoError(f"{header.title}: expected one from {origin.sender}")
    if header.params != context.params.code:
        name = parameter_set_of_code(header.params).name
        raise CryptoError(f"{header.title}: parameter set {name!r}, the term uses {context.params.name!r}")
    if header.federation != context.federation:
        raise CryptoError(f"{header.title}: of federation {header.federation!r}, not {context.federation!r}")
    if header.term != context.term:
        raise CryptoError(f"{header.title}: made for term {header.term}, this is term {context.term}")
    if header.round_no != origin.round_no:
        raise CryptoError(f"{header.title}: made for round {header.round_no}, this is round {origin.round_no}")
    if header.key_id != context.key_id:
        raise CryptoError(f"{header.title}: made under another key of term {header.term}")


class Framed(ABC):
    """An object that crosses the network: whole as bytes, or as parts of limited size."""

    kind: ClassVar[Kind]
    note_type: ClassVar[type[Note]]
    origin: Origin

    @classmethod
    @abstractmethod
    def layout(cls, params: ParameterSet) -> tuple[int, ...]:
        """Limbs of each stack that the payload carries."""

    @abstractmethod
    def body(self) -> tuple[Note, tuple[Residues, ...]]:
        """The note and the stacks `(limbs, rows, N)`."""

    @classmethod
    @abstractmethod
    def from_body(cls, origin: Origin, note: Note, stacks: tuple[Residues, ...]) -> Self:
        """Rebuild from a decoded note and stacks; refuse what does not fit together."""

    def to_parts(self, max_bytes: int = PART_BYTES) -> list[bytes]:
        """Frames whose payload is at most `max_bytes` (or one row)."""
        note, stacks = self.body()
        params = self.origin.context.params
        total = stacks[0].shape[1] if stacks else 0
        in_part = max(1, max_bytes // row_bytes(params, self.layout(params))) if stacks else 1
        starts = range(0, total, in_part) if total else range(1)
        header = self._header(msgspec.msgpack.encode(note), parts=len(starts), total_rows=total)
        frames = []
        for part, start in enumerate(starts):
            rows = range(start, min(total, start + in_part))
            own = msgspec.structs.replace(header, part=part, rows=len(rows))
            frames.append(_frame(own, _pack(params, rows, stacks)))
        return frames

    def to_bytes(self) -> bytes:
        """The whole object as one frame."""
        return self.to_parts(max_bytes=1 << 62)[0]

    def _header(self, note: bytes, parts: int, total_rows: int) -> Header:
        context = self.origin.context
        return Header(
            kind=self.kind,
            params=context.params.code,
            federation=context.federation,
            term=context.term,
            round_no=self.origin.round_no,
            sender=self.origin.sender,
            key_id=context.key_id,
            part=0,
            parts=parts,
            rows=0,
            total_rows=total_rows,
            note=note,
        )

    @classmethod
    def from_parts(cls, parts: Iterable[bytes], origin: Origin) -> Self:
        """Rebuild from all parts in any order; every part must belong to `origin`."""
        split = sorted((_split(data) for data in parts), key=lambda pair: pair[0].part)
        if not split:
            raise CryptoError(f"{cls.kind.words} from {origin.sender}: no part arrived")
        first = split[0][0]
        for header, _ in split:
            _check_origin(header, cls.kind, origin)
            if (header.parts, header.total_rows, header.note) != (first.parts, first.total_rows, first.note):
                raise CryptoError(f"{header.title}: parts of different objects were mixed")
        _check_complete(first, [header.part for header, _ in split])
        if sum(header.rows for header, _ in split) != first.total_rows:
            raise CryptoError(f"{first.title}: its parts do not add up to {first.total_rows} rows")
        try:
            note = msgspec.msgpack.decode(first.note, type=cls.note_type)
        except (msgspec.DecodeError, ValueError) as error:
            raise CryptoError(f"{first.title}: its note cannot be read: {error}") from error
        stacks = _unpack(origin.context.params, cls.layout(origin.context.params), split)
        return cls.from_body(origin, note, stacks)

    @classmethod
    def from_bytes(cls, data: bytes, origin: Origin) -> Self:
        """Rebuild from one whole frame."""
        return cls.from_parts([data], origin)


def _check_complete(first: Header, numbers: list[int]) -> None:
    """Every part once. What a header claims is never counted up to: it could claim 2^60 parts."""
    held = set(numbers)
    if len(held) != len(numbers):
        raise CryptoError(f"{first.title}: a part came twice")
    if len(held) != first.parts:
        missing = [number for number in range(min(first.parts, len(held) + 8)) if number not in held]
        raise CryptoError(f"{first.title}: parts {missing} of {first.parts} are missing")


def _frame(header: Header, payload: bytes) -> bytes:
    encoded = msgspec.msgpack.encode(header)
    if len(encoded) > 0xFFFF:
        raise CryptoError(f"{header.title}: a header of {len(encoded)} bytes is too long")
    prefix = MAGIC + bytes([VERSION]) + len(encoded).to_bytes(2, "little") + encoded
    digest = hashlib.sha256(prefix)
    digest.update(payload)
    return b"".join((prefix, payload, digest.digest()[:_DIGEST]))


def _pack(params: ParameterSet, rows: range, stacks: tuple[Residues, ...]) -> bytes:
    from ofl_iot.crypto import kernels

    layout = [len(stack) for stack in stacks]
    widths = _limb_bits(params, layout)
    out = np.empty(len(rows) * row_bytes(params, layout) // 8, dtype="<u8")
    at = 0
    for row in rows:
        limbs = (limb[row] for stack in stacks for limb in stack)
        for limb, bits in zip(limbs, widths, strict=True):
            size = params.degree // 64 * bits
            kernels.pack_bits(limb, bits, out[at : at + size])
            at += size
    return out.tobytes()


def _unpack(
    params: ParameterSet, layout: tuple[int, ...], split: list[tuple[Header, memoryview]]
) -> tuple[Residues, ...]:
    from ofl_iot.crypto import kernels

    size = row_bytes(params, layout)
    for header, payload in split:
        if len(payload) != header.rows * size or (header.rows and not layout):
            raise CryptoError(
                f"{header.title}: part {header.part} holds {len(payload)} bytes, {header.rows} rows need "
                f"{header.rows * size}"
            )
    total = split[0][0].total_rows
    stacks = tuple(np.empty((limbs, total, params.degree), dtype=np.uint32) for limbs in layout)
    chain = params.primes
    row = 0
    for header, payload in split:
        words = np.frombuffer(bytes(payload), dtype="<u8")  # a copy, because the payload may start anywhere
        at = 0
        for _ in range(header.rows):
            for stack in stacks:
                for limb, p in zip(stack, chain, strict=False):
                    width = params.degree // 64 * p.bit_length()
                    if kernels.unpack_bits(words[at : at + width], p.bit_length(), limb[row]) >= p:
                        raise CryptoError(f"{header.title}: a coefficient of row {row} is not below its prime")
                    at += width
            row += 1
    return stacks


def check_rows(title: str, stack: Residues, expected: int) -> None:
    """Refuse an object with another number of rows than its note says."""
    if stack.shape[1] != expected:
        raise CryptoError(f"{title}: {stack.shape[1]} rows, expected {expected}")


def as_ids(names: Sequence[str]) -> tuple[DeviceId, ...]:
    """Names from a decoded note; membership is checked against the key's context."""
    return tuple(DeviceId(name) for name in names)
