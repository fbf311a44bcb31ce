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
_BUFFERED_BYTES = 64 * 1024
"""So much may vanish at once in buffers on the way; only more shows that a link is faster than it seemed."""
FORGET_S = 900.0
"""A rate is forgotten when nothing has waited for so long."""


class LinkRate:
    """Bytes a second that a link carries while data wait, either way; None until that was seen.

    What does not move at all is an outage and tells nothing of the rate.
    """

    def __init__(self) -> None:
        self.bytes_s: float | None = None
        self._seen_at = 0.0
        self._at = 0.0
        self._delivered = 0
        self._busy = False

    def connected(self, now: float) -> None:
        """Another connection: bytes are counted anew, what is known of the link stays."""
        self._at, self._delivered, self._busy = now, 0, False

    def sample(self, now: float, sent: int, unacknowledged: int) -> None:
        """Note the bytes written so far and how many of them the peer has not acknowledged."""
        delivered = sent - unacknowledged
        elapsed_s = now - self._at
        if self._busy and elapsed_s < _MIN_SAMPLE_S:
            return
        if self._busy and unacknowledged:
            self._seen((delivered - self._delivered) / elapsed_s, now)
        elif self.bytes_s is not None:
            buffered = _BUFFERED_BYTES + self.bytes_s * max(elapsed_s, 1.0)
            if now - self._seen_at > FORGET_S or delivered - self._delivered > buffered:
                self.bytes_s = None  # nothing was seen for long, or it carries more than was seen
        self._at, self._delivered, self._busy = now, delivered, unacknowledged > 0

    def coming_in(self, size: int, elapsed_s: float, now: float) -> None:
        """So many bytes of one message came in that time, and it is not complete yet."""
        if elapsed_s >= _MIN_SAMPLE_S:
            self._seen(size / elapsed_s, now)

    def _seen(self, rate: float, now: float) -> None:
        if rate > 0:
            self.bytes_s = rate if self.bytes_s is None else (self.bytes_s + rate) / 2
            self._seen_at = now


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
