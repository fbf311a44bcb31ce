"""The process that runs user code: loads the app, trains on request. It holds no key, no ledger and no link.

Started by `TrainerProcess` as `python -m ofl_iot.apps.child CHANNEL MEMORY PARENT`.
"""

from __future__ import annotations

import faulthandler
import mmap
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np

from ofl_iot.apps.channel import Channel, ClosedError, Message
from ofl_iot.apps.confinement import die_with_parent, hide, limit_memory, yield_to_agent
from ofl_iot.apps.loading import load_app
from ofl_iot.apps.served import Computing, ServedApp
from ofl_iot.errors import OflError
from ofl_iot.protocol.model_card import encode_card
from ofl_iot.workloads.base import TrainJob, Vector

_OWN_CODE = str(Path(__file__).parent.parent)
_FRAMES, _TEXT = 6, 1000


def main(arguments: list[str]) -> int:
    """Serve one agent until it says stop or is gone."""
    channel_fd, memory, parent = map(int, arguments)
    die_with_parent(parent)
    yield_to_agent()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    channel = Channel(socket.socket(fileno=channel_fd))
    try:
        service = _begin(channel, memory)
        while service is not None:
            request = channel.receive()
            if request["op"] == "stop":
                os._exit(0)  # torch's own end takes a second
            _answer(channel, lambda request=request: service.run(request))  # type: ignore[misc]
    except ClosedError:
        pass
    return 0


def _begin(channel: Channel, memory: int) -> Service | None:
    """Load the app that the first message names; None if that failed."""
    first = channel.receive()
    made: list[Service] = []

    def load() -> Message:
        made.append(Service(first, memory, lambda: channel.send({"op": "progress"})))
        return made[0].about

    return made[0] if _answer(channel, load) else None


def _answer(channel: Channel, work: Callable[[], Message]) -> bool:
    """Send what the work gives, or why it failed; whether it did not."""
    try:
        answer = work()
    except BaseException as error:  # noqa: BLE001  # whatever user code raises, SystemExit included
        channel.send({"op": "failed", "text": words_of(error)})
        return False
    channel.send({"op": "done", **answer})
    return True


class Service:
    """The app and the memory that it shares with the agent."""

    def __init__(self, first: Message, memory: int, progress: Callable[[], None]) -> None:
        self._progress = progress
        hidden = hide([Path(path) for path in first["hidden"]], [Path(path) for path in first["keep"]])
        app = load_app(first["app"])
        self._shared: Vector = np.zeros(0, np.float32)
        self._memory = memory
        self._app = ServedApp(app, self._share, Computing(first["engine"], first["device"]))
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(1)
        limit_memory(first["memory_mib"])
        described = self._app.describe()
        self.about: Message = {
            "card": encode_card(described.card).decode(),
            "size": described.size,
            "metrics": described.metrics,
            "notes": list(described.notes),
            "judged": described.judged,
            "hidden": hidden,
        }

    def run(self, request: Message) -> Message:
        """Run one job."""
        job: Callable[[Message], Message] = getattr(self, f"_{request['op']}")
        return job(request)

    def _share(self, size: int) -> Vector:
        os.ftruncate(self._memory, 4 * size)
        self._shared = np.frombuffer(mmap.mmap(self._memory, 4 * size), np.float32)
        return self._shared

    def _open(self, request: Message) -> Message:
        self._app.open(request["party"], request["where"], held_out=request["held_out"])
        return {}

    def _deal(self, request: Message) -> Message:
        how = self._app.deal(request["where"], request["devices"], seed=request["seed"], alpha=request["alpha"])
        return {"how": how}

    def _look(self, request: Message) -> Message:
        look = self._app.look(request["party"], private=request["private"])
        return {
            "count": look.count,
            "histogram": list(look.histogram),
            "set_aside": look.set_aside,
            "notes": list(look.notes),
        }

    def _initial(self, request: Message) -> Message:
        self._app.initial(request["seed"])
        return {}

    def _train(self, request: Message) -> Message:
        entropy = bytes.fromhex(request["entropy"]) or None
        job = msgspec.convert(request["job"], TrainJob)
        _, report = self._app.train(
            request["party"], self._shared, job, count=request["count"], entropy=entropy, progress=self._progress
        )
        return {"steps": report.steps, "sampling_rate": report.sampling_rate, "loss": report.loss}

    def _evaluate(self, request: Message) -> Message:
        judged = self._app.evaluate(request["party"], self._shared)
        return {"loss": judged.loss, "count": judged.count, "metrics": judged.metrics}


def words_of(error: BaseException) -> str:
    """Return the error with the user's own frames: not torch's, not the library's."""
    if isinstance(error, OflError):
        return str(error)[:_TEXT]
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]
    where = "".join(f"\n  {frame.filename}:{frame.lineno} in {frame.name}: {frame.line}" for frame in frames[-_FRAMES:])
    return f"{type(error).__name__}: {str(error)[:_TEXT]}{where}"


def _is_users(filename: str) -> bool:
    return not (filename.startswith((_OWN_CODE, "<frozen")) or "site-packages" in filename or _in_library(filename))


def _in_library(filename: str) -> bool:
    return filename.startswith(str(Path(os.__file__).parent))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
