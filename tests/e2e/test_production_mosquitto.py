"""A federation over the production profile of mosquitto: certificates, the access policy, and a broker that dies."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ofl_agents.cli import main
from ofl_broker.mosquitto import ACL, CONFIG
from tests.conftest import MOSQUITTO, _free_port, _until_listening
from tests.e2e.identities import WATCHER, Identities, ends_in_good_order
from tests.e2e.processes import Federation, Watch, audit_stores, until

pytestmark = pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed")

ROUNDS = 4


class Production:
    """One mosquitto from `ofl broker profile mosquitto`, and a watcher beside its policy."""

    def __init__(self, folder: Path, identities: Identities) -> None:
        self.port = _free_port()
        self._folder = folder
        where = [f"--out={folder}", "--host=127.0.0.1", f"--port={self.port}", "--set=federation.id=e2e"]
        me = ["--user=root"] if os.geteuid() == 0 else []
        assert main(["broker", "profile", "mosquitto", *where, *identities.broker_options, *me]) == 0
        with (folder / ACL).open("a") as acl:
            acl.write(f"\nuser {WATCHER}\ntopic read ofl/#\n")
        self._process: asyncio.subprocess.Process | None = None

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        assert MOSQUITTO is not None
        with (self._folder / "log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(MOSQUITTO, "-c", self._folder / CONFIG, stderr=log)
        try:
            await _until_listening(self.port)
            yield
        finally:
            await self.kill()

    async def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            self._process.kill()
            await self._process.wait()
            self._process = None


@pytest.mark.parametrize("successor", [pytest.param("itself", marks=pytest.mark.slow), "standby"])
async def test_the_broker_is_killed_and_its_successor_goes_on_without_loss(successor: str, tmp_path: Path) -> None:
    """Promises are kept end to end: what a broker forgot since its last save, or all that it knew, may go."""

    identities = Identities(tmp_path / "pki")
    first, standby = (Production(tmp_path / name, identities) for name in ("first", "standby"))
    hosts = [f"127.0.0.1:{each.port}" for each in (first, standby)]
    federation = Federation(tmp_path, first.port, ROUNDS)
    identities.give_to(federation, hosts, rotate=False)
    watch = Watch(federation.settings)
    async with first.running(), identities.watching(watch, hosts), federation.running():
        await until(lambda: watch.round_no >= 1, federation)
        await first.kill()
        async with (first if successor == "itself" else standby).running():
            await ends_in_good_order(federation, ROUNDS)
    audit = audit_stores(*federation.restored())
    assert (audit.lost, audit.doubled) == (0, 0)
