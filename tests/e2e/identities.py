"""Certificates for a federation of processes, and a watcher that watches it with one of its own."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from ofl_iot.ids import COORDINATOR
from ofl_iot.transport.mqtt import MqttLink, MqttSettings, TlsSettings
from tests.certificates import Authority
from tests.e2e.processes import NAMES, Federation, Watch, until

WATCHER = "watcher"


class Identities:
    """An authority that has certified every party, the broker and a watcher."""

    def __init__(self, folder: Path, *others: str) -> None:
        self._authority = Authority(folder)
        for name in (*NAMES, COORDINATOR, WATCHER, "broker", *others):
            self._authority.issue(name)

    @property
    def broker_options(self) -> list[str]:
        """For `ofl broker profile`."""
        at = self._authority.path
        return [f"--ca={at('ca.pem')}", f"--cert={at('broker.pem')}", f"--key={at('broker.key')}"]

    def give_to(self, federation: Federation, hosts: Sequence[str], *, rotate: bool) -> None:
        """Let every party use its certificate; with `rotate` each begins at another host."""
        for number, (name, process) in enumerate(federation.processes.items()):
            first = number % len(hosts) if rotate else 0
            settings = {"hosts": json.dumps([*hosts[first:], *hosts[:first]]), **self.files(name)}
            process.arguments += [f"--set=mqtt.{key}={value}" for key, value in settings.items()]

    @contextlib.asynccontextmanager
    async def watching(self, watch: Watch, hosts: Sequence[str]) -> AsyncIterator[None]:
        """The watcher's link."""
        tls = TlsSettings(**{key.removeprefix("tls."): value for key, value in self.files(WATCHER).items()})
        settings = MqttSettings(hosts=tuple(hosts), tls=tls, backoff_min_s=0.05, backoff_max_s=0.3)
        link = MqttLink(settings, WATCHER)
        for pattern in watch.patterns:
            link.subscribe(pattern, 1)
        link.start(watch)
        try:
            await until(lambda: link.all_granted)
            yield
        finally:
            await link.stop()

    def files(self, name: str) -> dict[str, str]:
        """The certificate of a party, as settings below `mqtt`."""
        at = self._authority.path
        return {"tls.ca": at("ca.pem"), "tls.cert": at(f"{name}.pem"), "tls.key": at(f"{name}.key")}


async def ends_in_good_order(federation: Federation, rounds: int) -> None:
    """The coordinator closed every round and says that nothing was counted twice."""
    coordinator = federation.processes[COORDINATOR]
    assert await coordinator.ended() == 0, coordinator.output
    assert f"rounds={rounds} " in coordinator.output
    assert "doubled_chunks=0" in coordinator.output
