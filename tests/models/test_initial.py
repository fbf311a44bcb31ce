"""`--initial`: pre-trained weights by name, refused where they do not fit or come too late."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ofl_agents.build import Parties
from ofl_agents.models.initial import initial_from
from ofl_iot.errors import ConfigError
from ofl_iot.models.files import write_tensors
from ofl_iot.models.named import NamedTensors
from ofl_iot.roles.commands import Persist
from ofl_iot.roles.events import Started
from ofl_iot.runtime.settings import Settings
from ofl_iot.runtime.store import SqliteStore
from ofl_iot.workloads.digits import digits_federation


@pytest.fixture(name="judge", scope="module")
def digits_judge() -> Any:
    return digits_federation(1, 0)[1]


def write(path: Path, values: np.ndarray) -> Path:
    write_tensors(path, NamedTensors({"parameters": values}))
    return path


@pytest.mark.parametrize("suffix", ["npz", "safetensors", "pt"])
def test_a_federation_starts_from_the_values_of_a_file(suffix: str, judge: Any, tmp_path: Path) -> None:
    values = np.linspace(-1, 1, judge.size, dtype=np.float32)
    initial = initial_from(write(tmp_path / f"net.{suffix}", values), judge, tmp_path)
    machine = Parties(Settings()).coordinator(judge, initial=initial.values).make()
    assert np.array_equal(machine.model, values)


def test_values_that_do_not_fit_are_refused(judge: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"parameters is 3 in .*, 2410 in the app's model"):
        initial_from(write(tmp_path / "net.npz", np.zeros(3)), judge, tmp_path)
    with pytest.raises(ConfigError, match="there is no file"):
        initial_from(tmp_path / "none.pt", judge, tmp_path)
    (tmp_path / "bad.pt").write_bytes(b"no torch file")
    with pytest.raises(ConfigError, match="cannot be read as pt"):
        initial_from(tmp_path / "bad.pt", judge, tmp_path)


def test_a_federation_that_has_begun_takes_no_other_beginning_but_a_restart(judge: Any, tmp_path: Path) -> None:
    first = write(tmp_path / "first.npz", np.ones(judge.size, np.float32))
    other = write(tmp_path / "other.npz", np.zeros(judge.size, np.float32))
    initial = initial_from(first, judge, tmp_path)
    machine = Parties(Settings()).coordinator(judge, initial=initial.values).make()
    with SqliteStore(tmp_path / "coordinator.sqlite") as store:
        store.apply([initial.remember])
        for command in machine.handle(Started({}), 0.0):
            if isinstance(command, Persist):
                store.apply(command.ops)
    assert np.array_equal(initial_from(first, judge, tmp_path).values, initial.values)
    with pytest.raises(ConfigError, match="already has a model"):
        initial_from(other, judge, tmp_path)
