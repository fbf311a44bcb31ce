"""Fleet views for programs: one that was recorded, or one that follows a fleet over its broker."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from ofl_iot.fleet_view.view import DeviceDetails, FleetView


@dataclass(frozen=True)
class RecordedFleet:
    """A fleet view that does not change: from a file, or of a run that is over. Implements `FleetSource`."""

    recorded: FleetView
    pages: dict[str, DeviceDetails] = field(default_factory=dict)

    def view(self) -> FleetView:
        """Return the recorded view."""
        return self.recorded

    def details(self, device: str) -> DeviceDetails | None:
        """Return the recorded details of a device, if there are any."""
        return self.pages.get(device)

    async def changed(self, after: int) -> int:
        """Return at once if the recorded view is newer, otherwise never."""
        if self.recorded.seq <= after:
            await asyncio.Event().wait()
        return self.recorded.seq
