"""The party's side of its local socket: answers its owner and root, a few at a time, each within a deadline."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import msgspec

from ofl_iot.errors import OflError
from ofl_iot.local.address import listen
from ofl_iot.local.messages import (
    HEAD_BYTES,
    MAX_REQUEST_BYTES,
    Refused,
    Reply,
    Request,
    decode_request,
    frame,
    parse_head,
)

log = logging.getLogger(__name__)

MAX_VISITORS = 8
REQUEST_S = 5.0
"""A visitor that has not asked by then is sent away."""
STALL_S = 30.0
"""Nor is one waited for that takes no more of its answer for so long."""
_PIECE_BYTES = 256 * 1024
_CREDENTIALS = struct.Struct("3i")


@dataclass(frozen=True)
class Answer:
    """A reply, and the body that follows it."""

    reply: Reply
    body: bytes | memoryview = b""


AnswerRequest: TypeAlias = Callable[[Request], Awaitable[Answer]]


class LocalServer:
    """Serves one socket until it is closed."""

    def __init__(
        self,
        path: Path,
        answer: AnswerRequest,
        *,
        request_s: float = REQUEST_S,
        stall_s: float = STALL_S,
        welcome: Callable[[int], bool] = lambda uid: uid in (0, os.geteuid()),
    ) -> None:
        self.path = path
        self._answer = answer
        self._request_s, self._stall_s = request_s, stall_s
        self._welcome = welcome
        self._server: asyncio.Server | None = None
        self._visits: set[asyncio.Task[None]] = set()

    async def start(self) -> bool:
        """Listen; a party that cannot do so runs all the same, and False says so."""
        try:
            listener = listen(self.path)
        except OSError as error:
            log.warning("no local socket, `ofl model` and `ofl status --local` will not reach this party path=%s "
                        "reason=%s", self.path, error)  # fmt: skip
            return False
        self._server = await asyncio.start_unix_server(self._visited, sock=listener, limit=MAX_REQUEST_BYTES)
        return True

    async def close(self) -> None:
        """Stop listening, send visitors away, remove the file."""
        if self._server is None:
            return
        self._server.close()
        with contextlib.suppress(OSError):
            self.path.unlink()
        for visit in list(self._visits):
            visit.cancel()
        await asyncio.gather(*self._visits, return_exceptions=True)
        self._server = None

    def _visited(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seated = len(self._visits) < MAX_VISITORS
        work = self._visit(reader, writer, seated=seated)
        task = asyncio.get_running_loop().create_task(work, name="local visitor")
        self._visits.add(task)
        task.add_done_callback(self._visits.discard)

    async def _visit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, seated: bool) -> None:
        try:
            if not self._welcome(_uid_of(writer)):
                answer = _refuse("only this party's user and root may ask")
            elif not seated:
                answer = _refuse(f"{MAX_VISITORS} others are being answered: try again")
            else:
                answer = await self._answer_to(reader)
            await self._send(writer, answer)
        except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError) as error:
            log.debug("a local visitor left reason=%s", type(error).__name__)
        finally:
            writer.transport.abort() if writer.transport.get_write_buffer_size() else writer.close()

    async def _answer_to(self, reader: asyncio.StreamReader) -> Answer:
        try:
            request = await asyncio.wait_for(_read_request(reader), self._request_s)
            return await self._answer(request)
        except OflError as error:
            return _refuse(str(error))

    async def _send(self, writer: asyncio.StreamWriter, answer: Answer) -> None:
        """Write in pieces, so that a slow visitor costs neither memory nor the loop's time."""
        body = memoryview(answer.body).cast("B")
        writer.write(frame(msgspec.structs.replace(answer.reply, body_bytes=len(body))))
        for start in range(0, len(body), _PIECE_BYTES):
            await asyncio.wait_for(writer.drain(), self._stall_s)
            writer.write(body[start : start + _PIECE_BYTES])
        await asyncio.wait_for(_all_written(writer), self._stall_s)


async def _read_request(reader: asyncio.StreamReader) -> Request:
    size = parse_head(await reader.readexactly(HEAD_BYTES), MAX_REQUEST_BYTES)
    return decode_request(await reader.readexactly(size))


async def _all_written(writer: asyncio.StreamWriter) -> None:
    writer.transport.set_write_buffer_limits(high=0)
    await writer.drain()


def _refuse(reason: str) -> Answer:
    return Answer(Refused(reason))


def _uid_of(writer: asyncio.StreamWriter) -> int:
    """Return the user on the other end, as the kernel knows it; -1 if it cannot be told."""
    peer = writer.get_extra_info("socket")
    try:
        _, uid, _ = _CREDENTIALS.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    except (OSError, AttributeError):
        return -1
    return int(uid)
