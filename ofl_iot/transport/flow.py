"""How much a connection may have on its way: about two seconds of what its link carries.

Whatever is in the kernel's send queue can be neither reordered nor withdrawn, and delays everything behind it. A link
of 20 kbit/s would otherwise hold a minute of data there. Fast links are left to the kernel's own tuning.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import sys

UNSENT_BYTES = 16 * 1024
"""Unsent bytes in the kernel above which a socket takes no more."""
HORIZON_S = 2.0
"""Seconds of data that may be on their way on a thin link."""
THIN_BYTES_S = 128 * 1024
"""Links of this rate and above are not limited."""
MIN_BUFFER_BYTES = 8 * 1024
_SIOCOUTQ = 0x5411
"""Linux: bytes in the send queue that the peer has not acknowledged."""
_MIN_SAMPLE_S = 0.2
FORGET_S = 60.0
"""A rate is forgotten when nothing has waited for so long."""


class SendRate:
    """Bytes a second that a connection delivers while data wait; None until that was seen."""

    def __init__(self) -> None:
        self.bytes_s: float | None = None
        self._at = 0.0
        self._delivered = 0
        self._waited_at = 0.0
        self._busy = False

    def sample(self, now: float, sent: int, unacknowledged: int) -> None:
        """Note the bytes written so far and how many of them the peer has not acknowledged."""
        delivered = sent - unacknowledged
        elapsed_s = now - self._at
        if self._busy and elapsed_s < _MIN_SAMPLE_S:
            return
        if unacknowledged:
            self._waited_at = now
        elif now - self._waited_at > FORGET_S:
            self.bytes_s = None
        if self._busy and unacknowledged:
            rate = max(0.0, (delivered - self._delivered) / elapsed_s)
            self.bytes_s = rate if self.bytes_s is None else (self.bytes_s + rate) / 2
        self._at, self._delivered, self._busy = now, delivered, unacknowledged > 0


def buffer_bytes(rate_bytes_s: float | None) -> int | None:
    """The send buffer for a link of this rate; None where the kernel's own tuning serves."""
    if rate_bytes_s is None or rate_bytes_s >= THIN_BYTES_S:
        return None
    return max(MIN_BUFFER_BYTES, int(HORIZON_S * rate_bytes_s))


def limit_unsent(sock: socket.socket) -> None:
    """Let the kernel call the socket writable only while little is unsent."""
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)


def limit_buffer(sock: socket.socket, size: int) -> None:
    """Bound what the kernel holds of a connection, unsent or unacknowledged."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)


def unacknowledged_bytes(sock: socket.socket) -> int:
    """Bytes the kernel holds for the peer; 0 where the system does not tell."""
    if not sys.platform.startswith("linux"):
        return 0
    import fcntl

    try:
        return int(struct.unpack("i", fcntl.ioctl(sock.fileno(), _SIOCOUTQ, b"\0\0\0\0"))[0])
    except OSError:
        return 0
