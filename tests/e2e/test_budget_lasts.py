"""README's separate processes complete the rounds they ask for, with default settings and budget left."""

from __future__ import annotations

import asyncio
import re
import shlex
import signal
from pathlib import Path

import msgspec
import pytest

from ofl_iot.privacy.ledger import Ledger
from ofl_iot.roles.device.privacy_guard import TABLE
from ofl_iot.runtime.store import read_store
from tests.e2e.processes import OflProcess
from tests.e2e.test_processes import ofl_broker

README = Path(__file__).parents[2] / "README.md"
ASKED = 20
DEADLINE_S = 240.0
"""Only reached when something is wrong."""


def commands_as_written(port: int, folder: Path, rounds: int, interval_s: float) -> dict[str, OflProcess]:
    """The parties of README's section, by what they are called; only port, folder and pace of rounds are ours."""
    section = README.read_text().split("## Separate processes")[1].split("```")[1]
    processes: dict[str, OflProcess] = {}
    for line in section.strip().splitlines():
        words = shlex.split(line.rstrip("& "))
        assert words[0] == "ofl"
        if words[1] == "broker":
            continue
        written = [word.replace(f"round.count={ASKED}", f"round.count={rounds}") for word in words[1:]]
        place = written.index("--state") + 1
        written[place] = str(folder / written[place])
        name = Path(written[place]).name
        extra = ["--set", f"mqtt.port={port}", "--set", f"round.interval_s={interval_s}", "--set", "fleet.gather_s=1"]
        processes[name] = OflProcess([*written, *extra], folder / f"{name}.log")
    return processes


async def close_all_rounds(folder: Path, rounds: int, interval_s: float) -> None:
    async with ofl_broker(folder) as port:
        processes = commands_as_written(port, folder, rounds, interval_s)
        assert "coordinator" in processes
        assert len(processes) == 3
        try:
            for process in processes.values():
                await process.start()
            coordinator = processes["coordinator"]
            assert await asyncio.wait_for(coordinator._process.wait(), DEADLINE_S) == 0, coordinator.output  # type: ignore[union-attr]
            assert re.search(rf"rounds={rounds} ", coordinator.output), coordinator.output[-2000:]
        finally:
            for name, process in processes.items():
                if process.running:
                    process.kill(signal.SIGTERM)
                    assert await process.ended() == 0, name
    spent = 0
    for name in processes.keys() - {"coordinator"}:
        rows = read_store(folder / "state" / name / f"{name}.sqlite")[TABLE]
        ledger = Ledger.from_plain(msgspec.msgpack.decode(rows["ledger"]))
        share = ledger.steps_left / (ledger.steps_left + ledger.steps_spent)
        assert share > 0.7, f"{name} has {share:.0%} of its budget left"
        spent += ledger.steps_spent
    assert spent > 0, "who opened its ledger late may have trained nothing, but not both"


async def test_separate_processes_close_the_rounds_they_ask_for_in_small(tmp_path: Path) -> None:
    await close_all_rounds(tmp_path, rounds=5, interval_s=0.5)


@pytest.mark.slow
async def test_separate_processes_close_all_twenty_rounds(tmp_path: Path) -> None:
    await close_all_rounds(tmp_path, rounds=ASKED, interval_s=1.0)
