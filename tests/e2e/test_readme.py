"""README's commands do what it says: each is run as written, here or by the test that is named for it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.processes import OFL

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DEADLINE_S = 900.0
"""Only reached when something is wrong; 500 devices take minutes on a busy machine."""

QUICK = {"ofl config show", "ofl new pump-monitor --task anomaly"}
LONG = {
    "ofl sim --devices 64 --rounds 20",
    "ofl sim --app digits",
    "ofl sim --runtime virtual --devices 500",
    "ofl sim --runtime virtual --churn",
    "ofl sim --set privacy.mode=off --json run.json",
    "ofl sim --set protection.mode=clear",
    "ofl chaos --schedules 100",
    "ofl bench opportunity",
}
WITH_DATA = {
    "ofl data split mnist --data DIR --figure split.png",
    "ofl reproduce table3 --quick --data DIR",
}
"""Run where $OFL_DATA names a folder with the public data sets."""
OWN_APP = "ofl sim --app vibration.py:app --data samples/ --devices 16"
ELSEWHERE = {
    "ofl coordinator --app vibration.py:app --data holdout/ --state state/c": "tests/e2e/test_own_app.py",
    "ofl agent --app vibration.py:app --data /var/lib/sensor --id truck-017 --state state/17": (
        "tests/e2e/test_own_app.py"
    ),
    "ofl model export --state state/c --out net.safetensors": "tests/e2e/test_own_app.py",
    "ofl model export --state DIR --out net.onnx": "tests/e2e/test_model_app.py",
    "ofl data fetch mnist cora --data DIR": "tests/agents/test_data.py",
    "ofl broker --port 1883": "tests/e2e/test_budget_lasts.py",
    "ofl coordinator --set round.count=20 --set fleet.min_devices=2 --state state/coordinator": (
        "tests/e2e/test_budget_lasts.py"
    ),
    "ofl agent --id truck-017 --part 1/2 --state state/truck-017": "tests/e2e/test_budget_lasts.py",
    "ofl agent --id truck-018 --part 2/2 --state state/truck-018": "tests/e2e/test_budget_lasts.py",
}
"""Commands that need other parties, files or a network, and the test that runs them with these."""


def blocks(page: Path, language: str = "") -> list[str]:
    """The page's code blocks in a language."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    return [code for marked, code in found if marked == language]


def commands() -> list[str]:
    """The `ofl` lines of README's code blocks, without comments and ampersands, blanks made single."""
    lines = (line.partition("#")[0].rstrip(" &") for block in blocks(README) for line in block.splitlines())
    return [" ".join(line.split()) for line in lines if line.startswith("ofl ")]


def run(command: str, folder: Path) -> None:
    done = subprocess.run(  # noqa: S603  # our own document
        [OFL, *shlex.split(command)[1:]], cwd=folder, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    assert "Traceback" not in done.stderr


def test_every_command_is_run_by_a_test() -> None:
    assert set(commands()) == QUICK | LONG | WITH_DATA | {OWN_APP} | ELSEWHERE.keys()
    assert not [file for file in ELSEWHERE.values() if not (ROOT / file).is_file()]


@pytest.mark.parametrize("command", sorted(QUICK))
def test_a_quick_command(command: str, tmp_path: Path) -> None:
    run(command, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("command", sorted(LONG))
def test_a_long_command(command: str, tmp_path: Path) -> None:
    run(command, tmp_path)


@pytest.mark.slow
def test_the_app_of_the_first_screen(tmp_path: Path) -> None:
    """Its network is spelled out in docs/your-model.md; the windows are sines of four speeds in noise."""
    (tmp_path / "vibration.py").write_text(blocks(ROOT / "docs" / "your-model.md", "python")[0])
    (tmp_path / "samples").mkdir()
    rng = np.random.default_rng(0)
    for number in range(4):
        speeds = rng.integers(0, 4, 900)
        waves = np.sin(np.outer(speeds + 1, np.linspace(0, 20, 256)))[:, None]
        noisy = (waves + rng.normal(0, 0.3, waves.shape)).astype(np.float32)
        np.savez(tmp_path / "samples" / f"{number}.npz", x=noisy, y=speeds)
    run(OWN_APP, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("command", sorted(WITH_DATA))
def test_a_command_on_public_data(command: str, tmp_path: Path) -> None:
    data = os.environ.get("OFL_DATA")
    if not data:
        pytest.skip("$OFL_DATA names no folder of data sets")
    run(command.replace("DIR", shlex.quote(data)), tmp_path)
