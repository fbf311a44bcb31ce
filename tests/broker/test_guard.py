"""The access policy in the embedded broker: every topic tried by everybody."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ofl_agents.cli import main
from ofl_broker import guard
from ofl_broker.embedded import EmbeddedBroker
from ofl_broker.program import serve
from ofl_iot.ids import COORDINATOR
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.transport.mqtt import MqttLink, Will
from tests.broker.access import (
    DEVICE,
    FEDERATION,
    LEADER,
    PARTIES,
    TOPICS,
    WATCHER,
    Door,
    echo_of,
    may_be_published_by,
    may_be_received_by,
    present,
    published_by,
    received_by,
    refused,
)
from tests.waiting import eventually


@pytest.fixture(autouse=True)
def observer(monkeypatch: pytest.MonkeyPatch) -> None:
    """One may do everything and watches."""

    def unless_observer(ask: Any) -> Any:
        return lambda topics, name, topic: name == WATCHER or ask(topics, name, topic)

    monkeypatch.setattr(guard, "_ASKED", {action: unless_observer(ask) for action, ask in guard._ASKED.items()})


def doors(port: int) -> dict[str, Door]:
    return dict.fromkeys((*PARTIES, WATCHER), Door(port))


@pytest.mark.parametrize("name", PARTIES)
async def test_everything_a_party_may_publish_gets_through_and_nothing_else(name: str) -> None:
    async with EmbeddedBroker(federation=FEDERATION) as broker:
        assert await published_by(name, doors(broker.port)) == may_be_published_by(name)


@pytest.mark.parametrize("name", PARTIES)
async def test_everything_a_party_may_read_reaches_it_and_nothing_else(name: str) -> None:
    async with EmbeddedBroker(federation=FEDERATION) as broker:
        assert await received_by(name, doors(broker.port)) == may_be_received_by(name)


@pytest.mark.parametrize("name", ["#", "+", "Truck-1", "truck 1"])
async def test_a_name_that_is_no_id_is_not_let_in(name: str, caplog: pytest.LogCaptureFixture) -> None:
    assert "refused by the broker" in await refusal(MqttLink, name, caplog)


async def test_one_name_as_user_and_another_as_client_is_not_let_in(caplog: pytest.LogCaptureFixture) -> None:
    assert "refused by the broker" in await refusal(MqttLink, DEVICE, caplog, username=LEADER)


async def test_a_last_will_is_no_way_around_the_rules(caplog: pytest.LogCaptureFixture) -> None:
    will = Will(TOPICS.build(Topic(Kind.STATUS, LEADER)), b"gone")
    assert "refused by the broker" in await refusal(lambda *a: MqttLink(*a, will), DEVICE, caplog)


async def test_what_is_retained_for_others_is_shown_to_nobody_else() -> None:
    """amqtt alone offers it to whoever connects."""

    secret = TOPICS.build(Topic(Kind.ASSIGNMENT, COORDINATOR, LEADER))

    async with EmbeddedBroker(federation=FEDERATION) as broker:
        door = Door(broker.port)
        async with (
            present(door, LEADER, (secret,)) as (_, told),
            present(door, COORDINATOR) as (coordinator, _),
        ):
            assert coordinator.publish(secret, b"lead", qos=1, retain=True)
            await eventually(lambda: told.payloads == [b"lead"])
            async with present(door, DEVICE, (secret, echo_of(DEVICE))) as (device, heard):
                await eventually(lambda: echo_of(DEVICE) in device.granted)
                assert device.publish(echo_of(DEVICE), b"me", qos=1)
                await eventually(lambda: heard.payloads == [b"me"])
                assert device.dropped == 0


async def test_the_program_keeps_a_federations_policy(free_port: int) -> None:

    stop = asyncio.Event()
    serving = asyncio.create_task(serve("127.0.0.1", free_port, stop, FEDERATION))
    async with present(Door(free_port), DEVICE, (echo_of(LEADER), echo_of(DEVICE))) as (link, _):
        await eventually(lambda: link.granted)
        assert link.granted == {echo_of(DEVICE)}
    stop.set()
    await asyncio.wait_for(serving, 5)


def test_a_federation_that_cannot_be_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["broker", "--federation", "North Sea"]) == 2
    assert "federation id 'North Sea'" in capsys.readouterr().err


async def refusal(make: Any, name: str, caplog: pytest.LogCaptureFixture, **changes: Any) -> str:
    """What the link says of a broker that does not let it in."""
    async with EmbeddedBroker(federation=FEDERATION) as broker:
        return await refused(make(Door(broker.port).settings(**changes), name), caplog)
