"""A federation in the clear computes on no polynomial: it loads no kernels and compiles none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
from ofl_agents.cli import main
quick = ["--runtime", "virtual", "--devices", "4", "--rounds", "1", "--set", "privacy.mode=off"]
status = main(["sim", *quick, "--set", "protection.mode=clear", "--out", sys.argv[1]])
print("loaded", sorted({"numba", "llvmlite", "ofl_iot.crypto.kernels", "dp_accounting", "scipy"} & set(sys.modules)))
sys.exit(status)
"""


def test_a_whole_run_in_the_clear_loads_neither_numba_nor_its_kernels(tmp_path: Path) -> None:
    done = subprocess.run(  # noqa: S603  # our own interpreter
        [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "loaded []"
