"""Where a party's local socket is: beside its store, reachable also where the path is longer than a socket's may be."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

MAX_PATH_BYTES = 107
"""`sun_path` has 108 bytes, the last one is zero."""


def socket_path(state: Path, name: str) -> Path:
    """Return the path of a party's socket in its state folder."""
    return state / f"{name}.sock"


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """Give a text that stands for the path and fits: through a descriptor of its folder if need be."""
    full = str(path.absolute())
    if len(os.fsencode(full)) <= MAX_PATH_BYTES:
        yield full
        return
    folder = os.open(path.absolute().parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def listen(path: Path, backlog: int = 16) -> socket.socket:
    """Bind a socket that only its owner may open, in place of one that a dead process left; OSError if it cannot be.

    The caller must know that no living party of this name uses the folder: the lock of its store says so.
    """
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise FileExistsError(f"{path} is in the way and no socket")
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        os.fchmod(listener.fileno(), 0o600)  # taken over by the file that `bind` makes, so it is never open to others
        _at(path, listener.bind)
        path.chmod(0o600)
        listener.listen(backlog)
        listener.setblocking(False)  # noqa: FBT003  # the form of the socket module
    except BaseException:
        listener.close()
        raise
    return listener


def connect(path: Path, timeout_s: float) -> socket.socket:
    """Connect to a party's socket; OSError if nobody listens."""
    visitor = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    visitor.settimeout(timeout_s)
    try:
        _at(path, visitor.connect)
    except BaseException:
        visitor.close()
        raise
    return visitor


def _at(path: Path, act: Callable[[str], None]) -> None:
    with _short(path) as text:
        act(text)
