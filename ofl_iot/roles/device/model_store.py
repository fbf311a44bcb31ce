"""How a device's model survives a restart: written in segments, each only when it must be.

    local = base + unreleased work

Unreleased work (`residual_code`) is what nobody else has: a segment of it is written whenever it changed. `base` is the
leader's model as the device knows it. An older one does as well, for the next pulls bring it up to date and `local`
with it, so it is written now and then, and at the end. Both together take some 1.3 bytes a parameter and training.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt

from ofl_iot.errors import RefusedError
from ofl_iot.roles.device.local_model import LocalModel
from ofl_iot.roles.device.residual_code import decode_residual, encode_residual
from ofl_iot.roles.events import Vector
from ofl_iot.roles.storage import Delete, Put, Stored, StoreOp

TABLE = "device.model"
SEGMENT = 1 << 17
"""Parameters in a segment."""
BASE_EVERY = 16
"""Snapshots until `base` is written again."""
_HEAD = "head"
_OLD = ("device.state", "model")
"""Where 0.1.0 stored all of it in one row."""


class _Head(msgspec.Struct, frozen=True, array_like=True):
    """What is written at every snapshot."""

    model: bytes
    """Which model it is: one of another architecture may have the same size."""
    size: Annotated[int, msgspec.Meta(ge=1)]
    segment: Annotated[int, msgspec.Meta(ge=1)]
    held: bytes
    round_no: int
    next_seq: int
    """Chunks numbered below are no longer part of the unreleased work."""


class ModelSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """A local model as 0.1.0 stored it."""

    local: bytes
    base: bytes
    held: bytes
    round_no: int
    next_seq: int
    model: bytes


class ModelStore:
    """What is stored of a device's model."""

    def __init__(self, model: LocalModel, segment: int = SEGMENT) -> None:
        self._model = model
        self._segment = segment
        self._count = -(-model.layout.size // segment)
        self._work_digests: list[bytes] = [b""] * self._count
        self._base_written: list[tuple[bytes, int]] = [(b"", -1)] * self._count
        """Digest of each segment of `base` as it is stored, and how many of its blocks were held then."""
        self._snapshots = 0
        self._old_row = False
        self.next_seq = 0
        """Next number at the last snapshot: what chunks numbered below released is stored."""

    def snapshot(self, next_seq: int, *, whole: bool = False) -> list[StoreOp]:
        """Store what changed, `whole`: of `base` as well; chunks numbered below `next_seq` are released."""
        model = self._model
        self.next_seq = next_seq
        head = _Head(model.digest, model.layout.size, self._segment, model.held.tobytes(), model.round_no, next_seq)
        ops: list[StoreOp] = [Put(TABLE, _HEAD, msgspec.msgpack.encode(head))]
        for number in range(self._count):
            ops += self._work(number)
            ops += self._base(number, due=whole or self._snapshots % BASE_EVERY == 0)
        if self._old_row:
            ops.append(Delete(*_OLD))
            self._old_row = False
        self._snapshots += 1
        return ops

    def restore(self, stored: Stored) -> int | None:
        """Take up what is stored; returns its `next_seq`, None if there is nothing. Another model is refused."""
        found = read_stored(stored)
        if found is None:
            return None
        model = self._model
        if len(found.local) != model.layout.size or len(found.held) != model.layout.count:
            raise RefusedError("the stored model has another shape")
        if found.model != model.digest:
            raise RefusedError("the stored model is another one")
        model.local[:], model.base[:], model.held = found.local, found.base, found.held
        # The leader's model is remembered only together with what was released since.
        model.synced[:] = model.synced_before[:] = found.base
        model.round_no = found.round_no
        self._old_row = _HEAD not in stored.get(TABLE, {})
        self.next_seq = found.next_seq
        return found.next_seq

    def _work(self, number: int) -> Iterator[StoreOp]:
        place = self._place(number)
        coded = encode_residual(self._model.local[place] - self._model.base[place])
        digest = _digest(coded)
        if digest != self._work_digests[number]:
            self._work_digests[number] = digest
            yield Put(TABLE, _work_key(number), coded)

    def _base(self, number: int, *, due: bool) -> Iterator[StoreOp]:
        held = self._held_in(number)
        digest, held_then = self._base_written[number]
        if held == held_then and not due:
            return
        values = self._model.base[self._place(number)].astype("<f4").tobytes()
        if (_digest(values), held) != (digest, held_then):
            self._base_written[number] = (_digest(values), held)
            yield Put(TABLE, _base_key(number), values)

    def _held_in(self, number: int) -> int:
        """How many blocks that reach into a segment were seen: with a new one its values are no longer nothing."""
        place, block_size = self._place(number), self._model.layout.block_size
        return int(self._model.held[place.start // block_size : -(-place.stop // block_size)].sum())

    def _place(self, number: int) -> slice:
        start = number * self._segment
        return slice(start, min(start + self._segment, self._model.layout.size))


@dataclass(frozen=True)
class StoredModel:
    """A device's model as its store holds it."""

    model: bytes
    """Digest of its name and shapes."""
    local: Vector
    base: Vector
    held: npt.NDArray[np.bool_]
    round_no: int
    next_seq: int


def read_stored(stored: Stored) -> StoredModel | None:
    """The stored model, None if there is none; RefusedError if it is not whole."""
    rows, old = stored.get(TABLE, {}), stored.get(_OLD[0], {}).get(_OLD[1])
    if _HEAD not in rows:
        return None if old is None else _read_old(old)
    head = msgspec.msgpack.decode(rows[_HEAD], type=_Head)
    numbers = range(-(-head.size // head.segment))
    base = np.frombuffer(b"".join(rows.get(_base_key(number), b"") for number in numbers), "<f4").astype(np.float32)
    unreleased = np.concatenate([decode_residual(rows.get(_work_key(number), b"")) for number in numbers])
    if len(base) != head.size or len(unreleased) != head.size:
        raise RefusedError("the stored model is not whole")
    held = np.frombuffer(head.held, bool).copy()
    return StoredModel(head.model, base + unreleased, base, held, head.round_no, head.next_seq)


def _read_old(row: bytes) -> StoredModel:
    old = msgspec.msgpack.decode(row, type=ModelSnapshot)
    local, base = (np.frombuffer(vector, "<f4").astype(np.float32) for vector in (old.local, old.base))
    return StoredModel(old.model, local, base, np.frombuffer(old.held, bool).copy(), old.round_no, old.next_seq)


def _work_key(number: int) -> str:
    return f"unreleased {number}"


def _base_key(number: int) -> str:
    return f"base {number}"


def _digest(coded: bytes) -> bytes:
    return hashlib.blake2b(coded, digest_size=16).digest()
