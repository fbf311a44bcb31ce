"""An observer's history in one sqlite file: bounded, and enough for a restarted observer to show the same.

What is shown to an operator is kept here and nothing else: no message, no certificate, no address.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from ofl_iot.errors import ConfigError, StoreError
from ofl_iot.fleet_view.observer import MAX_EVENTS, MAX_ROUNDS
from ofl_iot.fleet_view.records import BIN_S, DAY_BINS, Bin, Changes, Memory, Past
from ofl_iot.fleet_view.view import Alert, EventView, RoundView

SCHEMA_VERSION = 1
APPLICATION_ID = 0x4F464C48
"""Marks the file as ours in sqlite's header: "OFLH"."""
KEPT_EVENTS = 100_000
KEPT_ROUNDS = 20_000
KEPT_S = 30 * 86_400.0
"""Bins and alerts that are over are kept this long."""
_SWEEP_EVERY = 600
"""Writings between two sweeps of what is too old."""
_SCHEMA = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE round (round_no INTEGER PRIMARY KEY, value BLOB NOT NULL);
CREATE TABLE event (number INTEGER PRIMARY KEY AUTOINCREMENT, value BLOB NOT NULL);
CREATE TABLE bin (device TEXT NOT NULL, start_s INTEGER NOT NULL, value BLOB NOT NULL, PRIMARY KEY (device, start_s))
    WITHOUT ROWID;
