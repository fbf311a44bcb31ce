"""The device's outbox: what left the device stays here until the global model holds it.

A chunk's life:  queued ──release──▶ under way ──stored receipt──▶ stored ──settled receipt──▶ gone

- *queued* chunks have no sequence number and are not yet subtracted from the device's unreleased work; a newer
  selection replaces them, so nothing is sent twice and nothing is lost.
- *under way*: durable, the budget spent; sent again, the same bytes, until a leader confirms.
- *stored*: a leader holds it. If that leader is replaced, the chunk goes to the next one.
- *settled*: part of a global model. Only now is it deleted.

What is sent again leaves by its use, the largest change first. Resend time and window follow the receipts
(`send_pace.py`). The outbox is bounded in bytes; when it is full nothing more is released and the work waits in the
local model.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec
import numpy as np

from ofl_iot.errors import DecodeError, RefusedError
from ofl_iot.protocol.chunks import Chunk, Piece
from ofl_iot.protocol.codec import decode, encode
from ofl_iot.protocol.lives import Account
from ofl_iot.protocol.seqset import MAX_STEP, SeqSet
from ofl_iot.protocol.topics import Kind
from ofl_iot.roles.backoff import resend_after_s
from ofl_iot.roles.device.send_pace import SendPace
from ofl_iot.roles.storage import Delete, Key, Put, StoreOp

TABLE = "device.outbox"
MAX_SEQ = 2**53
"""No chunk has a number beyond: what is left above it keeps every number that others derive readable."""


@dataclass
class OutboxEntry:
    """A released chunk that is not settled."""

    payload: bytes
    use: float = 0.0
    """Sum of the squared values, by which resends are ranked."""
    sent_at: float | None = None
    """None: must be sent (again)."""
    stored: bool = False
    tries: int = 0

    def waited(self, now: float | None) -> float | None:
        """Seconds since it was sent; None if it was not, or more than once."""
        return None if now is None or self.sent_at is None or self.tries != 1 else now - self.sent_at

    def due_at(self, resend_s: float) -> float:
        """When to send it (again)."""
        return 0.0 if self.sent_at is None else self.sent_at + resend_after_s(resend_s, self.tries)


class Outbox:
    """Released chunks by sequence number, and the queue of those to come."""

    def __init__(self, *, max_bytes: int, window: int, resend_s: float) -> None:
        self._entries: dict[int, OutboxEntry] = {}
        self._queue: deque[Piece] = deque()
        self.max_bytes = max_bytes
        self._pace = SendPace(window=window, resend_s=resend_s)
        self._credits = window
        self._bytes = 0
        self.next_seq = 1
        self._used = 0
        """The highest number that this device gave a chunk, as far as it knows."""

    def restore(self, rows: Mapping[Key, bytes], next_seq: int) -> dict[Key, bytes]:
        """Take up what an earlier process left, to be sent again; returns the rows that no leader could read."""
        chunks = {seq: _read(seq, payload) for seq, payload in rows.items()}
        unreadable = {seq: rows[seq] for seq, chunk in chunks.items() if chunk is None}
        self._entries = {int(seq): OutboxEntry(rows[seq], _use(chunk)) for seq, chunk in chunks.items() if chunk}
        self._bytes = sum(len(entry.payload) for entry in self._entries.values())
        self.next_seq = max([min(next_seq, MAX_SEQ), *(seq + 1 for seq in self._entries)])
        self._used = self.next_seq - 1
        return unreadable

    def chunks_from(self, seq: int) -> Iterable[Chunk]:
        """The stored chunks numbered `seq` or higher, in order of release."""
        for number in sorted(self._entries):
            if number >= seq:
                chunk = decode(Kind.UPDATE, self._entries[number].payload)
                assert isinstance(chunk, Chunk)  # noqa: S101  # what the outbox stored is a chunk
                yield chunk

    def skip_to(self, highest: int) -> bool:
        """Never use a number that others hold already; whether this changed anything."""
        if highest >= MAX_SEQ:
            raise RefusedError(f"chunk number {highest} is beyond all that can be used")
        behind = self.next_seq <= highest
        self.next_seq = max(self.next_seq, highest + 1)
        return behind

    def check_told(self, highest: int, settled: int) -> None:
        """Raise RefusedError if a leader tells of numbers far above those used here or settled.

        A device with an older copy of its store numbers on from there; one that is lied to would run out of numbers.
        """
        limit = max(self._used, settled) + MAX_STEP
        if highest > limit:
            raise RefusedError(f"the leader tells of chunk {highest}, this device gave numbers up to {self._used}")

    def queue(self, pieces: Iterable[Piece]) -> None:
        """Replace what was queued: the new selection was made from the same unreleased work and more."""
        self._queue = deque(pieces)

    @property
    def queued(self) -> int:
        """Chunks that wait for their release."""
        return len(self._queue)

    @property
    def full(self) -> bool:
        """Whether the bound on unsettled bytes stops releases."""
        return self._bytes >= self.max_bytes

    @property
    def held_bytes(self) -> int:
        """Bytes of what is kept until it is settled."""
        return self._bytes

    @property
    def unsettled(self) -> Mapping[int, OutboxEntry]:
        """Released chunks that no global model holds yet."""
        return self._entries

    @property
    def next_count(self) -> int:
        """How many parameters the next queued chunk holds."""
        return self._queue[0].chunk.count if self._queue else 0

    @property
    def window(self) -> int:
        """Chunks that may be under way at present."""
        return self._pace.window

    def may_release(self) -> bool:
        """Whether a queued chunk may leave now."""
        return bool(self._queue) and not self.full and self._under_way() < min(self.window, self._credits)

    def release(self, now: float, store: bytes = b"", account: Account | None = None) -> tuple[Chunk, bytes, StoreOp]:
        """Number the next queued chunk and keep it; the store operation must be durable before it is sent."""
        known = account or Account()
        chunk = msgspec.structs.replace(self._queue.popleft().chunk, seq=self.next_seq, store=store, account=known)
        payload = encode(chunk)
        self._entries[chunk.seq] = OutboxEntry(payload, _use(chunk), sent_at=now, tries=1)
        self._bytes += len(payload)
        self._used = self.next_seq
        self.next_seq += 1
        return chunk, payload, Put(TABLE, chunk.seq, payload)

    def due(self, now: float) -> list[bytes]:
        """Chunks to send again, the largest change first, at most a window of them; they count as sent now."""
        waiting = [entry for entry in self._entries.values() if self._is_due(entry, now)]
        if any(entry.sent_at is not None for entry in waiting):
            self._pace.overdue(now)
        waiting.sort(key=lambda entry: -entry.use)
        room = max(0, self.window - sum(1 for entry in self._entries.values() if self._is_fresh(entry, now)))
        for entry in waiting[:room]:
            entry.sent_at = now
            entry.tries += 1
        return [entry.payload for entry in waiting[:room]]

    def next_due(self) -> float | None:
        """When the next resend may be needed; None when a leader has confirmed everything."""
        times = [entry.due_at(self._pace.resend_s) for entry in self._entries.values() if not entry.stored]
        return min(times, default=None)

    def readdress(self) -> None:
        """The leader changed: whatever is not settled goes to the new one, as the same bytes."""
        for entry in self._entries.values():
            entry.sent_at = None
            entry.stored = False
            entry.tries = 0

    def confirm(self, stored: Iterable[int], settled: SeqSet, credit: int, now: float | None = None) -> list[StoreOp]:
        """Take a receipt; the operations delete what is settled."""
        self._credits = credit
        for seq in stored:
            if (entry := self._entries.get(seq)) is not None and not entry.stored:
                entry.stored = True
                self._pace.confirmed(entry.waited(now))
        gone = [seq for seq in self._entries if seq in settled]
        for seq in gone:
            self._bytes -= len(self._entries.pop(seq).payload)
        return [Delete(TABLE, seq) for seq in gone]

    def _under_way(self) -> int:
        return sum(1 for entry in self._entries.values() if not entry.stored)

    def _is_due(self, entry: OutboxEntry, now: float) -> bool:
        return not entry.stored and entry.due_at(self._pace.resend_s) <= now

    def _is_fresh(self, entry: OutboxEntry, now: float) -> bool:
        return not entry.stored and entry.sent_at is not None and entry.due_at(self._pace.resend_s) > now


def _read(seq: Key, payload: bytes) -> Chunk | None:
    """Return a stored chunk; None for what no leader could read."""
    try:
        chunk = decode(Kind.UPDATE, payload)
    except DecodeError:
        return None
    return chunk if isinstance(chunk, Chunk) and chunk.seq == seq and chunk.seq < MAX_SEQ else None


def _use(chunk: Chunk) -> float:
    values = chunk.read_values().astype(np.float64)
    return float(values @ values)
