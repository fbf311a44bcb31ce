"""`--initial FILE`: a federation that starts from pre-trained weights."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ofl_agents.build import card_of
from ofl_iot.errors import ConfigError
from ofl_iot.ids import COORDINATOR
from ofl_iot.models.files import TENSOR_FILES, check_suffix, read_tensors
from ofl_iot.models.named import NamedTensors, Vector, vector_of
from ofl_iot.models.stored import TABLE
from ofl_iot.protocol.parts import digest_of
from ofl_iot.roles.coordinator.global_model import TABLE as GLOBAL
from ofl_iot.roles.storage import Put
from ofl_iot.runtime.store import read_store
from ofl_iot.workloads.base import Workload

_KEY = "initial"
_CONVERT_S = 300.0


@dataclass(frozen=True)
class Initial:
    """Pre-trained values, and what is stored so that a restart with the same file is known as one."""

    values: Vector

    @property
    def remember(self) -> Put:
        """Digest of the values the federation started from."""
        return Put(TABLE, _KEY, digest_of(self.values.tobytes()))


def initial_from(file: Path, judge: Workload, state: Path) -> Initial:
    """Return the values of a file for the app's model; ConfigError if they do not fit or come too late."""
    values = vector_of(_read(file), card_of(judge), judge.size, str(file))
    initial = Initial(values)
    _check_not_begun(file, initial, state / f"{COORDINATOR}.sqlite")
    return initial


def _check_not_begun(file: Path, initial: Initial, store: Path) -> None:
    """Refuse another beginning; the same file again is a restart, as after a crash of the service."""
    if not store.exists():
        return
    stored = read_store(store)
    if "manifest" in stored.get(GLOBAL, {}) and stored.get(TABLE, {}).get(_KEY) != initial.remember.value:
        raise ConfigError(
            f"--initial {file}: the federation already has a model, and it did not start from this file. Start without "
            "--initial to go on, or with another state folder and federation.id to begin anew"
        )


def _read(file: Path) -> NamedTensors:
    """Read the file; a .pt in a process of its own, so that this one stays without torch."""
    if check_suffix(file, TENSOR_FILES) != ".pt" or not file.is_file():
        return read_tensors(file)
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder, "initial.npz")
        done = subprocess.run(  # noqa: S603  # our own interpreter and module
            [sys.executable, "-m", "ofl_agents", "model", "export", str(file), "--out", str(plain)],
            capture_output=True,
            text=True,
            timeout=_CONVERT_S,
            check=False,
        )
        if done.returncode:
            raise ConfigError(done.stderr.strip().removeprefix("ofl: ") or f"{file} cannot be read")
        return read_tensors(plain)
