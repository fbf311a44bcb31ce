"""Kernels that were compiled when ofl-iot was installed, so that no leader compiles them before its first round."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

MODULES = ("ofl_iot.crypto.kernels", "ofl_iot.crypto.sampling_kernels", "ofl_iot.crypto.lean.kernels")
CACHE_VARIABLE = "NUMBA_CACHE_DIR"


def prepared_folder() -> Path:
    """Return where this environment's compiled kernels are; services read them and cannot write there."""
    return Path(sys.prefix, "share", "ofl-iot", "kernels")


def prepare(folder: Path, timeout_s: float = 600.0) -> None:
    """Compile every kernel for this machine into `folder`; raises OSError or SubprocessError."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o755)
    program = "; ".join(f"import {module}" for module in MODULES)
    environment = {**os.environ, CACHE_VARIABLE: str(folder)}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=timeout_s)  # noqa: S603


def take_prepared(folder: Path) -> None:
    """Fill an empty cache of this process with the kernels that `prepare` made; without a cache do nothing."""
    cache = os.environ.get(CACHE_VARIABLE)
    if not cache or not folder.is_dir() or folder == Path(cache):
        return
    with contextlib.suppress(OSError):  # then they are compiled, as everywhere else
        if not any(Path(cache).glob("*")):
            shutil.copytree(folder, cache, dirs_exist_ok=True)
