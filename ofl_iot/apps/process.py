"""The agent's side of user code in a process of its own: no torch here, no user code, one vector in shared memory.

The process starts when it is needed, ends when it was idle, is replaced when it dies. A job raises AppFailedError if
user code raised, AppDiedError if the process is gone: then its result is discarded.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec
import numpy as np

from ofl_iot.apps.channel import Channel, ClosedError, Message, SilentError
from ofl_iot.apps.runner import AppDiedError, AppError, AppFailedError, Description, Judged, Look, TrainReport
from ofl_iot.protocol.model_card import decode_card
from ofl_iot.torch_training.job import EngineName
from ofl_iot.workloads.base import TrainJob, Vector

log = logging.getLogger(__name__)

_KEPT_VARIABLES = {
    "PATH", "HOME", "LANG", "LC_ALL", "TZ", "PYTHONPATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "CUDA_HOME",
}  # fmt: skip
_KEPT_PREFIX = "APP_"
"""Variables of these names reach user code, and no others: neither settings nor credentials do."""
_SAID_BYTES, _LAST_WORDS_BYTES = 1 << 20, 20_000
_STOP_S, _DEATH_S, _TRACE_S = 2.0, 10.0, 0.3


@dataclass(frozen=True)
class Limits:
    """How long and how large the process may be."""

    quiet_s: float = 120.0
    """Without a sign of life for so long, a job hangs: the process is ended."""
    start_s: float = 300.0
    """Loading torch and the app takes longer than a step."""
    idle_s: float = 600.0
    """Without a job for so long the process ends and its memory is free."""
    memory_mib: int = 0
    """Memory for data, beside the libraries; 0 = no limit."""
    engine: EngineName = "auto"
    device: str = "auto"
    """How a torch app computes."""


@dataclass(frozen=True)
class _Running:
    """One life of the process."""

    process: subprocess.Popen[bytes]
    channel: Channel
    memory: int
    said: IO[bytes]
    scratch: str


class TrainerProcess:
    """A Runner whose app is loaded elsewhere."""

    def __init__(
        self, app: str, limits: Limits | None = None, *, hidden: tuple[Path, ...] = (), keep: tuple[Path, ...] = ()
    ) -> None:
        self._app, self._limits = app, limits or Limits()
        self._hidden, self._keep = hidden, keep
        self._running: _Running | None = None
        self._map: mmap.mmap | None = None
        self._vector: Vector | None = None
        self._described: Description | None = None
        self._opened: dict[int, Message] = {}
        """What a new process must be told again, by party; -1 is how data were dealt."""
        self._starter = ThreadPoolExecutor(1, "ofl-trainer")
        """Starts the process and stays: the kernel ends the child when the *thread* that started it ends."""
        self._one = threading.RLock()
        """One job at a time, whichever thread asks."""
        self._idle: threading.Timer | None = None
        self.starts = 0
        """Processes started so far."""
        self.failures = 0
        """Jobs that failed so far."""

    # --- jobs

    def describe(self) -> Description:
        """Start the process if need be and return what the app's model is."""
        with self._job():
            assert self._described is not None  # noqa: S101  # set by _job
            return self._described

    def open(self, party: int, where: str, *, held_out: bool = False) -> None:
        """Say where a party's data are."""
        self._tell(party, {"op": "open", "party": party, "where": where, "held_out": held_out})

    def deal(self, where: str, devices: int, *, seed: int, alpha: float) -> str:
        """Give the first parties their data from one folder."""
        request = {"op": "deal", "where": where, "devices": devices, "seed": seed, "alpha": alpha}
        return str(self._tell(-1, request)["how"])

    def look(self, party: int, *, private: bool) -> Look:
        """Freeze the records of the party's next training."""
        with self._job():
            found = self._ask({"op": "look", "party": party, "private": private}, self._limits.start_s)
            return Look(found["count"], tuple(found["histogram"]), found["set_aside"], tuple(found["notes"]))

    def initial(self, seed: int) -> Vector:
        """Return untrained values."""
        with self._job():
            self._ask({"op": "initial", "seed": seed})
            return np.array(self._shared())

    def train(
        self, party: int, vector: Vector, job: TrainJob, *, count: int, entropy: bytes | None = None
    ) -> tuple[Vector, TrainReport]:
        """Train a copy of `vector` on the records of the last look."""
        with self._job():
            np.copyto(self._shared(), vector)
            plain = msgspec.to_builtins(job)
            seed = (entropy or b"").hex()
            done = self._ask({"op": "train", "party": party, "job": plain, "count": count, "entropy": seed})
            return np.array(self._shared()), TrainReport(done["steps"], done["sampling_rate"], _number(done["loss"]))

    def evaluate(self, party: int, vector: Vector) -> Judged:
        """Judge on the party's records."""
        with self._job():
            np.copyto(self._shared(), vector)
            done = self._ask({"op": "evaluate", "party": party})
            metrics = {name: _number(value) for name, value in done["metrics"].items()}
            return Judged(_number(done["loss"]), done["count"], metrics)

    # --- life

    @property
    def pid(self) -> int | None:
        """The process; None while there is none."""
        return self._running.process.pid if self._running else None

    def stop(self) -> None:
        """End the process; its memory is free afterwards, and the next job starts another."""
        with self._one:
            if self._idle is not None:
                self._idle.cancel()
            running = self._running
            if running is None:
                return
            try:
                running.channel.send({"op": "stop"})
                running.process.wait(_STOP_S)
            except (ClosedError, subprocess.TimeoutExpired):
                running.process.kill()
                running.process.wait(_DEATH_S)
            self._forget()

    def close(self) -> None:
        """End the process for good."""
        self.stop()
        self._starter.shutdown()

    @contextlib.contextmanager
    def _job(self) -> Iterator[None]:
        """One job, with a process to run it; what fails is counted."""
        with self._one:
            if self._idle is not None:
                self._idle.cancel()
            try:
                self._start()
                yield
            except AppError:
                self.failures += 1
                raise
            finally:
                self._await_idleness()

    def _tell(self, party: int, request: Message) -> Message:
        with self._job():
            answer = self._ask(request, self._limits.start_s)
            self._opened[party] = request
            return answer

    def _start(self) -> None:
        if self._running is not None and self._running.process.poll() is None:
            return
        if self._running is not None:
            log.warning("the app's process ended between two jobs code=%s", self._running.process.returncode)
            self._forget()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        memory = os.memfd_create("ofl-vector", os.MFD_CLOEXEC)
        said = tempfile.TemporaryFile("a+b")  # noqa: SIM115  # closed with the process
        scratch = tempfile.mkdtemp(prefix="ofl-app-")
        process = self._starter.submit(self._spawn, theirs.fileno(), memory, said, scratch).result()
        theirs.close()
        self._running = _Running(process, Channel(ours), memory, said, scratch)
        self.starts += 1
        self._load()

    def _spawn(self, channel: int, memory: int, said: IO[bytes], scratch: str) -> subprocess.Popen[bytes]:
        kept = {name: value for name, value in os.environ.items() if _is_kept(name)}
        return subprocess.Popen(  # noqa: S603  # our own interpreter and module
            [sys.executable, "-m", "ofl_iot.apps.child", str(channel), str(memory), str(os.getpid())],
            pass_fds=(channel, memory),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            env=kept | {"TMPDIR": scratch, "PYTHONUNBUFFERED": "1"},
        )

    def _load(self) -> None:
        """Have the new process load the app; it must be the one known before."""
        assert self._running is not None  # noqa: S101  # just started
        about = self._ask(
            {
                "op": "load",
                "app": self._app,
                "hidden": [str(path) for path in self._hidden],
                "keep": [str(path) for path in (*self._keep, Path(self._running.scratch))],
                "memory_mib": self._limits.memory_mib,
                "engine": self._limits.engine,
                "device": self._limits.device,
            },
            self._limits.start_s,
        )
        card = decode_card(about["card"].encode())
        described = Description(card, about["size"], about["metrics"], tuple(about["notes"]), about["judged"])
        if self._described is not None and self._described.card != card:
            self.stop()
            raise AppFailedError(f"{self._app} became another model while the agent ran: start the agent again")
        self._described = described
        self._map = mmap.mmap(self._running.memory, 4 * described.size)
        self._vector = np.frombuffer(self._map, np.float32)
        if self._hidden and not about["hidden"]:
            log.info("the app could read the agent's files reason=no Landlock in this kernel, or data around them")
        if self.starts == 1:
            log.info("app loaded app=%s parameters=%d notes=%s", card.app, card.size, "; ".join(described.notes))
        for request in self._opened.values():
            self._ask(request, self._limits.start_s)

    def _shared(self) -> Vector:
        assert self._vector is not None  # noqa: S101  # a job has a process
        return self._vector

    def _ask(self, request: Message, within_s: float | None = None) -> Message:
        """Return the answer; every message in between is a sign of life."""
        running = self._running
        assert running is not None  # noqa: S101  # a job has a process
        try:
            running.channel.send(request)
            while True:
                message = running.channel.receive(within_s or self._limits.quiet_s)
                if message["op"] == "failed":
                    raise AppFailedError(message["text"])
                if message["op"] == "done":
                    return message
        except SilentError:
            running.process.send_signal(signal.SIGUSR1)  # faulthandler writes where it hangs
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.process.wait(_TRACE_S)
            running.process.kill()
            raise self._death(f"said nothing for {within_s or self._limits.quiet_s:g} s") from None
        except ClosedError:
            raise self._death("ended") from None

    def _death(self, how: str) -> AppDiedError:
        """Clear up after a process that is gone, and say what is known of its end."""
        running = self._running
        assert running is not None  # noqa: S101  # it was asked
        try:
            code = running.process.wait(_DEATH_S)
        except subprocess.TimeoutExpired:
            running.process.kill()
            code = running.process.wait(_DEATH_S)
        said = _last_words(running.said)
        self._forget()
        cause = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        hint = " (out of memory?)" if code == -signal.SIGKILL and how == "ended" else ""
        return AppDiedError(f"the app's process {how}, {cause}{hint}\n{said}".rstrip())

    def _forget(self) -> None:
        running, self._running = self._running, None
        assert running is not None  # noqa: S101  # only what runs is forgotten
        running.channel.close()
        self._vector = None
        if self._map is not None:
            with contextlib.suppress(BufferError):
                self._map.close()
            self._map = None
        os.close(running.memory)
        running.said.close()
        shutil.rmtree(running.scratch, ignore_errors=True)

    def _await_idleness(self) -> None:
        if self._running is None:
            return
        if self._running.said.seek(0, os.SEEK_END) > _SAID_BYTES:
            self._running.said.truncate(0)
        self._idle = threading.Timer(self._limits.idle_s, self._end_if_idle)
        self._idle.daemon = True
        self._idle.start()

    def _end_if_idle(self) -> None:
        if self._one.acquire(blocking=False):
            try:
                self.stop()
            finally:
                self._one.release()


def _is_kept(name: str) -> bool:
    return name in _KEPT_VARIABLES or name.startswith(_KEPT_PREFIX)


def _number(value: float | None) -> float:
    """JSON has no NaN: it comes as null."""
    return float("nan") if value is None else float(value)


def _last_words(said: IO[bytes]) -> str:
    """The first frames of user code in what faulthandler wrote, else the end of what was said."""
    size = said.seek(0, os.SEEK_END)
    said.seek(max(0, size - _LAST_WORDS_BYTES))
    text = said.read().decode(errors="replace")
    own = str(Path(__file__).parent.parent)
    frames = [
        line
        for line in text.splitlines()
        if line.startswith("  File ") and "site-packages" not in line and own not in line and "<frozen" not in line
    ]
    return "\n".join(frames[:3]) or text[-300:].strip()
