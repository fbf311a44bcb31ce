"""Tells when the network of this machine changes, so that a link that waits for it tries again at once."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import weakref
from collections.abc import Callable
from typing import Protocol

_LINK, _IPV4_ADDRESS, _IPV4_ROUTE, _IPV6_ADDRESS, _IPV6_ROUTE = 0x1, 0x10, 0x40, 0x100, 0x400
_GROUPS = _LINK | _IPV4_ADDRESS | _IPV4_ROUTE | _IPV6_ADDRESS | _IPV6_ROUTE
"""Multicast groups of rtnetlink(7): links, addresses and routes."""
_READ_BYTES = 64 * 1024
_LOCAL = {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN, errno.EADDRNOTAVAIL, errno.ENODEV}


class NetworkWatch(Protocol):
    """Where a link learns that trying again may be worth it."""

    def listen(self, changed: Callable[[], None]) -> None:
        """Call `changed` on the loop's thread after every change, until `forget`."""
        ...

    def forget(self, changed: Callable[[], None]) -> None:
        """Stop calling it."""
        ...


class NetlinkWatch:
    """Changes of links, addresses and routes by rtnetlink; silent where a system or sandbox has none."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[], None]] = []
        self._socket: socket.socket | None = None

    def listen(self, changed: Callable[[], None]) -> None:
        """Call `changed` after every change of the network."""
        self._listeners.append(changed)
        if self._socket is None:
            self._open()

    def forget(self, changed: Callable[[], None]) -> None:
        """Stop calling it; without listeners the socket is closed."""
        with contextlib.suppress(ValueError):
            self._listeners.remove(changed)
        if not self._listeners and self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None

    def _open(self) -> None:
        if not hasattr(socket, "AF_NETLINK"):
            return
        try:
            watched = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
        except OSError:
            return
        try:
            watched.settimeout(0)
            watched.bind((0, _GROUPS))
        except OSError:
            watched.close()
            return
        self._socket = watched
        asyncio.get_running_loop().add_reader(watched.fileno(), self._changed)

    def _changed(self) -> None:
        assert self._socket is not None  # noqa: S101  # the loop calls only while it is open
        with contextlib.suppress(BlockingIOError):
            while True:
                try:
                    if not self._socket.recv(_READ_BYTES):
                        break
                except OSError as error:
                    if error.errno != errno.ENOBUFS:  # more changes than the kernel kept: still a change
                        raise
        for changed in tuple(self._listeners):
            changed()


_watches: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, NetlinkWatch] = weakref.WeakKeyDictionary()


def netlink_watch() -> NetlinkWatch:
    """The running loop's watch: all links of a process share one socket."""
    return _watches.setdefault(asyncio.get_running_loop(), NetlinkWatch())


def is_local(error: OSError) -> bool:
    """Whether a connection failed because this machine has no network, not because of the broker."""
    return isinstance(error, socket.gaierror) or error.errno in _LOCAL
