"""The authority's books: tokens it gave out (hashed) and certificates it issued, in one sqlite file.

Several processes may work on it at once: the enrolment service and the operator's commands.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ofl_iot.errors import ConfigError, StoreError
from ofl_iot.ids import DeviceId

_SCHEMA = """
CREATE TABLE IF NOT EXISTS token (
    hash BLOB PRIMARY KEY, name TEXT, hosts TEXT NOT NULL, lifetime_s REAL NOT NULL, expires_at REAL NOT NULL,
    serial TEXT) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS certificate (
    serial TEXT PRIMARY KEY, name TEXT NOT NULL, hosts TEXT NOT NULL, lifetime_s REAL NOT NULL,
    not_after REAL NOT NULL, pem BLOB NOT NULL, revoked_at REAL, reason TEXT NOT NULL DEFAULT '') WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS certificate_name ON certificate (name);
CREATE INDEX IF NOT EXISTS certificate_revoked ON certificate (not_after) WHERE revoked_at IS NOT NULL;
CREATE TABLE IF NOT EXISTS crl (number INTEGER PRIMARY KEY);
"""
_LOCK_WAIT_S = 10.0


@dataclass(frozen=True)
class TokenRecord:
    """A token that was given out; of its secret only the hash is known."""

    hash: bytes
    name: DeviceId | None
    hosts: tuple[str, ...]
    lifetime_s: float
    """Lifetime of the certificate that it yields."""
    expires_at: float
    serial: int | None = None
    """The certificate it was used for."""


@dataclass(frozen=True)
class CertificateRecord:
    """A certificate that was issued."""

    serial: int
    name: DeviceId
    hosts: tuple[str, ...]
    lifetime_s: float
    not_after: float
    pem: bytes
    revoked_at: float | None = None
    reason: str = ""

    def valid(self, now: float) -> bool:
        """Whether its bearer gets in."""
        return self.revoked_at is None and now <= self.not_after


class Registry:
    """The books, open."""

    def __init__(self, path: Path) -> None:
        self._path = path
        if not path.is_file():
            raise ConfigError(f"there is no {path}: make the authority with `ofl ca init`")
        try:
            self._connection = sqlite3.connect(
                path, timeout=_LOCK_WAIT_S, isolation_level=None, check_same_thread=False
            )
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.executescript(_SCHEMA)
        except sqlite3.Error as error:
            raise ConfigError(f"the authority's books {path} cannot be used: {error}") from error

    def close(self) -> None:
        """Release the file."""
        self._connection.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Everything inside happens, or nothing; nobody else writes meanwhile."""
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            raise StoreError(f"the authority's books {self._path} cannot be written: {error}") from error
        try:
            yield
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back()
            raise StoreError(f"the authority's books {self._path} cannot be written: {error}") from error
        except BaseException:
            self._roll_back()
            raise

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def add_token(self, token: TokenRecord) -> None:
        """Note a token."""
        self._connection.execute(
            "INSERT INTO token VALUES (?, ?, ?, ?, ?, NULL)",
            (token.hash, token.name, json.dumps(token.hosts), token.lifetime_s, token.expires_at),
        )

    def token(self, token_hash: bytes) -> TokenRecord | None:
        """The token of this hash."""
        rows = self._connection.execute("SELECT * FROM token WHERE hash = ?", (token_hash,)).fetchall()
        return _token(rows[0]) if rows else None

    def tokens(self) -> list[TokenRecord]:
        """All of them, by when they expire."""
        return [_token(row) for row in self._connection.execute("SELECT * FROM token ORDER BY expires_at")]

    def use_token(self, token_hash: bytes, serial: int) -> None:
        """A token is spent."""
        self._connection.execute("UPDATE token SET serial = ? WHERE hash = ?", (f"{serial:x}", token_hash))

    def add_certificate(self, issued: CertificateRecord) -> None:
        """Note a certificate."""
        self._connection.execute(
            "INSERT INTO certificate VALUES (?, ?, ?, ?, ?, ?, NULL, '')",
            (
                *(f"{issued.serial:x}", issued.name, json.dumps(issued.hosts)),
                *(issued.lifetime_s, issued.not_after, issued.pem),
            ),
        )

    def certificate(self, serial: int) -> CertificateRecord | None:
        """The certificate of this serial."""
        rows = self._connection.execute("SELECT * FROM certificate WHERE serial = ?", (f"{serial:x}",)).fetchall()
        return _certificate(rows[0]) if rows else None

    def certificates(self, name: str | None = None) -> list[CertificateRecord]:
        """All of them, or those of one party; by name, the last to expire first."""
        rows = self._connection.execute(
            "SELECT * FROM certificate WHERE ?1 IS NULL OR name = ?1 ORDER BY name, not_after DESC", (name,)
        )
        return [_certificate(row) for row in rows]

    def revoke(self, serial: int, now: float, reason: str) -> None:
        """Take a certificate back; the first time counts."""
        self._connection.execute(
            "UPDATE certificate SET revoked_at = ?, reason = ? WHERE serial = ? AND revoked_at IS NULL",
            (now, reason, f"{serial:x}"),
        )

    def revoked(self, now: float) -> list[tuple[int, float]]:
        """Serial and time of what was taken back and has not expired since."""
        rows = self._connection.execute(
            "SELECT serial, revoked_at FROM certificate WHERE revoked_at IS NOT NULL AND not_after >= ?", (now,)
        )
        return [(int(serial, 16), at) for serial, at in rows]

    def forget(self, before: float) -> None:
        """Drop what expired before a time: nobody can use it any more."""
        self._connection.execute("DELETE FROM certificate WHERE not_after < ?", (before,))
        self._connection.execute("DELETE FROM token WHERE expires_at < ?", (before,))

    def next_crl_number(self) -> int:
        """Numbers of revocation lists only grow."""
        cursor = self._connection.execute("INSERT INTO crl DEFAULT VALUES")
        number = int(cursor.lastrowid or 0)
        self._connection.execute("DELETE FROM crl WHERE number < ?", (number,))
        return number


def _token(row: tuple[object, ...]) -> TokenRecord:
    token_hash, name, hosts, lifetime_s, expires_at, serial = row
    return TokenRecord(
        bytes(token_hash),  # type: ignore[call-overload]
        DeviceId(str(name)) if name is not None else None,
        tuple(json.loads(str(hosts))),
        float(str(lifetime_s)),
        float(str(expires_at)),
        int(str(serial), 16) if serial is not None else None,
    )


def _certificate(row: tuple[object, ...]) -> CertificateRecord:
    serial, name, hosts, lifetime_s, not_after, pem, revoked_at, reason = row
    return CertificateRecord(
        int(str(serial), 16),
        DeviceId(str(name)),
        tuple(json.loads(str(hosts))),
        float(str(lifetime_s)),
        float(str(not_after)),
        bytes(pem),  # type: ignore[call-overload]
        float(str(revoked_at)) if revoked_at is not None else None,
        str(reason),
    )
