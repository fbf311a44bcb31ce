"""The same seed gives the same run in every process, whatever seed Python's hashes have there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
RUN = """
from tests.chaos.test_exactly_once import ROUGH, TallyWorld
for seed in (170, 171, 172):
    fleet = TallyWorld(devices=5, seed=seed, faults=ROUGH)
    fleet.world.run(lambda: False, limit_s=50.0)
    print(fleet.world.broker.messages, [sorted(fleet.released(name).items()) for name in fleet.names])
"""


def test_a_run_under_faults_does_not_depend_on_the_order_of_sets() -> None:
    def run(hash_seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
        return subprocess.run(  # noqa: S603  # our own interpreter
            [sys.executable, "-c", RUN], env=environment, capture_output=True, text=True, check=True, timeout=120
        ).stdout

    first = run("0")
    assert len(first.splitlines()) == 3
    assert run("1") == first
