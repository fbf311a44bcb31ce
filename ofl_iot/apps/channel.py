"""Messages between an agent and the process that runs user code: JSON with a length before it, never pickles."""

from __future__ import annotations

import select
import socket
import struct
from typing import Any, TypeAlias

import msgspec

Message: TypeAlias = dict[str, Any]

MAX_MESSAGE_BYTES = 16 << 20
PART_TIMEOUT_S = 60.0
"""A message that has begun comes to its end by then, in either direction."""
_LENGTH = struct.Struct("<I")


class ClosedError(Exception):
    """The other side is gone, or speaks nonsense."""


class SilentError(Exception):
    """Nothing came in time."""


class Channel:
    """One end of a stream socket."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        end.settimeout(PART_TIMEOUT_S)

    def send(self, message: Message) -> None:
        """Send one message; ClosedError if nobody reads any more."""
        body = msgspec.json.encode(message)
        if len(body) > MAX_MESSAGE_BYTES:
            raise ValueError(f"a message of {len(body)} bytes")
        try:
            self._socket.sendall(_LENGTH.pack(len(body)) + body)
        except OSError as error:
            raise ClosedError(str(error)) from error

    def receive(self, within_s: float | None = None) -> Message:
        """Return the next message; SilentError if none begins in time, ClosedError at the end of the stream."""
        if not select.select([self._socket], [], [], within_s)[0]:
            raise SilentError
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        if length > MAX_MESSAGE_BYTES:
            raise ClosedError(f"a message of {length} bytes was announced")
        try:
            message = msgspec.json.decode(self._exactly(length))
        except msgspec.DecodeError as error:
            raise ClosedError(f"not a message: {error}") from error
        if not isinstance(message, dict) or not isinstance(message.get("op"), str):
            raise ClosedError("not a message")
        return message

    def close(self) -> None:
        """Close this end."""
        self._socket.close()

    def _exactly(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            try:
                part = self._socket.recv(count - len(parts))
            except OSError as error:
                raise ClosedError(str(error)) from error
            if not part:
                raise ClosedError("the end of the stream")
            parts += part
        return bytes(parts)
