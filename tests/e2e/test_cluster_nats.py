"""A federation over three NATS nodes, with certificates and the access policy, that loses a node in mid-round."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from broker.nats import ACCESS
from ofl_iot.ids import COORDINATOR
from ofl_iot.protocol.topics import Kind
from ofl_iot.transport.link import Delivery, LinkEvent
from ofl_iot.transport.mqtt import MqttLink, MqttSettings, TlsSettings
from tests.certificates import Authority
from tests.e2e.processes import NAMES, Federation, Watch, audit_stores, until
from tests.nats import NATS, WITHOUT_NATS, NatsCluster

pytestmark = pytest.mark.skipif(NATS is None, reason=WITHOUT_NATS)

NODES = 3
OBSERVER = "observer"
RIGHTS = f'    {{ user: "CN={OBSERVER}", permissions: {{ publish: [], subscribe: [">"] }} }}\n  ]'


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
    """Three nodes, a federation whose parties each begin at another one, and an observer."""

    def __init__(self, folder: Path, rounds: int, protection: str) -> None:
        self.authority = Authority(folder / "pki")
        for name in (*NAMES, COORDINATOR, OBSERVER, "broker"):
            self.authority.issue(name)
        (folder / "devices").write_text("\n".join(NAMES))
        at = self.authority.path
        files = [f"--ca={at('ca.pem')}", f"--cert={at('broker.pem')}", f"--key={at('broker.key')}"]
        chosen = [f"--devices={folder / 'devices'}", "--set=federation.id=e2e"]
        self.cluster = NatsCluster(folder / "nats", NODES, *files, *chosen)
        for access in (folder / "nats").glob(f"*/{ACCESS}"):
            access.write_text(access.read_text().replace("  ]", RIGHTS, 1))
        self.federation = Federation(folder, self.cluster.ports[0], rounds, protection)
        for number, (name, process) in enumerate(self.federation.processes.items()):
            settings = {"hosts": self.hosts_from(number), **self._identity(name)}
            process.arguments += [f"--set=mqtt.{key}={value}" for key, value in settings.items()]
        self.watch = RoundWatch(self.federation.settings)

    def hosts_from(self, number: int) -> str:
        """The addresses as a setting, beginning with another one for each number."""
        first = number % NODES
        return json.dumps([*self.cluster.hosts[first:], *self.cluster.hosts[:first]])

    def node_of(self, name: str) -> int:
        """Where a party connected first."""
        return list(self.federation.processes).index(name) % NODES

    def _identity(self, name: str) -> dict[str, str]:
        at = self.authority.path
        return {"tls.ca": at("ca.pem"), "tls.cert": at(f"{name}.pem"), "tls.key": at(f"{name}.key")}

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        tls = TlsSettings(**{key.removeprefix("tls."): value for key, value in self._identity(OBSERVER).items()})
        waits = {"backoff_min_s": 0.05, "backoff_max_s": 0.3}
        link = MqttLink(MqttSettings(hosts=self.cluster.hosts, tls=tls, **waits), OBSERVER)
        for pattern in self.watch.patterns:
            link.subscribe(pattern, 1)
        async with self.cluster.running():
            link.start(self.watch)
            try:
                await until(lambda: link.granted >= set(self.watch.patterns))
                async with self.federation.running():
                    yield
            finally:
                await link.stop()

    async def next_round_opens(self) -> None:
        seen = self.watch.opened
        await until(lambda: self.watch.opened > seen, self.federation)

    async def rounds_closed(self, more: int) -> None:
        seen = self.watch.round_no
        await until(lambda: self.watch.round_no >= seen + more, self.federation)

    async def ends_with_nothing_lost(self, rounds: int) -> None:
        coordinator = self.federation.processes[COORDINATOR]
        assert await coordinator.ended() == 0, coordinator.output
        assert f"rounds={rounds} " in coordinator.output
        assert "doubled_chunks=0" in coordinator.output

    def audit(self) -> None:
        machine, agents = self.federation.restored()
        audit = audit_stores(machine, agents)
        assert (audit.lost, audit.doubled) == (0, 0)
        assert all(agent.device.outbox.next_seq > 1 for agent in agents.values())


def test_a_node_that_holds_sessions_is_killed_in_mid_round_and_nothing_is_lost(tmp_path: Path) -> None:
    rounds = 4

    async def story() -> None:
        site = Site(tmp_path, rounds, "clear")
        async with site.running():
            await site.rounds_closed(1)
            await site.next_round_opens()
            await site.cluster.kill(site.node_of(site.watch.leader()))
            await site.rounds_closed(1)
            await site.ends_with_nothing_lost(rounds)
        site.audit()

    asyncio.run(story())


@pytest.mark.slow
def test_every_node_is_killed_in_turn_under_encryption_and_nothing_is_lost(tmp_path: Path) -> None:
    rounds = 12

    async def story() -> None:
        site = Site(tmp_path, rounds, "threshold")
        async with site.running():
            for number in range(NODES):
                await site.rounds_closed(2)
                await site.next_round_opens()
                await site.cluster.kill(number)
                await site.rounds_closed(1)
                await site.cluster.start(number)
            await site.ends_with_nothing_lost(rounds)
        site.audit()

    asyncio.run(story())
