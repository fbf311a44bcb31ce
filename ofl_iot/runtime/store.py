"""The durable store behind a role: whole batches of operations, kept in one sqlite file.

Two stores obey the same laws: `SqliteStore` for programs, `MemoryStore` for the virtual runtime. After a
crash at any point a store holds the result of a prefix of the batches, each of them whole, and at least those
whose `apply` returned.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import tempfile
import threading
import zlib
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from ofl_iot.errors import ConfigError, StoreError
from ofl_iot.roles.storage import Delete, Key, Put, Stored, StoreOp, in_key_order

if TYPE_CHECKING:
    from typing_extensions import Self

SCHEMA_VERSION = 1
APPLICATION_ID = 0x4F464C31
"""Marks the file as ours in sqlite's header: "OFL1"."""

# `key` has no type, so that sqlite keeps numbers and texts as they are and sorts as `in_key_order` does.
_SCHEMA = (
    "CREATE TABLE item (tbl TEXT NOT NULL, key NOT NULL, value BLOB NOT NULL, crc INTEGER NOT NULL, "
    "PRIMARY KEY (tbl, key)) WITHOUT ROWID"
)
_LOCK_WAIT_S = 0.5
_LOG_PAGES = 64
"""Pages in the log at which it is folded into the file: 256 KiB, so that a small disk is not filled by the log."""
MAX_LOG_BYTES = 512 * 1024
"""Size to which a log is cut that one large transaction made longer."""


class Store(Protocol):
    """Where a role's state survives the process."""

    def apply(self, ops: Sequence[StoreOp]) -> None:
        """Carry out all operations, in order, as one durable transaction; StoreError leaves all as it was."""
        ...

    def load(self) -> Stored:
        """Return a snapshot of everything stored."""
        ...

    def ping(self) -> None:
        """Return when the store answers; cheap."""
        ...

    def close(self) -> None:
        """Release the store; closing twice is harmless."""
        ...


_BEYOND = "\U0010ffff"
"""Follows every name: no table begins with it."""


