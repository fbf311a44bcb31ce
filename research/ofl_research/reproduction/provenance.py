"""Which code on which machine gave a result."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ofl_iot import __version__

PACKAGES = ("numpy", "numba", "torch", "torch-geometric", "scipy", "dp-accounting", "tenseal")
COMMIT_VARIABLE = "OFL_COMMIT"
"""Names the commit where the code is not in a git checkout."""
CODE = (":/agents", ":/ofl_iot", ":/broker", ":/research")
"""What a result depends on; documents and results beside it may change meanwhile."""


@cache
def commit_of_code() -> str:
    """The commit of the checkout that this code runs from, with '+' if code was changed; the version otherwise."""
    if COMMIT_VARIABLE in os.environ:
        return os.environ[COMMIT_VARIABLE]
    home = Path(__file__).parent
    try:
        commit = _git(home, "rev-parse", "--short=12", "HEAD")
        tracked = _git(home, "ls-files", "--error-unmatch", Path(__file__).name)
        changed = _git(home, "status", "--porcelain", "--untracked-files=no", *CODE)
    except (OSError, subprocess.SubprocessError):
        return f"version {__version__}"
    return f"{commit}{'+' if changed else ''}" if tracked else f"version {__version__}"


@cache
def versions() -> dict[str, str]:
    """Python, this package and what computes for it; what is not installed is left out."""
    found = {"python": platform.python_version(), "ofl-iot": __version__}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # noqa: PERF203  # seven of them
            continue
    return found


def machine() -> str:
    """The processor and how many there are, for times to be read with."""
    return f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()} {platform.release().split('-')[0]}"


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(  # noqa: S603  # a fixed command
        ["git", *arguments],  # noqa: S607  # whichever git the user has
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    )
    return done.stdout.strip()
