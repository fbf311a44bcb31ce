"""A federation over three NATS nodes, with certificates and the access policy, that loses a node in mid-round."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ofl_broker.nats import ACCESS
from ofl_iot.protocol.topics import Kind
from ofl_iot.transport.link import Delivery, LinkEvent
from tests.e2e.identities import WATCHER, Identities, ends_in_good_order
from tests.e2e.processes import NAMES, Federation, Watch, audit_stores, until
from tests.nats import NATS, WITHOUT_NATS, NatsCluster

pytestmark = pytest.mark.skipif(NATS is None, reason=WITHOUT_NATS)

NODES = 3
RIGHTS = f'    {{ user: "CN={WATCHER}", permissions: {{ publish: [], subscribe: [">"] }} }}\n  ]'


@dataclass
class RoundWatch(Watch):
    """Sees rounds open, too."""

    opened: int = 0

    @property
    def patterns(self) -> list[str]:
        return [*super().patterns, self._wire.topics.pattern(Kind.ROUND_OPEN)]

    def __call__(self, event: LinkEvent) -> None:
        if isinstance(event, Delivery) and event.topic == self._wire.topics.pattern(Kind.ROUND_OPEN):
            event.ack()
            self.opened += 1
        else:
            super().__call__(event)


class Site:
    """Three nodes, a federation whose parties each begin at another one, and a watcher."""

    def __init__(self, folder: Path, rounds: int, protection: str, qos: int = 1) -> None:
        self.identities = Identities(folder / "pki")
        (folder / "devices").write_text("\n".join(NAMES))
        chosen = [f"--devices={folder / 'devices'}", "--set=federation.id=e2e"]
        self.cluster = NatsCluster(folder / "nats", NODES, *self.identities.broker_options, *chosen)
        for access in (folder / "nats").glob(f"*/{ACCESS}"):
            access.write_text(access.read_text().replace("  ]", RIGHTS, 1))
        self.federation = Federation(folder, self.cluster.ports[0], rounds, protection)
        self.identities.give_to(self.federation, self.cluster.hosts, rotate=True)
        for process in self.federation.processes.values():
            process.arguments.append(f"--set=mqtt.qos={qos}")
        self.watch = RoundWatch(self.federation.settings)

    def node_of(self, name: str) -> int:
        """Where a party connected first."""
        return list(self.federation.processes).index(name) % NODES

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with (
            self.cluster.running(),
            self.identities.watching(self.watch, self.cluster.hosts),
            self.federation.running(),
        ):
            yield

    async def next_round_opens(self) -> None:
        seen = self.watch.opened
        await until(lambda: self.watch.opened > seen, self.federation)

    async def rounds_closed(self, more: int) -> None:
        seen = self.watch.round_no
        await until(lambda: self.watch.round_no >= seen + more, self.federation)

    def audit(self) -> None:
        machine, agents = self.federation.restored()
        audit = audit_stores(machine, agents)
        assert (audit.lost, audit.doubled) == (0, 0)
        assert all(agent.device.outbox.next_seq > 1 for agent in agents.values())


@pytest.mark.parametrize("qos", [0, pytest.param(1, marks=pytest.mark.slow)])
async def test_a_node_that_holds_sessions_is_killed_in_mid_round_and_nothing_is_lost(qos: int, tmp_path: Path) -> None:
    rounds = 4

    site = Site(tmp_path, rounds, "clear", qos)
    async with site.running():
        await site.rounds_closed(1)
        await site.next_round_opens()
        await site.cluster.kill(site.node_of(site.watch.leader()))
        await site.rounds_closed(1)
        await ends_in_good_order(site.federation, rounds)
    site.audit()


@pytest.mark.slow
@pytest.mark.parametrize("qos", [0, 1])
async def test_every_node_is_killed_in_turn_under_encryption_and_nothing_is_lost(qos: int, tmp_path: Path) -> None:
    rounds = 12

    site = Site(tmp_path, rounds, "threshold", qos)
    async with site.running():
        for number in range(NODES):
            await site.rounds_closed(2)
            await site.next_round_opens()
            await site.cluster.kill(number)
            await site.rounds_closed(1)
            await site.cluster.start(number)
        await ends_in_good_order(site.federation, rounds)
    site.audit()
