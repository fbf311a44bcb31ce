"""The leader's journal: every chunk is stored before it is confirmed, so that a restart merges it again.

chunk ─▶ row ─▶ … ─▶ snapshot of the whole cluster model, which empties the journal
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ofl_iot.errors import DecodeError
from ofl_iot.protocol.chunks import Chunk
from ofl_iot.protocol.codec import decode, encode
from ofl_iot.protocol.topics import Kind
from ofl_iot.roles.leader.cluster_model import ClusterModel
from ofl_iot.roles.leader.member_lives import MemberLives
from ofl_iot.roles.leader.merging import Merging
from ofl_iot.roles.storage import DeleteTable, Key, Put, StoreOp

TABLE = "leader.journal"


class JournalRow(msgspec.Struct, frozen=True, array_like=True):
    """A merged chunk and the step it was merged with, so that a replay gives the same model."""

    device: str
    step: float
    chunk: bytes


class Journal:
    """The chunks merged since the last snapshot."""

    def __init__(self) -> None:
        self.length = 0
        self._next_row = 0
        self.unreadable: dict[Key, bytes] = {}
        """Rows that the last replay left out."""

    def replay(
        self, rows: Mapping[Key, bytes], cluster: ClusterModel, merging: Merging, lives: MemberLives
    ) -> set[str]:
        """Merge again what was merged since the snapshot; returns the devices it is from.

        A row that cannot be read is left out: its device holds the chunk until it is settled.
        """
        devices: set[str] = set()
        for row_no, stored_row in rows.items():
            self._next_row = int(row_no) + 1
            try:
                row = msgspec.msgpack.decode(stored_row, type=JournalRow)
                chunk = decode(Kind.UPDATE, row.chunk)
                assert isinstance(chunk, Chunk)  # noqa: S101  # what decodes as an update is a chunk
                cluster.merge(row.device, chunk, row.step, merging.effort(chunk))
            except (DecodeError, msgspec.DecodeError, ValueError):
                self.unreadable[row_no] = stored_row
            else:
                lives.heard(row.device, chunk)
                devices.add(row.device)
        self.length = len(rows) - len(self.unreadable)
        return devices

    def enter(self, device: str, chunk: Chunk, step: float) -> StoreOp:
        """A chunk is merged with this step."""
        row = JournalRow(device, step, encode(chunk))
        op = Put(TABLE, self._next_row, msgspec.msgpack.encode(row))
        self._next_row += 1
        self.length += 1
        return op

    def empty(self) -> StoreOp:
        """A snapshot takes the journal's place."""
        self.length = 0
        return DeleteTable(TABLE)
