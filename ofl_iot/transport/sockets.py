"""TCP and TLS connections that are opened without blocking the loop, and count what passes."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from typing import Any

from ofl_iot.transport.flow import LinkRate, buffer_bytes, limit_buffer, limit_unsent, unacknowledged_bytes
from ofl_iot.transport.settings import Address

CLOSED_BY_BROKER = "closed by the broker"
_READ_BYTES = 64 * 1024
MAX_BUFFER_BYTES = 4 * 2**20
"""Send buffer of a link that was thin and has become fast: the kernel no longer tunes it."""


class CountedSocket:
    """A connected non-blocking socket that reads ahead, counts bytes and remembers why it failed.

    paho asks for a packet's header byte by byte; reading ahead turns that into one system call.
    """

    def __init__(self, raw: socket.socket) -> None:
        self._raw = raw
        self._ahead = b""
        self._taken = 0
        self._buffer: int | None = None
        """Bound of the send buffer; None: the kernel's own."""
        self.bytes_sent = 0
        self.bytes_received = 0
        self.rate = LinkRate()
        self.fault: str | None = None

    @property
    def readable_now(self) -> bool:
        """Whether bytes wait here that the operating system no longer announces."""
        if self.closed:
            return False
        tls_bytes = self._raw.pending() if isinstance(self._raw, ssl.SSLSocket) else 0
        return self._taken < len(self._ahead) or tls_bytes > 0

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._raw.fileno() < 0

    def recv(self, buffer_size: int) -> bytes:
        """Up to `buffer_size` bytes; empty once the peer closed."""
        if self._taken == len(self._ahead):
            self._ahead, self._taken = self._read(), 0
        part = self._ahead[self._taken : self._taken + buffer_size]
        self._taken += len(part)
        return part

    def _read(self) -> bytes:
        try:
            data = self._raw.recv(_READ_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except OSError as error:
            self.fault = explain(error)
            raise
        if not data:
            self.fault = CLOSED_BY_BROKER
        self.bytes_received += len(data)
        return data

    def send(self, buffer: Any) -> int:
        """Send what the operating system takes of `buffer`; how many bytes that was."""
        try:
            sent = self._raw.send(buffer)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except OSError as error:
            self.fault = explain(error)
            raise
        self.bytes_sent += sent
        return sent

    def delivered(self, now: float) -> int:
        """Bytes the peer has acknowledged; also measures the rate and bounds what is on its way on a thin link.

        Where TLS adds to what is sent, the difference counts as not delivered until all is.
        """
        if self.closed:
            return self.bytes_sent
        unacknowledged = unacknowledged_bytes(self._raw)
        self.rate.sample(now, self.bytes_sent, unacknowledged)
        size = buffer_bytes(self.rate.bytes_s)
        if size is None and self._buffer is not None:
            size = MAX_BUFFER_BYTES
        if size is not None and size != self._buffer:
            limit_buffer(self._raw, size)
            self._buffer = size
        return self.bytes_sent - unacknowledged

    def close(self) -> None:
        """Close the connection; twice is once."""
        self._raw.close()

    def fileno(self) -> int:
        """The descriptor the loop watches."""
        return self._raw.fileno()

    def setblocking(self, flag: bool) -> None:  # noqa: FBT001 -- the name and form paho calls
        """Only the non-blocking mode exists here."""
        self._raw.setblocking(flag)


async def open_socket(address: Address, tls: ssl.SSLContext | None) -> CountedSocket:
    """Connect to the first of the host's addresses that answers; raises OSError if none does."""
    problem = OSError(f"{address.host} has no address")
    for family, _, _, _, target in await _resolve(address):
        raw = socket.socket(family, socket.SOCK_STREAM)
        try:
            raw.settimeout(0)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            limit_unsent(raw)
            await asyncio.get_running_loop().sock_connect(raw, target)
            if tls is not None:
                raw = tls.wrap_socket(raw, server_hostname=address.host, do_handshake_on_connect=False)
                await _shake_hands(raw)
        except OSError as error:
            raw.close()
            problem = error
        except BaseException:
            raw.close()
            raise
        else:
            return CountedSocket(raw)
    raise problem


def explain(error: OSError) -> str:
    """What went wrong, in the system's words."""
    if error.errno is None or isinstance(error, (ssl.SSLError, socket.gaierror)):
        return error.strerror or str(error)
    return os.strerror(error.errno)


async def _resolve(address: Address) -> list[Any]:
    """Look the host up; only a real name needs a thread."""
    try:
        return socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        return await asyncio.get_running_loop().getaddrinfo(*address, type=socket.SOCK_STREAM)


async def _shake_hands(tls_socket: ssl.SSLSocket) -> None:
    """Do the TLS handshake, waiting in the loop whenever the peer has to answer."""
    while True:
        try:
            tls_socket.do_handshake()
        except ssl.SSLWantReadError:  # noqa: PERF203 -- that is how it asks
            await _ready(tls_socket, write=False)
        except ssl.SSLWantWriteError:
            await _ready(tls_socket, write=True)
        else:
            return


async def _ready(sock: socket.socket, *, write: bool) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    descriptor = sock.fileno()
    watch, unwatch = (loop.add_writer, loop.remove_writer) if write else (loop.add_reader, loop.remove_reader)
    watch(descriptor, lambda: None if ready.done() else ready.set_result(None))
    try:
        await ready
    finally:
        unwatch(descriptor)
