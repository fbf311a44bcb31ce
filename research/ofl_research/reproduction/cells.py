"""Cells: the smallest things that are computed, kept and never computed twice.

A cell's result is one JSON file named by the digest of all that determines it, so a run that was ended, in whatever
way, goes on with what is missing, and experiments that need the same cell share it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from ofl_iot.errors import ConfigError

log = logging.getLogger(__name__)

STORED_PREFIX, WORK_PREFIX = "agents.reproduce.work.", "ofl_research.reproduction.work."
FORMAT = 1
"""Version of a result; raise it when results of before must not be used any more."""


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to compute: what, on which data, with which seed and settings."""

    work: str
    """Stored name of the work: `agents.reproduce.work.` and a module. Digests cover it, so it never changes."""
    dataset: str
    system: str
    seed: int
    settings: dict[str, Any] = {}
    """Whatever else determines the result, as plain JSON values."""

    @property
    def module(self) -> str:
        """Module whose `run(cell, data, tell)` computes it."""
        return self.work.replace(STORED_PREFIX, WORK_PREFIX, 1)

    @property
    def name(self) -> str:
        """For people and for `--only`."""
        return f"{self.dataset}/{self.system}"

    @property
    def digest(self) -> str:
        """Return the digest of everything that determines the result."""
        content = {"format": FORMAT, **msgspec.to_builtins(self)}
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """A cell with its result, and with which code it was computed."""

    cell: Cell
    result: dict[str, Any]
    wall_s: float
    commit: str
    cpu_s: float = 0.0
    """Seconds of the worker's processor; less than `wall_s` on a busy machine."""
    versions: dict[str, str] = {}
    finished_at: str = ""
    """UTC, ISO 8601."""
    data_files: str = ""
    """Digest of the data files it was computed from; empty where there are none, or of a time that kept no such."""
    machine: str = ""
    """That computed it."""


class CellStore:
    """The finished cells of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "cells"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--out {folder}: it cannot be made ({error.strerror}); name another folder") from error

    def path(self, cell: Cell) -> Path:
        """Where this cell's result is, or will be."""
        name = f"{cell.dataset}-{cell.system}-{cell.seed}-{cell.digest}.json"
        return self.folder / name.replace("/", "_").replace(" ", "_")

    def get(self, cell: Cell) -> Finished | None:
        """The finished cell, or None; a file that is not a result is reported and computed anew."""
        path = self.path(cell)
        try:
            finished = msgspec.json.decode(path.read_bytes(), type=Finished)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            log.warning("unreadable result, computing it anew file=%s reason=%s", path, error)
            return None
        return finished if finished.cell == cell else None

    def put(self, finished: Finished) -> None:
        """Keep a result; a reader sees all of it or none."""
        write_atomically(self.path(finished.cell), msgspec.json.format(msgspec.json.encode(finished), indent=1))


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file by a complete one, on disk before it takes the name."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".unfinished-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
