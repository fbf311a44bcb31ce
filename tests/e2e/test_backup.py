"""Backups of parties that run; an old copy touches nothing at the broker, and what it advises works as written."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import pytest

from ofl_agents.cli import main
from ofl_iot.ids import COORDINATOR
from ofl_iot.roles.storage import Put
from ofl_iot.runtime.store import SqliteStore
from tests.conftest import MOSQUITTO, _open_mosquitto
from tests.e2e.processes import NAMES, Federation, audit_stores, until
from tests.e2e.test_processes import watching


async def ofl(*arguments: str) -> int:
    return await asyncio.to_thread(main, list(arguments))


def put_back(state: Path, name: str, backup: Path) -> None:
    """What docs/operations.md says: the copy in place of the store, its log removed."""
    for suffix in ("-wal", "-shm"):
        (state / f"{name}.sqlite{suffix}").unlink(missing_ok=True)
    (state / f"{name}.sqlite").write_bytes(backup.read_bytes())


@pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed")
def test_a_coordinator_and_a_device_go_on_from_backups_that_were_made_while_they_ran(tmp_path: Path) -> None:
    async def story() -> None:
        async with _open_mosquitto(tmp_path, 0) as port:
            federation = Federation(tmp_path, port, 0)
            state, coordinator = federation.state, federation.processes[COORDINATOR]
            async with federation.running(), watching(federation) as watch:
                await until(lambda: watch.round_no >= 2, federation)
                copies = {name: tmp_path / f"{name}.backup" for name in (COORDINATOR, NAMES[0])}
                at = ("--state", str(state))
                assert await ofl("coordinator", "backup", str(copies[COORDINATOR]), *at) == 0
                assert await ofl("agent", "backup", str(copies[NAMES[0]]), "--id", NAMES[0], *at) == 0
                assert all(stat.S_IMODE(copy.stat().st_mode) == 0o600 for copy in copies.values())
                backed_up = watch.round_no
                await until(lambda: watch.round_no >= backed_up + 3, federation)

                coordinator.kill()
                await coordinator.ended()
                newest = watch.manifest
                assert newest is not None
                put_back(state, COORDINATOR, copies[COORDINATOR])
                await coordinator.start()
                assert await coordinator.ended() == 2
                assert f"the broker holds round {newest.round_no} of this very coordinator" in coordinator.output
                async with watching(federation) as late:
                    await until(lambda: late.manifest is not None, federation)
                    assert late.manifest == newest, "an old copy touched the broker"

                assert "--take-over" in coordinator.output, "the advice"
                coordinator.arguments.append("--take-over")
                await coordinator.start()
                await until(lambda: watch.round_no > newest.round_no + 1, federation)
                coordinator.arguments.remove("--take-over")
                await coordinator.kill_and_restart()

                device = federation.processes[NAMES[0]]
                device.kill()
                await device.ended()
                thrown_away = len(federation.restored_agent(NAMES[0]).device.outbox.unsettled)
                put_back(state, NAMES[0], copies[NAMES[0]])
                await device.start()
                seen = watch.round_no
                await until(lambda: watch.round_no > seen + 2 and watch.statuses[NAMES[0]].online, federation)
            machine, agents = federation.restored()
            audit = audit_stores(machine, agents)
            assert audit.doubled == 0
            assert audit.lost <= thrown_away, "only what waited in the store that the copy replaced may be missing"

    asyncio.run(story())


def test_a_party_that_is_stopped_is_backed_up_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "copy.sqlite"
    with SqliteStore(tmp_path / "truck-1.sqlite") as store:
        store.apply([Put("t", 1, b"one")])
    assert main(["agent", "backup", str(file), "--state", str(tmp_path / "elsewhere")]) == 2
    assert main(["agent", "backup", str(file), "--state", str(tmp_path)]) == 0
    with SqliteStore(file) as copy:
        assert copy.load() == {"t": {1: b"one"}}
    assert main(["agent", "backup", str(file), "--state", str(tmp_path), "--id", "truck-1"]) == 2
    assert "overwrites nothing" in capsys.readouterr().err
    assert main(["agent", "backup", "--state", str(tmp_path), "--id", "truck-1"]) == 2
    assert main(["coordinator", "backup", str(tmp_path / "c"), "--state", str(tmp_path)]) == 2
    assert main(["agent"]) == 2


def test_a_copy_taken_between_two_transactions_holds_the_first_and_not_the_second(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "a.sqlite") as store:
        store.apply([Put("t", 1, b"one")])
        copied = store.copy()
        store.apply([Put("t", 2, b"two")])
    (tmp_path / "b.sqlite").write_bytes(copied)
    with SqliteStore(tmp_path / "b.sqlite") as copy:
        assert copy.load() == {"t": {1: b"one"}}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.sqlite", "b.sqlite"]
