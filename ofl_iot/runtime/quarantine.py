"""Messages that a machine cannot digest: remembered, so that one of them cannot stop a party again and again.

A broker delivers again what was not acknowledged, and retained messages at every subscription. A message whose handling
raised twice, each time in a machine fresh from the store, is acknowledged, and dropped whenever it comes again.
"""

from __future__ import annotations

import hashlib
import traceback
from pathlib import Path

from ofl_iot.protocol.codec import encode
from ofl_iot.roles.events import Arrived

MAX_STRIKES = 2
MAX_KEPT = 256
"""Messages remembered; the oldest makes room."""
_FRAMES = 3


class Quarantine:
    """How often each message was more than its machine could take, as far as it is remembered."""

    def __init__(self) -> None:
        self._strikes: dict[bytes, int] = {}

    def strike(self, event: Arrived) -> bool:
        """Note that handling it raised; whether that was once too often."""
        fingerprint = _fingerprint(event)
        strikes = self._strikes.pop(fingerprint, 0) + 1
        if len(self._strikes) >= MAX_KEPT:
            del self._strikes[next(iter(self._strikes))]
        self._strikes[fingerprint] = strikes
        return strikes >= MAX_STRIKES

    def holds(self, event: Arrived) -> bool:
        """Whether this very message is not to be handled any more."""
        suspected = any(strikes >= MAX_STRIKES for strikes in self._strikes.values())
        return suspected and self._strikes.get(_fingerprint(event), 0) >= MAX_STRIKES


def culprit(error: BaseException) -> str:
    """What was raised where, innermost call first; not its text, which may quote what was being handled."""
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
    where = " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(frames))
    return f"{type(error).__name__} at {where}"


def _fingerprint(event: Arrived) -> bytes:
    return hashlib.sha256(repr(event.topic).encode() + encode(event.message)).digest()
