"""What a round cost on the wire: the growth of what devices say they sent and took, from round to round."""

from __future__ import annotations

from ofl_iot.fleet_view.rounds import RoundBytes
from ofl_iot.protocol.fleet_notes import Vitals


class RoundTraffic:
    """Sums growth by role. Devices tell it at their heartbeats: rounds shorter than these get it in lumps."""

    def __init__(self) -> None:
        self._whole = False
        """Whether the present round was heard from its beginning."""
        self._reset()

    def heard(self, before: Vitals | None, now: Vitals, *, leads: bool) -> None:
        """Add what a device sent and took since it spoke last; a device that began anew counts from zero."""
        if before is None:
            return
        up = now.bytes_up - before.bytes_up if now.bytes_up >= before.bytes_up else now.bytes_up
        down = now.bytes_down - before.bytes_down if now.bytes_down >= before.bytes_down else now.bytes_down
        if leads:
            self._leaders_up += up
        else:
            self._devices_up += up
        self._down += down
        self._told = True

    def round_ended(self) -> RoundBytes:
        """Return the sums and begin anew; unknown for a round not heard whole, and where nobody told anything."""
        known = self._whole and self._told
        sums = RoundBytes(devices_up=self._devices_up, leaders_up=self._leaders_up, down=self._down)
        self._whole = True
        self._reset()
        return sums if known else RoundBytes()

    def _reset(self) -> None:
        self._devices_up = self._leaders_up = self._down = 0
        self._told = False
