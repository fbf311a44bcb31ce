"""Sources that grow while an agent runs: a watched folder, readings added by the program itself.

`samples(where)` may return one. It is asked before every training and gives all records it keeps.
"""

from __future__ import annotations

import csv
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ofl_iot.apps.data import NOT_FINITE, Records, as_records, fits
from ofl_iot.apps.keep import DEFAULT_KEEP, Buffer, KeepRule
from ofl_iot.errors import ConfigError

MAX_NAMED = 100
"""Files that are named in words; more are counted."""


@runtime_checkable
class Source(Protocol):
    """Whatever gives records and may have more of them the next time."""

    def collect(self) -> Records | None:
        """Return the records kept now; None while there are none."""
        ...

    def set_aside(self) -> dict[str, str]:
        """Return what could not be used and why, by name."""
        ...


@dataclass(frozen=True)
class Folder:
    """A folder whose files are read as they come: `samples=Folder()` for npz and csv, or with a `read` of your own.

    `read(path)` returns what `samples` may return. A file that cannot be read, or whose records have another shape
    than those before it, is set aside until it changes. Records of a file that is deleted are forgotten.
    """

    pattern: str = "**/*"
    read: Callable[[Path], Any] | None = None
    keep: KeepRule = DEFAULT_KEEP

    def __call__(self, where: str) -> FolderSource:
        """Watch the folder `where`, or a single file."""
        return FolderSource(Path(where), self)


class FolderSource:
    """One watched folder."""

    def __init__(self, where: Path, rules: Folder) -> None:
        if not where.exists():
            raise ConfigError(f"there is no folder {where}: make it, files may come later")
        self._where = where
        self._rules = rules
        self._buffer = Buffer(rules.keep)
        self._known: dict[Path, tuple[int, int, int]] = {}
        """Size, time of change and batch number of each file that was read or set aside."""
        self._aside: dict[str, str] = {}
        self._batches = 0
        self._bad_records = 0

    def collect(self) -> Records | None:
        """Read what is new, forget what is gone."""
        found = {path: stamp for path in self._files() if (stamp := _stamp(path)) is not None}
        for path in [path for path, known in self._known.items() if found.get(path) != known[:2]]:
            self._buffer.drop(self._known.pop(path)[2])
            self._aside.pop(self._name(path), None)
        held, new = self._buffer.records, []
        for path in sorted(found.keys() - self._known.keys(), key=lambda each: (found[each][1], str(each))):
            self._batches += 1
            self._known[path] = (*found[path], self._batches)
            records = self._read(path, held)
            if records is not None:
                new.append((records, self._batches))
                held = held if held is not None else records
        self._buffer.add_all(new)
        return self._buffer.records if self._buffer.records is not None and len(self._buffer.records) else None

    def set_aside(self) -> dict[str, str]:
        """Return the files that could not be used, and how many records of the others."""
        named = dict(list(self._aside.items())[:MAX_NAMED])
        if len(self._aside) > MAX_NAMED:
            named["and more"] = f"{len(self._aside) - MAX_NAMED} files"
        if self._bad_records:
            named["records"] = f"{self._bad_records} with values that are {NOT_FINITE}"
        return named

    def _files(self) -> list[Path]:
        if self._where.is_file():
            return [self._where]
        return [path for path in self._where.glob(self._rules.pattern) if not path.name.startswith(".")]

    def _read(self, path: Path, held: Records | None) -> Records | None:
        """Return a file's records; None if it is set aside."""
        try:
            records = as_records((self._rules.read or read_file)(path), what=path.name)
            reason = fits(records, held.shapes) if held is not None else ""
        except Exception as error:  # noqa: BLE001  # readers raise what they like; the other files are still good
            reason = str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"
        if reason:
            self._aside[self._name(path)] = reason[:300]
            return None
        self._bad_records += sum(records.set_aside.values())
        return records

    def _name(self, path: Path) -> str:
        return path.name if path == self._where else str(path.relative_to(self._where))


class Readings:
    """Records that the program adds itself: `readings.add(x, y)` from any thread."""

    def __init__(self, keep: KeepRule = DEFAULT_KEEP) -> None:
        self._buffer = Buffer(keep)
        self._lock = threading.Lock()
        self._aside: dict[str, int] = {}

    def __call__(self, where: str) -> Readings:
        """Serve as `samples`; there is nothing to look for at `where`."""
        del where
        return self

    def add(self, inputs: Any, targets: Any = None) -> int:
        """Add rows and return how many were taken; ConfigError if they do not fit those before."""
        records = as_records(inputs if targets is None else (inputs, targets), what="add")
        with self._lock:
            self._buffer.add(records)
            for reason, count in records.set_aside.items():
                self._aside[reason] = self._aside.get(reason, 0) + count
        return len(records)

    def collect(self) -> Records | None:
        """Return the records kept now."""
        with self._lock:
            records = self._buffer.records
        return records if records is not None and len(records) else None

    def set_aside(self) -> dict[str, str]:
        """Return how many records could not be used."""
        with self._lock:
            return {f"records {reason}": str(count) for reason, count in self._aside.items()}


def read_file(path: Path) -> Any:
    """Read `x` and `y` of an npz, or numbers of a csv whose last column is the target."""
    if path.suffix == ".npz":
        return _read_npz(path)
    if path.suffix == ".csv":
        return _read_csv(path)
    raise ConfigError("neither .npz nor .csv: give Folder a pattern, or a read of your own")


def _read_npz(path: Path) -> Any:
    with path.open("rb") as file, np.load(file, allow_pickle=False) as held:
        if "x" not in held:
            raise ConfigError(f"it holds {', '.join(held.files) or 'nothing'}: name the inputs x and the targets y")
        return (held["x"], held["y"]) if "y" in held else held["x"]


def _read_csv(path: Path) -> Any:
    """Read rows of numbers; a first line of words is a header, targets written without a point are labels."""
    with path.open(newline="", encoding="utf-8") as file:
        lines = [line for line in csv.reader(file) if line]
    if lines and not _numeric(lines[0]):
        lines = lines[1:]
    width = len(lines[0]) if lines else 0
    if width < 2 or any(len(line) != width for line in lines):
        raise ConfigError("a csv needs rows of equal length: inputs, and the target last")
    table = np.array(lines, dtype=np.float64)
    labels = all(line[-1].strip().isdecimal() for line in lines)
    return table[:, :-1], table[:, -1].astype(np.int64) if labels else table[:, -1]


def _numeric(line: list[str]) -> bool:
    try:
        return all(isinstance(float(cell), float) for cell in line)
    except ValueError:
        return False


def _stamp(path: Path) -> tuple[int, int] | None:
    """Size and time of change; None for what is no file, or is gone again."""
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_size, status.st_mtime_ns) if path.is_file() else None
