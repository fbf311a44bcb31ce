"""A swarm of real agents in two processes learns with a coordinator, stops when told, and goes on from its state."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

from tests.conftest import _open_amqtt
from tests.e2e.processes import OflProcess, until

AGENTS = 6
QUICK = """
[federation]
id = "swarm"
app = "digits"
[mqtt]
port = {port}
[training]
pause_s = 0.05
[privacy]
mode = "off"
[upload]
resend_s = 1.0
[round]
count = 2
interval_s = 0.3
deadline_s = 20.0
[fleet]
min_devices = 6
gather_s = 0.2
clusters = 2
"""


async def rounds_of(folder: Path, open_broker: Any) -> tuple[str, dict[str, Any]]:
    """Run two rounds; returns the coordinator's last words and the swarm's tally."""
    async with open_broker() as port:
        config = folder / "ofl.toml"
        config.write_text(QUICK.format(port=port))
        common = ["--config", str(config), "--state", str(folder / "state")]
        many = ["--agents", str(AGENTS), "--processes", "2", "--broker", f"mqtt://127.0.0.1:{port}"]
        swarm = OflProcess(["--log-level", "info", "swarm", *many, *common], folder / "swarm.log")
        coordinator = OflProcess(["coordinator", *common], folder / "coordinator.log")
        await swarm.start()
        await coordinator.start()
        try:
            assert await coordinator.ended() == 0, coordinator.output
            await until(lambda: swarm.output.count("swarm started") >= 2)
            swarm.kill(signal.SIGTERM)
            assert await swarm.ended() == 0, swarm.output[-2000:]
        finally:
            swarm.kill()
            coordinator.kill()
        return coordinator.output, json.loads(swarm.output.splitlines()[-1])


async def test_a_swarm_learns_and_says_what_it_did(tmp_path: Path) -> None:
    said, tally = await rounds_of(tmp_path, _open_amqtt)
    assert "rounds=2" in said
    assert "doubled_chunks=0" in said
    assert (tally["agents"], tally["processes"], tally["store_failures"]) == (AGENTS, 2, 0)
    assert tally["connections"] >= AGENTS
    assert tally["publishes"] > 0
    stores = sorted(path.name for path in (tmp_path / "state").glob("swarm-*.sqlite"))
    assert stores == ["swarm-0-of-2.sqlite", "swarm-1-of-2.sqlite"]
