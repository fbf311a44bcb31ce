"""The asking side of a party's local socket: plain blocking calls, each within a deadline."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ofl_iot.errors import DecodeError, OflError
from ofl_iot.local.address import connect, socket_path
from ofl_iot.local.messages import (
    HEAD_BYTES,
    MAX_BODY_BYTES,
    MAX_REPLY_BYTES,
    BackupReply,
    BackupRequest,
    ModelReply,
    ModelRequest,
    Refused,
    Reply,
    Request,
    StatusReply,
    StatusRequest,
    Which,
    decode_reply,
    frame,
    parse_head,
)

TIMEOUT_S = 30.0
_Reply = TypeVar("_Reply", StatusReply, ModelReply, BackupReply)


class NotRunningError(OflError):
    """Nobody listens at a party's local socket."""


class LocalError(OflError):
    """A running party did not answer as asked; the message says why."""


@dataclass(frozen=True)
class LocalParty:
    """A party that runs on this machine, known by its state folder and name."""

    state: Path
    name: str
    timeout_s: float = TIMEOUT_S
    """For the connection, and for every silence after it."""

    def status(self) -> StatusReply:
        """Ask how it fares."""
        return self._ask(StatusRequest(), StatusReply)[0]

    def model(self, which: Which = "federation") -> tuple[ModelReply, bytes]:
        """Ask for a copy of its model: what it is, and its values."""
        return self._ask(ModelRequest(which), ModelReply)

    def backup(self) -> bytes:
        """Ask for a copy of its store."""
        return self._ask(BackupRequest(), BackupReply)[1]

    def _ask(self, request: Request, expected: type[_Reply]) -> tuple[_Reply, bytes]:
        path = socket_path(self.state, self.name)
        try:
            with connect(path, self.timeout_s) as visitor:
                with contextlib.suppress(BrokenPipeError):  # a party that refuses at once says why all the same
                    visitor.sendall(frame(request))
                reply = _read_reply(visitor)
                body = _read(visitor, reply.body_bytes)
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise NotRunningError(f"{self.name} does not run here: nobody listens at {path}") from error
        except PermissionError as error:
            raise LocalError(f"{path} belongs to another user: ask as that user or as root") from error
        except (OSError, DecodeError) as error:
            raise LocalError(f"{self.name} did not answer at {path}: {error}") from error
        if isinstance(reply, Refused):
            raise LocalError(f"{self.name} refused: {reply.reason}")
        if not isinstance(reply, expected):
            raise LocalError(f"{self.name} answered something else than was asked: use the same version of ofl-iot")
        return reply, body


def _read_reply(visitor: socket.socket) -> Reply:
    size = parse_head(_read(visitor, HEAD_BYTES), MAX_REPLY_BYTES)
    return decode_reply(_read(visitor, size))


def _read(visitor: socket.socket, size: int) -> bytes:
    if size > MAX_BODY_BYTES:
        raise DecodeError(f"a body of {size} bytes: at most {MAX_BODY_BYTES} are read")
    read = bytearray()
    while len(read) < size:
        piece = visitor.recv(min(1 << 20, size - len(read)))
        if not piece:
            raise ConnectionResetError(f"the connection ended after {len(read)} of {size} bytes")
        read += piece
    return bytes(read)
