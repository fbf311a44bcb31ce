"""The Python of docs/models.md runs as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
POWER = """
from ofl_iot import Folder, NumpyApp, r2
app = NumpyApp(name="power", network="linear", inputs=4, outputs=1, samples=Folder(), metrics={"r2": r2})
"""
READINGS = """
import numpy as np
def next_batch():
    for seed in range(3):
        x = np.random.default_rng(seed).normal(size=(5, 4))
        yield x, x.sum(axis=1)
"""


def test_every_python_block_runs(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 2
    (tmp_path / "power.py").write_text(POWER)
    (tmp_path / "readings.py").write_text(READINGS)
    (tmp_path / "ofl.toml").write_text("[mqtt]\nport = 1\n")
    (tmp_path / "samples").mkdir()
    for number in range(4):
        x = np.random.default_rng(number).normal(size=(60, 4))
        np.savez(tmp_path / "samples" / f"{number}.npz", x=x, y=x.sum(axis=1))
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", "\n".join(blocks)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "no link" in done.stdout
    assert {"power.npz", "r2.png"} <= {path.name for path in tmp_path.iterdir()}