class SqliteStore:
    """A store in one sqlite file (write-ahead log, every transaction synced to disk before `apply` returns).

    The file is readable by its owner alone and belongs to one process at a time. Any thread may call `apply`,
    `load` and `close`; a lock lets one in at a time. Batches must be applied in the order they were decided,
    so use an executor of one thread, or await each batch. A full disk raises StoreError and changes nothing;
    so does `max_bytes`, the size the file may grow to.
    """

    def __init__(self, path: Path, *, max_bytes: int | None = None) -> None:
        """Open the store, or create it; a damaged file is refused and left in place."""
        self.path = Path(path).absolute()
        self._lock = threading.Lock()
        _create_private(self.path)
        try:
            connection = sqlite3.connect(self.path, timeout=_LOCK_WAIT_S, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise _open_error(self.path, error) from error
        try:
            _prepare(connection, self.path, max_bytes)
        except sqlite3.Error as error:
            connection.close()
            raise _open_error(self.path, error) from error
        except BaseException:
            connection.close()
            raise
        self._connection: sqlite3.Connection | None = connection

    def apply(self, ops: Sequence[StoreOp]) -> None:
        """Carry out all operations as one transaction, on disk when this returns."""
        if not ops:
            return
        with self._lock:
            connection = self._open_connection()
            try:
                connection.execute("BEGIN IMMEDIATE")
                for op in ops:
                    _execute(connection, op)
                connection.execute("COMMIT")
                if any(type(op) is Delete and op.wipe for op in ops):
                    _fold_log(connection)
            except sqlite3.Error as error:
                raise StoreError(
                    f"cannot write to the store {self.path} ({error}): it keeps its last state; free "
                    "disk space or repair the disk"
                ) from error
            finally:
                # After an error that did not already undo the transaction, as a full disk may.
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    def load(self, prefix: str = "") -> Stored:
        """Return what is stored in tables whose names begin with `prefix`; StoreError if a value was changed."""
        with self._lock:
            connection = self._open_connection()
            stored: dict[str, dict[Key, bytes]] = {}
            try:
                for table, key, value, crc in connection.execute(
                    "SELECT tbl, key, value, crc FROM item WHERE tbl >= ? AND tbl < ? ORDER BY tbl, key",
                    (prefix, prefix + _BEYOND),
                ):
                    if crc != _checksum(table, key, value):
                        raise _damaged(self.path, f"wrong checksum of key {key!r} in table {table!r}")
                    stored.setdefault(table, {})[key] = value
            except (sqlite3.Error, UnicodeError) as error:
                raise _damaged(self.path, str(error)) from error
            return stored

    def copy(self) -> bytes:
        """Return the bytes of a store that holds the same, as of now: a backup, while this one goes on."""
        with self._lock, tempfile.TemporaryDirectory(dir=self.path.parent, prefix=".backup-") as folder:
            target = Path(folder, "copy")
            try:
                with contextlib.closing(sqlite3.connect(target)) as copy:
                    self._open_connection().backup(copy)
                    copy.execute("PRAGMA journal_mode = DELETE")
                return target.read_bytes()
            except (sqlite3.Error, OSError) as error:
                raise StoreError(f"cannot copy the store {self.path} ({error}): free disk space there") from error

    def ping(self) -> None:
        """Read one row's key."""
        with self._lock:
            try:
                self._open_connection().execute("SELECT key FROM item LIMIT 1").fetchone()
            except sqlite3.Error as error:
                raise _damaged(self.path, str(error)) from error

    def close(self) -> None:
        """Fold the log into the file and let other processes open it."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open_connection(self) -> sqlite3.Connection:
        if self._connection is None:
            raise StoreError(f"the store {self.path} is closed")
        return self._connection


def read_store(path: Path) -> Stored:
    """Return what the store of a party that does not run holds: read from a copy, so that nothing is locked."""
    if not path.is_file():
        raise ConfigError(f"there is no store {path}: name the state folder, and the party with --id")
    with tempfile.TemporaryDirectory() as folder:
        for suffix in ("", "-wal"):
            source = path.with_name(path.name + suffix)
            if source.exists():
                shutil.copyfile(source, Path(folder, source.name))
        with SqliteStore(Path(folder, path.name)) as copy:
            return copy.load()


class MemoryStore:
    """A store for the virtual runtime; it outlives the crash of the role that writes to it.

    While `full` is set, `apply` fails as on a full disk.
    """

    def __init__(self) -> None:
        self.full = False
        self.commits = 0
        self.bytes_written = 0
        """Return the bytes of all values: what a store on disk would have to write at least."""
        self._tables: dict[str, dict[Key, bytes]] = {}

    def apply(self, ops: Sequence[StoreOp]) -> None:
        """Carry out all operations; they were checked when they were made, so none can fail halfway."""
        if self.full and ops:
            raise StoreError("cannot write to the store in memory (it is set to be full): it keeps its last state")
        tables = self._tables
        self.commits += bool(ops)
        for op in ops:
            if type(op) is Put:
                self.bytes_written += len(op.value)
                tables.setdefault(op.table, {})[op.key] = op.value
            elif type(op) is Delete:
                tables.get(op.table, {}).pop(op.key, None)
            else:
                tables.pop(op.table, None)

    def load(self) -> Stored:
        """Return a snapshot of everything stored."""
        return {
            name: {key: table[key] for key in in_key_order(table)}
            for name, table in sorted(self._tables.items())
            if table
        }

    def ping(self) -> None:
        """Memory always answers."""

    def close(self) -> None:
        """Do nothing: what is in memory stays for the restart."""


def _create_private(path: Path) -> None:
    """Create an empty file that only its owner can read; an existing one is left alone."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            directory = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        finally:
            os.close(descriptor)
    except FileExistsError:
        # Not even opened: closing a second descriptor would drop the locks this process holds on the file.
        return
    except OSError as error:
        raise ConfigError(
            f"cannot create the store {path} ({error.strerror}): its directory must exist and be writable"
        ) from error


def _prepare(connection: sqlite3.Connection, path: Path, max_bytes: int | None) -> None:
    """Take the exclusive lock, then check the file before anything in it is changed."""
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    is_new = _is_new(connection, path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES}")
    connection.execute(f"PRAGMA journal_size_limit = {MAX_LOG_BYTES}")
    connection.execute("PRAGMA secure_delete = ON")  # overwrite what is deleted; some builds of sqlite do not
    connection.execute("BEGIN EXCLUSIVE")
    if is_new:
        connection.execute(_SCHEMA)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    connection.execute("COMMIT")
    if connection.execute("SELECT sql FROM sqlite_master").fetchall() != [(_SCHEMA,)]:
        raise _damaged(path, "its table definition was changed")
    verdict = str(connection.execute("PRAGMA integrity_check(1)").fetchone()[0])
    if verdict != "ok":
        raise _damaged(path, verdict)
    if max_bytes is not None:
        page_bytes = int(connection.execute("PRAGMA page_size").fetchone()[0])
        connection.execute(f"PRAGMA max_page_count = {max(1, max_bytes // page_bytes)}")


def _is_new(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether the file is empty; refuse it if it is not ours or was written by a newer version."""
    application_id = int(connection.execute("PRAGMA application_id").fetchone()[0])
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    objects = int(connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])
    if application_id == 0 and version == 0 and objects == 0:
        return True
    if application_id != APPLICATION_ID:
        raise ConfigError(f"{path} is a database of another program: name another file for the store")
    if version > SCHEMA_VERSION:
        raise ConfigError(
            f"the store {path} has schema version {version}, this program knows up to {SCHEMA_VERSION}: "
            "upgrade ofl-iot, or name another file for the store"
        )
    return False


def _fold_log(connection: sqlite3.Connection) -> None:
    """Carry the log into the file and cut it: it holds copies of what was deleted."""
    with contextlib.suppress(sqlite3.Error):  # the transaction is durable; a later fold does it as well
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _execute(connection: sqlite3.Connection, op: StoreOp) -> None:
    if type(op) is Put:
        crc = _checksum(op.table, op.key, op.value)
        connection.execute("INSERT OR REPLACE INTO item VALUES (?, ?, ?, ?)", (op.table, op.key, op.value, crc))
    elif type(op) is Delete:
        connection.execute("DELETE FROM item WHERE tbl = ? AND key = ?", (op.table, op.key))
    else:
        connection.execute("DELETE FROM item WHERE tbl = ?", (op.table,))


def _checksum(table: str, key: Key, value: bytes) -> int:
    """CRC-32 of a row: sqlite's own check covers its pages' structure, not their content."""
    return zlib.crc32(value, zlib.crc32(f"{table}\0{key!r}".encode()))


def _open_error(path: Path, error: sqlite3.Error) -> ConfigError | StoreError:
    if "locked" in str(error):
        return ConfigError(f"another process uses the store {path}: stop it, or name another file for this one")
    if isinstance(error, sqlite3.OperationalError):
        return StoreError(
            f"cannot open the store {path} ({error}): the disk needs free space, and the file and its "
            "directory must be writable"
        )
    return _damaged(path, str(error))


def _damaged(path: Path, detail: str) -> StoreError:
    return StoreError(
        f"the store {path} is damaged ({detail}): it was left in place; restore it from a backup, or move it "
        "and its -wal file away to start with an empty store. A device then trains no more until it is started with "
        "--accept-new-budget: its privacy ledger is in that file"
    )
