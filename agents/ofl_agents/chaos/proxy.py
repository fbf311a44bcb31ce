"""A loopback TCP proxy in front of one party: a link of a given rate, delay and loss that can be cut and stalled."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING

import msgspec

from ofl_agents.chaos.wiretap import PacketReader, Tally

if TYPE_CHECKING:
    from typing_extensions import Self

SEGMENT_BYTES = 1400
_RETRANSMIT_S = 0.2
"""First retransmission time-out of a lost segment; it doubles, as TCP's does."""
_SMALL_BUFFER = 4096
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with zero seconds: closing sends RST."""


class LinkShape(msgspec.Struct, frozen=True):
    """What a link carries; the default carries everything at once."""

    bytes_s: float = 0.0
    """0: unlimited."""
    delay_s: float = 0.0
    loss: float = 0.0
    """Chance that a segment is lost and sent again: those behind it wait, as behind TCP's."""
    open_s: float = 0.0
    every_s: float = 0.0
    """A contact of `open_s` seconds begins every `every_s` seconds; 0: always there."""

    def is_open(self, since_start_s: float) -> bool:
        """Return whether the link is in a contact."""
        return not self.every_s or since_start_s % self.every_s < self.open_s


GOOD = LinkShape()


@dataclass(eq=False)
class ShapedProxy:
    """Forwards to a port on loopback, as a link of this shape would."""

    target_port: int
    shape: LinkShape = GOOD
    seed: int = 0
    port: int = 0
    sent_bytes: int = 0
    """Bytes that the party sent through."""
    tally: Tally = field(default_factory=Tally)
    """The same by kind of message."""
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)  # noqa: S311  # repeats itself
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._refusing = False
        self._free_at = [0.0, 0.0]

    async def __aenter__(self) -> Self:
        listener = socket.create_server(("127.0.0.1", 0))
        # What waits for a thin link waits at the sender, not in buffers of this machine.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL_BUFFER)
        self._server = await asyncio.start_server(self._accept, sock=listener, limit=_SMALL_BUFFER)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        self.reset()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def reset(self) -> None:
        """Tear every connection down."""
        for writer in list(self._writers):
            _abort(writer)

    def cut(self) -> None:
        """Tear connections down and refuse new ones until `restore`."""
        self._refusing = True
        self.reset()

    def stall(self) -> None:
        """Hold all bytes back until `restore`; nobody is told."""
        self._flowing.clear()

    def restore(self) -> None:
        """End a cut and a stall."""
        self._refusing = False
        self._flowing.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._writers.add(writer)
        try:
            if self._refusing:
                _abort(writer)
                return
            upstream_reader, upstream = await asyncio.open_connection("127.0.0.1", self.target_port)
            self._writers.add(upstream)
            try:
                with contextlib.suppress(asyncio.CancelledError):  # only __aexit__ cancels, and nothing follows
                    await asyncio.gather(self._pump(reader, upstream, 0), self._pump(upstream_reader, writer, 1))
            finally:
                self._writers.discard(upstream)
                upstream.close()
        except OSError:
            _abort(writer)
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lane: int) -> None:
        """Copy one direction until its sender closes."""
        packets = PacketReader(self.tally) if lane == 0 else None
        with contextlib.suppress(OSError), contextlib.closing(packets) if packets else contextlib.nullcontext():
            while data := await reader.read(SEGMENT_BYTES if self.shape != GOOD else 65536):
                if packets:
                    self.sent_bytes += len(data)
                    packets.feed(data)
                await self._pass(len(data), lane)
                await self._flowing.wait()
                if writer.is_closing():
                    return
                writer.write(data)
                await writer.drain()
        # A direction that ended ends the connection: MQTT does not half-close.
        writer.close()

    async def _pass(self, size: int, lane: int) -> None:
        """Wait as long as the link needs for so many bytes."""
        shape, now = self.shape, time.monotonic()
        wait = shape.delay_s
        if shape.bytes_s:
            self._free_at[lane] = max(now, self._free_at[lane]) + size / shape.bytes_s
            wait += self._free_at[lane] - now
        again = _RETRANSMIT_S
        while shape.loss and self._rng.random() < shape.loss:
            wait += again
            again = min(2 * again, 5.0)
        if wait > 0:
            await asyncio.sleep(wait)


def _abort(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    if sock is not None and not writer.is_closing():
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        writer.transport.abort()
