"""docs/deploy.md does what it says: its blocks, in order, in one shell, in an empty folder."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.conftest import MOSQUITTO, _free_port
from tests.e2e.processes import OFL

DOCUMENT = Path(__file__).parents[2] / "docs" / "deploy.md"
ROUNDS = 4
LEARNT = 0.35
"""Naming one of the six states of a machine at random is right in 0.17 of all cases."""
DEADLINE_S = 240.0
"""Only reached when something is wrong; a busy machine may need much of it."""

pytestmark = [
    pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed"),
    pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed"),
]


def blocks() -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```$", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE)


def run(script: str, folder: Path) -> str:
    """What the script printed; it must succeed, and whatever it started ends with it."""
    assert MOSQUITTO is not None
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(OFL.parent), str(Path(MOSQUITTO).parent), os.environ["PATH"]]),
        "MQTT_PORT": str(_free_port()),
        "ENROLL_PORT": str(_free_port()),
        "ROUNDS": str(ROUNDS),
        "OMP_NUM_THREADS": "1",
    }
    printed = folder / "printed"
    with printed.open("wb") as output:
        shell = subprocess.Popen(  # noqa: S603  # our own document
            [str(shutil.which("bash")), "-eu", "-o", "pipefail", "-c", script],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            code = shell.wait(DEADLINE_S)
        finally:
            with contextlib.suppress(ProcessLookupError):  # all have ended, as they should
                os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
    logs = "\n".join(f"{log.name}: {log.read_text()[-600:]}" for log in sorted(folder.glob("*.log")))
    assert code == 0, f"{printed.read_text()}\n{logs}"
    return printed.read_text()


def test_the_walkthrough_ends_with_the_accuracy_and_nothing_secret_in_the_logs(tmp_path: Path) -> None:
    said = run("\n".join(blocks()), tmp_path)
    result = re.search(rf"rounds={ROUNDS} accuracy=(0\.\d+) .*doubled_chunks=0", said)
    assert result, said
    assert float(result[1]) > LEARNT
    assert re.search(r"truck-4 +revoked: stolen", said)
    assert len(re.findall(r"^enrolled ", said, re.MULTILINE)) == 6

    written = said + "".join(log.read_text() for log in tmp_path.glob("*.log"))
    assert "Traceback" not in written
    tokens = [file.read_text().strip() for file in tmp_path.glob("*.token")]
    private = [*tmp_path.glob("*/identity/key.pem"), *tmp_path.glob("*/identity/sealing.pem"), tmp_path / "ca/ca.key"]
    keys = [file.read_text().splitlines()[1] for file in private]
    assert (len(tokens), len(keys)) == (6, 12)
    assert not [secret for secret in (*tokens, *keys) if secret in written]


def test_every_command_of_the_page_stands_in_a_block_that_is_run() -> None:
    """Text that only looks like a command would not be tested."""
    text = DOCUMENT.read_text()
    fences = re.findall(r"^```(\w*)$", text, re.MULTILINE)[::2]
    assert fences.count("sh") == len(blocks()) > 5
    assert set(fences) == {"sh", ""}
