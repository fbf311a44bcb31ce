"""`ofl decryptor` as a process beside the others, over a real broker, and killed in mid-run."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from ofl_iot.ids import COORDINATOR, DECRYPTOR
from ofl_iot.roles.decryption.decryptor import TABLE
from ofl_iot.runtime.store import SqliteStore
from tests.e2e.processes import NAMES, Federation, OflProcess, audit_stores, until
from tests.e2e.test_processes import ofl_broker, watching
from tests.e2e.test_sim import ofl

ROUNDS = 6


async def test_a_federation_survives_kill_9_of_its_decryptor(tmp_path: Path) -> None:
    async with ofl_broker(tmp_path) as port:
        federation = Federation(tmp_path, port, ROUNDS, "threshold", "decryptor")
        async with federation.running(), watching(federation) as watch:
            decryptor = federation.processes[DECRYPTOR]
            for _ in range(3):
                seen = watch.round_no
                await until(lambda seen=seen: watch.round_no > seen, federation)
                await decryptor.kill_and_restart()
            coordinator = federation.processes[COORDINATOR]
            assert await coordinator.ended() == 0, coordinator.output
            closing = re.search(r"rounds=(\d+) accuracy=([\d.]+) .*doubled_chunks=(\d+)\n", coordinator.output)
            assert closing is not None, coordinator.output
            assert (int(closing[1]), int(closing[3])) == (ROUNDS, 0)
            assert float(closing[2]) > 0.5
            for name in (*NAMES, DECRYPTOR):
                federation.processes[name].kill(signal.SIGTERM)
                assert await federation.processes[name].ended() == 0, federation.processes[name].output
        machine, agents = federation.restored()
        audit = audit_stores(machine, agents)
        assert (audit.lost, audit.doubled) == (0, 0)
        store = SqliteStore(federation.state / f"{DECRYPTOR}.sqlite")
        assert store.load()[TABLE]["answer"], "it was the decryptor that decrypted"
        store.close()


async def test_a_decryptor_that_nobody_would_ask_says_what_to_set(tmp_path: Path) -> None:
    process = OflProcess(["decryptor", "--state", str(tmp_path / "state")], tmp_path / "decryptor.log")
    await process.start()
    assert await process.ended() == 2
    assert "protection.server_dec" in process.output


def test_lean_rounds_refuse_a_decryptor_and_say_what_to_set(tmp_path: Path) -> None:
    done = ofl(tmp_path, "sim", "--set", "protection.server_dec=decryptor")
    assert done.returncode == 2
    assert "set params = 'main', or leave server_dec out" in done.stderr


@pytest.mark.parametrize("runtime", ["live", "virtual"])
def test_a_simulation_brings_its_decryptor_along(runtime: str, tmp_path: Path) -> None:
    small = ("--devices", "6", "--rounds", "2", "--set", "round.interval_s=1.2", "--set", "privacy.mode=off")
    small += ("--set", "protection.params=main", "--set", "fleet.clusters=2")
    entrusted = ("--set", "protection.server_dec=decryptor")
    done = ofl(tmp_path, "--log-level", "info", "sim", "--runtime", runtime, *small, *entrusted, "--json", "s.json")
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "s.json").read_text())
    assert (summary["rounds"], summary["clusters"], summary["lost_chunks"], summary["doubled_chunks"]) == (2, 2, 0, 0)
