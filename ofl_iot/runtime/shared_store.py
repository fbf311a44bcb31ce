"""One store for many parties of a process: what several of them write at the same time is synced to disk once.

    party A: apply ─┐
    party B: apply ─┼─▶ one transaction ─▶ one sync ─▶ all of them return
    party C: apply ─┘

Each party has its tables to itself. `apply` returns when its own operations are durable, as with a store of one's own.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from ofl_iot.errors import StoreError
from ofl_iot.roles.storage import Stored, StoreOp
from ofl_iot.runtime.store import SqliteStore

_SEPARATOR = "/"


@dataclass
class _Batch:
    """What one party waits for."""

    ops: Sequence[StoreOp]
    done: bool = False
    error: StoreError | None = None


class SharedStore:
    """A store in one sqlite file, of which each party has a share. Use as many threads as parties may wait together."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self._waiting: list[_Batch] = []
        self._queue_lock = threading.Lock()
        self._commit_lock = threading.Lock()
        self.commits = 0
        """Transactions that were synced to disk."""

    def of(self, party: str) -> PartyStore:
        """The store of one party."""
        return PartyStore(self, party)

    def apply(self, ops: Sequence[StoreOp]) -> None:
        """Carry out all operations, with those of whoever else waits, as one transaction."""
        batch = _Batch(ops)
        with self._queue_lock:
            self._waiting.append(batch)
        with self._commit_lock:
            if not batch.done:  # else the one who was here before took it along
                self._commit()
        if batch.error is not None:
            raise batch.error

    def _commit(self) -> None:
        with self._queue_lock:
            group, self._waiting = self._waiting, []
        try:
            self._store.apply([op for batch in group for op in batch.ops])
            self.commits += 1
        except StoreError as error:
            for batch in group:
                batch.error = error
        finally:
            for batch in group:
                batch.done = True

    def load(self, prefix: str) -> Stored:
        """Return the tables whose names begin with `prefix`."""
        return self._store.load(prefix)

    def ping(self) -> None:
        """Return when the store answers."""
        self._store.ping()

    def close(self) -> None:
        """Release the file."""
        self._store.close()


class PartyStore:
    """One party's tables in a shared store."""

    def __init__(self, shared: SharedStore, party: str) -> None:
        self._shared = shared
        self._prefix = party + _SEPARATOR

    def apply(self, ops: Sequence[StoreOp]) -> None:
        """Carry out all operations as one transaction, on disk when this returns."""
        if ops:
            self._shared.apply([msgspec.structs.replace(op, table=self._prefix + op.table) for op in ops])

    def load(self) -> Stored:
        """Return everything that the party stored."""
        stored = self._shared.load(self._prefix)
        return {table.removeprefix(self._prefix): rows for table, rows in stored.items()}

    def ping(self) -> None:
        """Return when the store answers."""
        self._shared.ping()

    def close(self) -> None:
        """Do nothing: others go on using the file."""
