"""A service whose cache is empty begins with the kernels that were compiled at installation."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ofl_iot.jobs.prepared_kernels import CACHE_VARIABLE, MODULES, prepare, take_prepared

FIRST_ROUND = f"""
import sys, time
sys.prefix = {{prefix!r}}
from ofl_iot.jobs.prepared_kernels import prepared_folder, take_prepared
take_prepared(prepared_folder())
{"; ".join(f"import {module}" for module in MODULES)}
print(time.process_time())
"""


def cpu_s(prefix: Path, cache: Path) -> float:
    """CPU seconds of a cold process until every kernel is at hand, imports included."""
    cache.mkdir()
    environment = {**os.environ, CACHE_VARIABLE: str(cache)}
    program = FIRST_ROUND.format(prefix=str(prefix))
    command = [sys.executable, "-c", program]
    told = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)  # noqa: S603
    return float(told.stdout)


@pytest.mark.slow
def test_a_cold_service_has_its_kernels_within_two_cpu_seconds(tmp_path: Path) -> None:
    prepare(tmp_path / "share" / "ofl-iot" / "kernels")
    warm = cpu_s(tmp_path, tmp_path / "first")
    assert warm <= 2.0
    assert cpu_s(tmp_path / "nowhere", tmp_path / "second") > 2 * warm


def test_only_an_empty_cache_is_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared, cache = tmp_path / "prepared", tmp_path / "cache"
    prepared.mkdir()
    (prepared / "kernel.nbi").write_bytes(b"index")
    monkeypatch.delenv(CACHE_VARIABLE, raising=False)
    take_prepared(prepared)
    monkeypatch.setenv(CACHE_VARIABLE, str(cache))
    take_prepared(prepared)
    assert (cache / "kernel.nbi").read_bytes() == b"index"
    (cache / "kernel.nbi").write_bytes(b"newer")
    take_prepared(prepared)
    assert (cache / "kernel.nbi").read_bytes() == b"newer"
