"""Computes cells in worker processes: each in one of its own, so that none takes another with it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec

from ofl_research.reproduction.cells import Cell, CellStore, Finished
from ofl_research.reproduction.data_files import refuse_other_files
from ofl_research.reproduction.pace import Pace
from ofl_research.reproduction.worker import EXIT_REASON, Told

ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
"""Each worker computes on one core; as many workers as cores do the rest."""
CELL_LIMIT_S = 12 * 3600.0
"""A cell that takes longer hangs."""
REASON_LINES = 12


@dataclass(frozen=True)
class Failure:
    """A cell that could not be computed, and why."""

    cell: Cell
    reason: str


@dataclass
class Running:
    """A cell under way."""

    cell: Cell
    began: float
    share: float = 0.0
    note: str = ""


@dataclass
class Board:
    """Where a run stands; whoever shows it reads here."""

    total: int
    kept: int
    """Cells that were finished before."""
    done: list[Finished] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    running: dict[str, Running] = field(default_factory=dict)
    seconds_left: float | None = None

    @property
    def settled(self) -> int:
        """Cells of which nothing more is to come."""
        return self.kept + len(self.done) + len(self.failures)


class Watcher(Protocol):
    """Shows a run."""

    def moved(self, board: Board) -> None: ...
    def finished(self, board: Board, finished: Finished) -> None: ...
    def failed(self, board: Board, failure: Failure) -> None: ...


class Runner:
    """Computes what is missing of some cells."""

    def __init__(self, store: CellStore, out: Path, data: Path | None, jobs: int, watcher: Watcher) -> None:
        self._store = store
        self._data = data
        self._arguments = [str(out), *([str(data)] if data else [])]
        self._jobs = jobs
        self._watcher = watcher

    def run(self, cells: Sequence[Cell]) -> Board:
        """Compute them all; finished ones are kept, failed ones are on the board.

        ConfigError if finished ones were computed from other data files: they would be mixed.
        """
        unique = {cell.digest: cell for cell in cells}
        kept = {digest: found for digest, cell in unique.items() if (found := self._store.get(cell))}
        refuse_other_files(kept.values(), self._data)
        waiting = deque(cell for digest, cell in unique.items() if digest not in kept)
        board = Board(total=len(unique), kept=len(kept))
        pace = Pace(kept)
        asyncio.run(self._work_off(waiting, board, pace))
        return board

    async def _work_off(self, waiting: deque[Cell], board: Board, pace: Pace) -> None:
        async def work() -> None:
            while waiting:
                await self._compute(waiting.popleft(), board)

        async def watch() -> None:
            while True:
                board.seconds_left = pace.left(waiting, board, self._jobs)
                self._watcher.moved(board)
                await asyncio.sleep(0.5)

        watching = asyncio.create_task(watch(), name="watch")
        try:
            await asyncio.gather(*(asyncio.create_task(work(), name=f"worker-{n}") for n in range(self._jobs)))
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching

    async def _compute(self, cell: Cell, board: Board) -> None:
        running = board.running[cell.digest] = Running(cell, time.monotonic())
        try:
            reason = await self._run_worker(cell, running)
        finally:
            del board.running[cell.digest]
        finished = None if reason else self._store.get(cell)
        if finished is not None:
            board.done.append(finished)
            self._watcher.finished(board, finished)
        else:
            failure = Failure(cell, reason or "the worker ended without a result")
            board.failures.append(failure)
            self._watcher.failed(board, failure)

    async def _run_worker(self, cell: Cell, running: Running) -> str:
        """Run one cell to its end; the reason if it failed."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "ofl_research.reproduction.worker",
            *self._arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=_environment(os.environ),
        )
        try:
            return await asyncio.wait_for(_follow(process, cell, running), CELL_LIMIT_S)
        except asyncio.TimeoutError:
            return f"it did not end within {CELL_LIMIT_S:.0f} s"
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def _follow(process: asyncio.subprocess.Process, cell: Cell, running: Running) -> str:
    """Hand the cell over, read what the worker tells until it ends; the reason if it failed."""
    assert process.stdin  # noqa: S101  # all three are pipes
    assert process.stdout  # noqa: S101
    assert process.stderr  # noqa: S101
    complaints = asyncio.create_task(_tail(process.stderr), name="complaints")
    with contextlib.suppress(ConnectionError):
        process.stdin.write(msgspec.json.encode(cell) + b"\n")
        await process.stdin.drain()
    try:
        async for line in process.stdout:
            told = msgspec.json.decode(line, type=Told)
            running.share, running.note = told.share, told.note
        code = await process.wait()
        said = await complaints
    finally:
        complaints.cancel()
    return _reason(code, said)


async def _tail(stream: asyncio.StreamReader) -> str:
    """The last lines of a stream, read to its end so that the writer never waits."""
    lines: deque[str] = deque(maxlen=REASON_LINES)
    while True:
        try:
            line = await stream.readline()
        except ValueError:  # a line beyond the reader's limit
            continue
        if not line:
            return "\n".join(lines)
        lines.append(line.decode(errors="replace").rstrip())


def _reason(code: int, said: str) -> str:
    if code == 0:
        return ""
    if code == EXIT_REASON:
        return said.strip().splitlines()[-1] if said.strip() else "the worker gave up without a reason"
    if code < 0:
        name = signal.Signals(-code).name
        hint = " (was the memory enough for so many --jobs?)" if -code == signal.SIGKILL else ""
        return f"the worker was ended by {name}{hint}"
    return f"the worker ended with code {code}:\n{said.strip()}"


def _environment(own: Mapping[str, str]) -> dict[str, str]:
    """Like ours, but on one core; modules are found where we found ours."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return {**own, **dict.fromkeys(ONE_THREAD, "1"), "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
