"""A fleet is watched over a real broker; a recorded one is a source like it."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ofl_iot.errors import TransportError
from ofl_iot.fleet_view.source import FleetSource
from ofl_iot.fleet_view.view import decode_details, decode_view
from ofl_iot.ids import COORDINATOR, DeviceId, FederationId
from ofl_iot.protocol.fleet_notes import RoundNote
from ofl_iot.protocol.messages import Status
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.roles.commands import Publish
from ofl_iot.runtime.addressing import Wire
from ofl_iot.runtime.fleet_watch import RecordedFleet, watch_fleet
from ofl_iot.runtime.settings import FederationSettings, Settings
from ofl_iot.transport.settings import MqttSettings
from tests.links import linked
from tests.waiting import eventually

RECORDED = Path(__file__).parents[1] / "fleet_view" / "recorded"


async def test_a_recorded_fleet_answers_at_once_and_then_never_changes() -> None:
    details = decode_details((RECORDED / "truck-03.json").read_bytes())
    view = decode_view((RECORDED / "north-depot.json").read_bytes())
    source: FleetSource = RecordedFleet(view, {details.id: details})

    assert await source.changed(0) == source.view().seq
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(source.changed(source.view().seq), 0.01)
    assert source.details("truck-03") == details
    assert source.details("nobody") is None


@pytest.mark.parametrize("clients", [2])
def test_watchers_follow_a_fleet_over_a_real_broker_and_a_later_one_goes_on(
    clients: int, open_broker: Any, tmp_path: Path
) -> None:
    """Two watch at a time; the second life of the first shows what the first life saw."""
    file = tmp_path / "history.sqlite"
    wire = Wire(FederationId("depot"))
    status = Status(True, 1, 120, bytes(8), 100, software="0.2.0")
    note = RoundNote(3, 0, closed=True, encrypted=False, contributions=(), collect_s=1.0, aggregate_s=0.5)

    async def story() -> None:
        async with open_broker() as port, linked(port, "truck-1") as (link, _):
            settings = Settings(federation=FederationSettings(id="depot"), mqtt=MqttSettings(port=port))

            def say(kind: Kind, sender: str, message: Any) -> None:
                topic, payload = wire.outgoing(Publish(Topic(kind, DeviceId(sender)), message))
                assert link.publish(topic, payload, qos=1, retain=True)

            async with contextlib.AsyncExitStack() as stack:
                watches = [await stack.enter_async_context(watch_fleet(settings, file))]
                watches += [await stack.enter_async_context(watch_fleet(settings)) for _ in range(clients - 1)]
                for watch in watches:
                    assert (await watch.settled(20.0)).observer.link == "up"
                before = watches[0].view().seq
                say(Kind.STATUS, "truck-1", status)
                assert await asyncio.wait_for(watches[0].changed(before), 20) > before
                say(Kind.ROUND_NOTE, COORDINATOR, note)
                for watch in watches:
                    await eventually(lambda watch=watch: watch.view().rounds)
                    assert [each.id for each in watch.view().devices] == ["truck-1"]
                since_s = watches[0].view().devices[0].since_s
            say(Kind.STATUS, "truck-1", msgspec.structs.replace(status, online=False))
            async with watch_fleet(settings, file) as again:
                view = await again.settled(20.0)
                assert view.rounds[0].round_no == 3
                assert view.devices[0].state == "offline"
                assert view.devices[0].since_s != since_s
                assert "went offline" in view.events[0].text

    asyncio.run(story())


def test_without_a_broker_a_watch_says_so_in_time(free_port: int) -> None:
    settings = Settings(mqtt=MqttSettings(port=free_port))

    async def story() -> None:
        async with watch_fleet(settings) as watch:
            with pytest.raises(TransportError, match="no session at the broker within"):
                await watch.settled(0.2)
            assert watch.view().observer.link == "down"

    asyncio.run(story())
