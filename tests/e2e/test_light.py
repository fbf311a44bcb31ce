"""An agent is light: quick to import, small in memory, and asleep when there is nothing to do."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from tests.conftest import _open_amqtt
from tests.e2e.processes import OflProcess, until

MOST_IMPORT_S = 1.0
MOST_BYTES = 80_000_000
MOST_CPU = 0.01
MOST_WAKEUPS_A_SECOND = 25.0
IMPORT = """
import time
wall, cpu = time.perf_counter(), time.process_time()
import ofl_agents.cli, ofl_agents.commands.agent
print(time.perf_counter() - wall, time.process_time() - cpu)
"""


def test_an_agent_is_imported_in_less_than_a_second() -> None:
    """Of processor time: the machine may be busy. The first run fills the page cache and does not count."""
    runs = [
        subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True, timeout=60)  # noqa: S603
        for _ in range(4)
    ]
    wall, cpu = zip(*(map(float, run.stdout.split()) for run in runs[1:]), strict=True)
    told = f"cpu {sorted(cpu)}, wall {sorted(wall)}"
    assert statistics.median(cpu) < MOST_IMPORT_S, told


@dataclass(frozen=True)
class Usage:
    """What an idle agent took of the machine."""

    rss_bytes: int
    cpu_share: float
    wakeups_a_second: float


async def usage_of(agent: OflProcess, seconds: float) -> Usage:
    """Measured from outside, over some seconds."""
    assert agent._process is not None
    process = psutil.Process(agent._process.pid)
    began, cpu, switches = time.monotonic(), process.cpu_times(), process.num_ctx_switches()
    await asyncio.sleep(seconds)
    took, cpu_after, switches_after = time.monotonic() - began, process.cpu_times(), process.num_ctx_switches()
    busy = cpu_after.user + cpu_after.system - cpu.user - cpu.system
    return Usage(process.memory_info().rss, busy / took, (switches_after.voluntary - switches.voluntary) / took)


PART = ("--part", "1/8")


async def idle_agent(open_broker: Any, folder: Path, seconds: float, learns: tuple[str, ...] = PART) -> Usage:
    """A device with the default privacy and protection, linked, without an assignment; its ledger is open."""
    async with open_broker() as port:
        options = ["--id", "truck-1", *learns, "--state", str(folder / "state"), "--set", f"mqtt.port={port}"]
        agent = OflProcess(["--log-level", "info", "agent", *options], folder / "agent.log")
        await agent.start()
        try:
            await until(lambda: "link up" in agent.output and "resources limit" in agent.output)
            assert agent._process is not None
            me = psutil.Process(agent._process.pid)
            # The accountant has answered, and an app of one's own stays.
            await until(lambda: [is_app(child) for child in me.children()] == [True] * (learns is not PART))
            return await usage_of(agent, seconds)
        finally:
            agent.kill()
            await agent.ended()


def is_app(child: psutil.Process) -> bool:
    """Whether it is the process of an agent's app."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return "ofl_iot.apps.child" in child.cmdline()
    return False


TORCH_APP = """
from torch import nn
from ofl_iot import Folder, TorchApp

app = TorchApp("tiny", lambda: nn.Linear(8, 2), nn.functional.cross_entropy, samples=Folder("*.npz"))
"""


async def test_an_agent_whose_app_needs_torch_stays_small_itself(tmp_path: Path) -> None:
    """The app's own process has torch in it, the agent's has not."""
    (tmp_path / "data").mkdir()
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(300, 8)).astype(np.float32), rng.integers(2, size=300)
    np.savez(tmp_path / "data" / "some.npz", x=x, y=y)
    (tmp_path / "tiny.py").write_text(TORCH_APP)
    learns = (f"--app={tmp_path / 'tiny.py'}:app", f"--data={tmp_path / 'data'}")
    usage = await idle_agent(_open_amqtt, tmp_path, 1.0, learns)
    assert usage.rss_bytes < MOST_BYTES


async def test_an_idle_agent_is_small_and_hardly_wakes_up(tmp_path: Path) -> None:
    usage = await idle_agent(_open_amqtt, tmp_path, 3.0)
    assert usage.rss_bytes < MOST_BYTES
    assert usage.wakeups_a_second < MOST_WAKEUPS_A_SECOND


@pytest.mark.slow
async def test_an_idle_agent_takes_less_than_a_hundredth_of_a_processor(open_broker: Any, tmp_path: Path) -> None:
    usage = await idle_agent(open_broker, tmp_path, 40.0)
    assert usage.cpu_share < MOST_CPU
    assert usage.rss_bytes < MOST_BYTES
