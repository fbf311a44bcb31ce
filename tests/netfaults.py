"""A loopback TCP proxy that breaks connections the way networks do."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from dataclasses import dataclass
from typing import Literal

_LINGER_ZERO = struct.pack("ii", 1, 0)
"""SO_LINGER with zero seconds: close() sends RST instead of FIN."""


@dataclass(eq=False)
class _Pipe:
    """One connection through the proxy."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    half_open: bool = False

    def reset(self) -> None:
        for writer in (self.client, self.server):
            _reset(writer)


class TcpProxy:
    """Forwards to `target_port` on loopback until told to misbehave.

    `reset()` tears every connection down with RST. `stall()` holds all bytes back, in both directions and on
    new connections too, until `resume()`. `half_open("client")` cuts the server's side of every connection
    while the client's stays open and silent, `half_open("server")` the other way round; what the living side
    sends is swallowed. `refuse()` resets new connections at once until `resume()`.
    With `small_buffers` little is on its way: what a stalled proxy holds back stays with the sender.
    """

    def __init__(self, target_port: int, *, small_buffers: bool = False) -> None:
        self._small_buffers = small_buffers
        self._target_port = target_port
        self._pipes: set[_Pipe] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._refusing = False
        self.port = 0
        self.accepted = 0
        """Connections accepted so far."""
        self.forwarded_bytes = 0

    async def __aenter__(self) -> TcpProxy:  # noqa: PYI034 -- typing.Self needs Python 3.11
        listener = socket.create_server(("127.0.0.1", 0))
        if self._small_buffers:  # accepted connections inherit it
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        limit = 4096 if self._small_buffers else 64 * 1024
        self._server = await asyncio.start_server(self._accept, sock=listener, limit=limit)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.reset()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def reset(self) -> None:
        """Tear every connection down, both sides, with RST."""
        for pipe in self._pipes:
            pipe.reset()

    def stall(self) -> None:
        """Hold all bytes back."""
        self._flowing.clear()

    def refuse(self) -> None:
        """Reset new connections as soon as they are accepted."""
        self._refusing = True

    def resume(self) -> None:
        """Let bytes flow and connections through again."""
        self._refusing = False
        self._flowing.set()

    def half_open(self, alive: Literal["client", "server"]) -> None:
        """Cut one side of every connection without a word to the `alive` one."""
        for pipe in self._pipes:
            pipe.half_open = True
            _reset(pipe.server if alive == "client" else pipe.client)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.accepted += 1
        try:
            if self._refusing:
                _reset(writer)
                return
            await self._forward(reader, writer)
        except OSError:
            _reset(writer)
        finally:
            self._tasks.discard(task)
            await _close(writer)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        pipe = _Pipe(writer, server_writer)
        self._pipes.add(pipe)
        try:
            await asyncio.gather(self._pump(pipe, reader, server_writer), self._pump(pipe, server_reader, writer))
        finally:
            self._pipes.discard(pipe)
            await _close(server_writer)

    async def _pump(self, pipe: _Pipe, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Copy until the sender closes, then say so to the receiver unless the pipe is half open."""
        with contextlib.suppress(OSError):
            while data := await reader.read(64 * 1024):
                await self._flowing.wait()
                if not writer.is_closing():
                    self.forwarded_bytes += len(data)
                    writer.write(data)
                    await writer.drain()
            if not pipe.half_open and not writer.is_closing():
                writer.write_eof()


def _reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    if sock is not None and not writer.is_closing():
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
        writer.transport.abort()


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
