"""A federation behind a network that resets and stalls: the rounds go on, the books are right."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from ofl_agents.app import open_app
from ofl_agents.build import Parties
from ofl_agents.sim.audit import audit_chunks
from ofl_broker.embedded import EmbeddedBroker
from ofl_iot.ids import COORDINATOR, DeviceId
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.roles.agent import AgentMachine
from ofl_iot.roles.coordinator.machine import CoordinatorMachine
from ofl_iot.runtime.addressing import Wire
from ofl_iot.runtime.live import Equipment, LiveParty
from ofl_iot.runtime.settings import Settings
from ofl_iot.runtime.settings_file import load_settings
from ofl_iot.runtime.store import SqliteStore
from ofl_iot.transport.mqtt import MqttLink, Will
from tests.e2e.processes import NAMES, PARTS, QUICK, until
from tests.netfaults import TcpProxy

ROUNDS = 8


def live_parties(settings: Settings, folder: Path, executor: ThreadPoolExecutor) -> dict[DeviceId, LiveParty]:
    """The parties of a federation in this process."""
    parties = Parties(settings)
    learning = open_app(settings).fleet(PARTS, repeats=False)
    plans: dict[DeviceId, Any] = {COORDINATOR: parties.coordinator(learning.judge)}
    for number, (name, workload) in enumerate(zip(NAMES, learning.devices, strict=True)):
        plans[name] = parties.agent(name, workload, "", np.random.default_rng(number))
    made = {}
    for name, plan in plans.items():
        wire = Wire(parties.federation)
        will = Will(*plan.will) if name != COORDINATOR else None
        link = MqttLink(settings.mqtt, name, will, echo_topic=wire.topics.build(Topic(Kind.ECHO, name)))
        store = SqliteStore(folder / f"{name}.sqlite")
        made[name] = LiveParty(name, plan.make, Equipment(link, store, plan.toolbox, wire, executor))
    return made


@contextlib.asynccontextmanager
async def running(parties: dict[DeviceId, LiveParty]) -> AsyncIterator[CoordinatorMachine]:
    tasks = [asyncio.create_task(party.run(), name=party.name) for party in parties.values()]
    coordinator = parties[COORDINATOR].machine
    assert isinstance(coordinator, CoordinatorMachine)
    try:
        yield coordinator
    finally:
        for party in parties.values():
            party.stop()
        await asyncio.gather(*tasks)


async def test_resets_and_stalls_cost_time_but_no_chunk(tmp_path: Path) -> None:
    config = tmp_path / "ofl.toml"
    with ThreadPoolExecutor(2) as executor:
        async with EmbeddedBroker() as broker, TcpProxy(broker.port) as proxy:
            config.write_text(
                QUICK.format(
                    port=proxy.port, rounds=ROUNDS, protection="clear", server_dec="coordinator", params="lean"
                )
            )
            settings = load_settings(Settings, [config], {}, {}).settings
            parties = live_parties(settings, tmp_path, executor)
            async with running(parties) as coordinator:
                await break_the_network_after_each_round(proxy, coordinator)
                await until(lambda: coordinator.finished)
    agents = {name: parties[name].machine for name in NAMES}
    assert all(isinstance(agent, AgentMachine) for agent in agents.values())
    audit = audit_chunks(coordinator, agents)  # type: ignore[arg-type]
    assert coordinator.counter.completed == ROUNDS
    assert (audit.lost, audit.doubled) == (0, 0)


async def break_the_network_after_each_round(proxy: Any, coordinator: CoordinatorMachine) -> None:
    """Reset everything, stall until links call themselves deaf, then cut one side only."""
    await until(lambda: coordinator.counter.completed >= 1)
    proxy.reset()
    await until(lambda: coordinator.counter.completed >= 2)
    accepted = proxy.accepted
    proxy.stall()
    await until(lambda: proxy.accepted > accepted + PARTS)  # everyone gave up its silent connection
    proxy.resume()
    proxy.reset()
    await until(lambda: coordinator.counter.completed >= 3)
    accepted = proxy.accepted
    proxy.half_open("client")
    await until(lambda: proxy.accepted > accepted + PARTS)
    await until(lambda: coordinator.counter.completed >= 4)
    proxy.refuse()
    proxy.reset()
    accepted = proxy.accepted
    await until(lambda: proxy.accepted > accepted + 2 * PARTS)
    proxy.resume()
