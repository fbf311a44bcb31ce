"""One cell in a process of its own: `python -m ofl_research.reproduction.worker OUT [DATA]`.

The cell arrives as JSON on standard input.

It tells of its progress by JSON lines on standard output and writes the result itself, whole or not at all. When the
run that started it is gone, its input ends, and so does it.
"""

from __future__ import annotations

import datetime as dt
import os
import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TextIO

import msgspec

from ofl_iot.errors import OflError
from ofl_research.reproduction.cells import Cell, CellStore, Finished
from ofl_research.reproduction.data_files import fingerprint
from ofl_research.reproduction.provenance import commit_of_code, machine, versions

EXIT_REASON, EXIT_ORPHAN = 3, 4
"""Ended by an error that explains itself; ended because nobody waits any more."""


class Told(msgspec.Struct, frozen=True):
    """How far a cell is."""

    share: float
    """0 to 1."""
    note: str = ""


Tell = Callable[[float, str], None]


def main(arguments: list[str]) -> int:
    """Compute the cell and keep its result."""
    lines = _claim_standard_output()
    out, data = Path(arguments[0]), Path(arguments[1]) if len(arguments) > 1 else None
    cell = msgspec.json.decode(sys.stdin.buffer.readline(), type=Cell)
    threading.Thread(target=_end_with_parent, daemon=True, name="parent-watch").start()

    def tell(share: float, note: str) -> None:
        lines.write(msgspec.json.encode(Told(share, note)).decode() + "\n")
        lines.flush()

    commit, files = commit_of_code(), fingerprint(cell.dataset, data)  # as they are now, not when it ends
    began = time.monotonic()
    try:
        result = import_module(cell.module).run(cell, data, tell)
    except OflError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_REASON
    CellStore(out).put(
        Finished(
            cell=cell,
            result=result,
            wall_s=time.monotonic() - began,
            cpu_s=time.process_time(),
            commit=commit,
            versions=versions(),
            data_files=files,
            machine=machine(),
            finished_at=dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        )
    )
    return 0


def _claim_standard_output() -> TextIO:
    """The stream to the run; what libraries print goes to standard error instead."""
    own = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return own


def _end_with_parent() -> None:
    # Not by sys.stdin: a thread that waits in it makes the interpreter abort at its end.
    while os.read(0, 1):
        pass
    os._exit(EXIT_ORPHAN)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