CREATE TABLE alert (number INTEGER PRIMARY KEY AUTOINCREMENT, until_s REAL NOT NULL, value BLOB NOT NULL);
"""
T = TypeVar("T")


@dataclass(frozen=True)
class Batch:
    """What is to be written, in bytes already: the observer goes on meanwhile."""

    rows: dict[str, list[tuple[object, ...]]]
    """Rows by statement."""
    now: float

    @classmethod
    def of(cls, changes: Changes, memory: Memory, alerts: Iterable[Alert], now: float) -> Batch:
        """Return the rows of what is new."""
        encode = msgspec.json.encode
        meta: list[tuple[object, ...]] = []
        if changes.memory:
            meta = [("memory", encode(memory)), ("alerts", encode(list(alerts)))]
        return cls(
            {
                "REPLACE INTO round VALUES (?, ?)": [(each.round_no, encode(each)) for each in changes.rounds],
                "INSERT INTO event (value) VALUES (?)": [(encode(each),) for each in changes.events],
                "REPLACE INTO bin VALUES (?, ?, ?)": [(*key, encode(each)) for key, each in changes.bins.items()],
                "INSERT INTO alert (until_s, value) VALUES (?, ?)": [
                    (each.until_s or now, encode(each)) for each in changes.alerts
                ],
                "REPLACE INTO meta VALUES (?, ?)": meta,
                "INSERT OR IGNORE INTO meta VALUES (?, ?)": [("began_s", encode(now))],
            },
            now,
        )


class FleetHistory:
    """The history of one federation's observer. The file belongs to one process at a time."""

    def __init__(self, path: Path, federation: str) -> None:
        """Open it, or create it; that of another federation is refused."""
        self.path = path
        self._writings = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.touch(mode=0o600)
            self._connection = sqlite3.connect(path, timeout=0.5, isolation_level=None, check_same_thread=False)
            try:
                self._prepare(federation)
            except BaseException:
                self._connection.close()
                raise
        except (sqlite3.Error, OSError) as error:
            raise ConfigError(
                f"cannot use the history {path} ({error}): is another observer using it? Name another file"
            ) from error

    def load(self, now: float) -> Past:
        """Return what an observer goes on from."""
        day = now - (DAY_BINS + 1) * BIN_S
        bins: dict[str, list[Bin]] = {}
        try:
            for device, value in self._rows(
                "SELECT device, value FROM bin WHERE start_s >= ? ORDER BY device, start_s", (day,)
            ):
                bins.setdefault(device, []).append(msgspec.json.decode(value, type=Bin))
            memory, began, opened = (self._meta(name) for name in ("memory", "began_s", "alerts"))
            events = "SELECT value FROM event ORDER BY number DESC LIMIT ?"
            alerts = "SELECT value FROM alert ORDER BY number DESC LIMIT 100"
            rounds = self._values("SELECT value FROM round ORDER BY round_no DESC LIMIT ?", RoundView, MAX_ROUNDS)
            return Past(
                memory=msgspec.json.decode(memory, type=Memory) if memory else Memory(),
                rounds=rounds[::-1],
                events=self._values(events, EventView, MAX_EVENTS),
                bins=bins,
                open_alerts=msgspec.json.decode(opened, type=list[Alert]) if opened else [],
                resolved=self._values(alerts, Alert),
                began_s=msgspec.json.decode(began, type=float) if began else None,
            )
        except (sqlite3.Error, msgspec.DecodeError) as error:
            raise ConfigError(f"the history {self.path} is damaged ({error}): move it away and start again") from error

    def write(self, batch: Batch) -> None:
        """Keep what is new, as one transaction; StoreError leaves the file as it was."""
        run = self._connection.execute
        try:
            run("BEGIN IMMEDIATE")
            for statement, rows in batch.rows.items():
                self._connection.executemany(statement, rows)
            if self._writings % _SWEEP_EVERY == 0:
                self._sweep(batch.now)
            self._writings += 1
            run("COMMIT")
        except sqlite3.Error as error:
            if self._connection.in_transaction:
                run("ROLLBACK")
            raise StoreError(f"cannot write to the history {self.path} ({error}): free disk space") from error

    def close(self) -> None:
        """Release the file."""
        self._connection.close()

    def _prepare(self, federation: str) -> None:
        run = self._connection.execute
        run("PRAGMA locking_mode = EXCLUSIVE")
        run("PRAGMA journal_mode = WAL")
        run("PRAGMA synchronous = NORMAL")
        if run("PRAGMA application_id").fetchone()[0] == 0 and not run("SELECT 1 FROM sqlite_master").fetchone():
            self._connection.executescript(_SCHEMA)
            run(f"PRAGMA application_id = {APPLICATION_ID}")
            run(f"PRAGMA user_version = {SCHEMA_VERSION}")
            run("INSERT INTO meta VALUES ('federation', ?)", (federation.encode(),))
        if run("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
            raise ConfigError(f"{self.path} is no history of an observer: name another file")
        if (version := run("PRAGMA user_version").fetchone()[0]) != SCHEMA_VERSION:
            raise ConfigError(f"{self.path} was written by another version (schema {version}): name another file")
        if (held := self._meta("federation")) != federation.encode():
            raise ConfigError(
                f"{self.path} is the history of federation {(held or b'').decode()}, not of {federation}: "
                "name another file"
            )

    def _sweep(self, now: float) -> None:
        run = self._connection.execute
        run("DELETE FROM bin WHERE start_s < ?", (now - KEPT_S,))
        run("DELETE FROM alert WHERE until_s < ?", (now - KEPT_S,))
        run("DELETE FROM event WHERE number <= (SELECT max(number) FROM event) - ?", (KEPT_EVENTS,))
        run(
            "DELETE FROM round WHERE round_no <= (SELECT round_no FROM round ORDER BY round_no DESC LIMIT 1 OFFSET ?)",
            (KEPT_ROUNDS,),
        )

    def _meta(self, name: str) -> bytes | None:
        row = self._connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return bytes(row[0]) if row else None

    def _rows(self, query: str, given: tuple[object, ...] = ()) -> list[tuple[str, bytes]]:
        return self._connection.execute(query, given).fetchall()

    def _values(self, query: str, kind: type[T], *given: object) -> list[T]:
        return [msgspec.json.decode(value, type=kind) for (value,) in self._connection.execute(query, given)]
