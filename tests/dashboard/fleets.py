"""Fleet views for the tests: the recorded one, a thousand devices, one that tests change by hand."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec

from ofl_iot.fleet_view.view import DeviceDetails, FleetView, decode_details, decode_view

RECORDED = Path(__file__).parents[1] / "fleet_view" / "recorded"
REPLACE = msgspec.structs.replace


def recorded_view() -> FleetView:
    """The north depot: a device of each kind of trouble, in six clusters."""
    return decode_view((RECORDED / "north-depot.json").read_bytes())


def recorded_details() -> DeviceDetails:
    """The last day of truck-03, which trains another model than the federation."""
    return decode_details((RECORDED / "truck-03.json").read_bytes())


def large_view(count: int = 1000, clusters: int = 10) -> FleetView:
    """The recorded devices again and again, in more clusters."""
    view = recorded_view()
    letters = "ABCDEFGHJKLMNPQ"[:clusters]
    devices = [
        REPLACE(
            view.devices[number % len(view.devices)],
            id=f"truck-{number:04d}",
            cluster=letters[number % clusters],
            role="member",
        )
        for number in range(count)
    ]
    combs = tuple(
        REPLACE(
            view.clusters[0],
            id=letter,
            leader=f"truck-{place:04d}",
            members=count // clusters,
            online=count // clusters,
            deputies=(),
        )
        for place, letter in enumerate(letters)
    )
    return REPLACE(view, devices=tuple(devices), clusters=combs)


class ChangingFleet:
    """A fleet source whose view a test sets. Implements `FleetSource`."""

    def __init__(self, view: FleetView) -> None:
        self._view = view
        self._news = asyncio.Event()
        self.asked: list[str] = []

    def view(self) -> FleetView:
        return self._view

    def details(self, device: str) -> DeviceDetails | None:
        self.asked.append(device)
        return recorded_details() if device == "truck-03" else None

    async def changed(self, after: int) -> int:
        while self._view.seq <= after:
            await self._news.wait()
        return self._view.seq

    def set(self, **changes: Any) -> None:
        """Change the view; a second later."""
        self._view = REPLACE(self._view, **{"seq": self._view.seq + 1, "now_s": self._view.now_s + 1.0, **changes})
        self._news.set()
        self._news = asyncio.Event()

    def set_device(self, device: str, **changes: Any) -> None:
        """Change one device."""
        self.set(devices=tuple(REPLACE(d, **changes) if d.id == device else d for d in self._view.devices))
