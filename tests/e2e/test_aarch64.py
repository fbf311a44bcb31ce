"""An agent for aarch64, under qemu-user, trains and leads a round by itself with an app of one's own."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.conftest import _open_amqtt
from tests.e2e.processes import OflProcess

PYTHON = os.environ.get("AARCH64_PYTHON", "")
"""What `tools/aarch64_python.sh` makes."""
DEADLINE_S = 600.0
APP = """
from ofl_iot import Folder, NumpyApp, accuracy

files = Folder("*.csv")
app = NumpyApp("small", "logistic", 4, 2, samples=files, judge=files, metrics={"accuracy": accuracy})
"""
SETTINGS = """
[mqtt]
port = {port}
[round]
count = 1
interval_s = 2.0
deadline_s = 120.0
[fleet]
min_devices = 1
gather_s = 1.0
[download]
timeout_s = 60.0
"""


class EmulatedAgent(OflProcess):
    """`ofl agent` by the interpreter for aarch64."""

    program = (PYTHON, "-m", "ofl_agents")


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON, reason="AARCH64_PYTHON names no interpreter: tools/aarch64_python.sh makes one")
async def test_an_agent_on_aarch64_takes_part_in_a_round(tmp_path: Path) -> None:
    (tmp_path / "small.py").write_text(APP)
    (tmp_path / "data").mkdir()
    rows = "\n".join(f"{n % 2},{n % 3},{n % 5},{n % 7},{n % 2}" for n in range(400))
    (tmp_path / "data" / "all.csv").write_text(f"a,b,c,d,label\n{rows}\n")
    config = tmp_path / "ofl.toml"
    common = [f"--app={tmp_path / 'small.py'}:app", f"--data={tmp_path / 'data'}", "--config", str(config)]

    state = ["--id", "board", "--state", str(tmp_path / "board")]
    board = EmulatedAgent(["--log-level", "info", "agent", *state, *common], tmp_path / "board.log")
    coordinator = OflProcess(["coordinator", *common, "--state", str(tmp_path / "c")], tmp_path / "coordinator.log")
    async with _open_amqtt() as port:
        config.write_text(SETTINGS.format(port=port))
        await coordinator.start()
        await board.start()
        try:
            assert coordinator._process is not None
            await asyncio.wait_for(coordinator._process.wait(), DEADLINE_S)
            told = (coordinator.output[-800:], board.output[-800:])
            assert "rounds=1 " in coordinator.output, told
            assert "leading party=board" in board.output, told
        finally:
            for process in (board, coordinator):
                process.kill()
                await process.ended()
