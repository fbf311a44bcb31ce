"""A recorded fleet is a source like a live one: its view is there at once and never changes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ofl_iot.fleet_view.source import FleetSource
from ofl_iot.fleet_view.view import decode_details, decode_view
from ofl_iot.runtime.fleet_watch import RecordedFleet

RECORDED = Path(__file__).parents[1] / "fleet_view" / "recorded"


def test_a_recorded_fleet_answers_at_once_and_then_never_changes() -> None:
    details = decode_details((RECORDED / "truck-03.json").read_bytes())
    view = decode_view((RECORDED / "north-depot.json").read_bytes())
    source: FleetSource = RecordedFleet(view, {details.id: details})

    async def read() -> None:
        assert await source.changed(0) == source.view().seq
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(source.changed(source.view().seq), 0.01)

    asyncio.run(read())
    assert source.details("truck-03") == details
    assert source.details("nobody") is None
