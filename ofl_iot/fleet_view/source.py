"""Where a rendering takes the fleet view from: an observer that runs, or a view that was recorded."""

from __future__ import annotations

from typing import Protocol

from ofl_iot.fleet_view.view import DeviceDetails, FleetView


class FleetSource(Protocol):
    """A fleet view that may change; every call happens on the loop's thread."""

    def view(self) -> FleetView:
        """Return what is known now; `seq` is the same as long as nothing changed but the time."""
        ...

    def details(self, device: str) -> DeviceDetails | None:
        """Return a device's last day, or None if the fleet has no such device."""
        ...

    async def changed(self, after: int) -> int:
        """Wait until the view's `seq` is above `after`; return it.

        Changes that come close together are one: a reader that sleeps between two calls misses none.
        """
        ...
