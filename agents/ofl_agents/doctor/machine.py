"""This machine: versions, disk, clock."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import shutil
import sqlite3
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import ofl_iot
from ofl_agents.doctor.findings import Finding, error, ok, skipped, warning

MIN_PYTHON = (3, 10)
MIN_SQLITE = (3, 24, 0)
"""Older ones are older than the oldest Python allowed here."""
MIB = 1 << 20
_TIME_ERROR = 5
"""What adjtimex returns while nothing disciplines the clock."""
_ADJTIMEX_BYTES = 512


def versions() -> Iterator[Finding]:
    """Python, sqlite and what ofl-iot is made of."""
    said = f"ofl-iot {ofl_iot.__version__}, Python {platform.python_version()}, sqlite {sqlite3.sqlite_version}"
    if sys.version_info[:2] < MIN_PYTHON or sqlite3.sqlite_version_info < MIN_SQLITE:
        yield error("versions", said, "install Python 3.10 or newer")
    wrong = list(_unfit_packages())
    if wrong:
        yield error("versions", f"packages that do not fit: {', '.join(wrong)}", "install ofl-iot again")
    else:
        yield ok("versions", said)


def _unfit_packages() -> Iterator[str]:
    try:
        required = metadata.requires("ofl-iot") or []
    except metadata.PackageNotFoundError:
        return  # run from a working copy
    for requirement in required:
        parsed = re.match(r"([\w.-]+)\s*([^;]*)(.*)", requirement)
        if parsed is None or "extra ==" in parsed[3] or ("python_version" in parsed[3] and sys.version_info >= (3, 11)):
            continue
        try:
            version = metadata.version(parsed[1])
        except metadata.PackageNotFoundError:
            yield f"{parsed[1]} is missing"
            continue
        if not _fits(version, parsed[2]):
            yield f"{parsed[1]} {version} (wanted {parsed[2].strip()})"


def _fits(version: str, bounds: str) -> bool:
    """Whether a version lies within bounds such as '>=2.1,<3'."""
    have = _numbers(version)
    pairs = re.findall(r"(>=|<)\s*([\d.]+)", bounds)
    return all((have < _numbers(bound)) == (sign == "<") for sign, bound in pairs)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version.partition("+")[0])[:4])


def disk(folder: Path, needed_bytes: int) -> Iterator[Finding]:
    """Whether the state can be written, and for how long; `needed_bytes` is what a full outbox takes."""
    if not folder.is_dir():
        above = next(parent for parent in folder.absolute().parents if parent.is_dir())
        yield _writable(above, f"{folder} is made at the first start")
        folder = above
    else:
        yield _writable(folder, f"{folder} can be written")
    free = shutil.disk_usage(folder).free
    said = f"{free // MIB} MiB free for {folder}"
    if free < needed_bytes:
        yield error("disk", said, f"free at least {needed_bytes // MIB} MiB: without room nothing is released")
    elif free < 4 * needed_bytes:
        yield warning("disk", said, f"make room: {4 * needed_bytes // MIB} MiB are comfortable")
    else:
        yield ok("disk", said)


def _writable(folder: Path, said: str) -> Finding:
    probe = folder / f".ofl-doctor-{os.getpid()}"
    try:
        probe.write_bytes(b"probe")
        probe.unlink()
    except OSError as problem:
        return error(
            "disk",
            f"{folder} cannot be written ({problem.strerror})",
            "run it as the service's user, or choose --state",
        )
    return ok("disk", said)


def clock(state: Path) -> Iterator[Finding]:
    """Whether something disciplines the clock, and whether it stands before what must lie in the past.

    MQTT tells no time, so the broker's certificate (`broker`) and one's own (`identity`) are the other witnesses.
    """
    now = time.time()
    witnesses = [Path(ofl_iot.__file__), *state.glob("*.sqlite")]
    latest = max(witnesses, key=lambda path: path.stat().st_mtime)
    behind_s = latest.stat().st_mtime - now
    if behind_s > 60:
        yield error(
            "clock",
            f"the clock is at least {behind_s:.0f} s behind: {latest.name} was written later than now",
            "set it, for example timedatectl set-ntp true",
        )
        return
    disciplined = _disciplined()
    if disciplined is None:
        yield skipped("clock", "this system does not tell whether its clock is synchronised")
    elif disciplined:
        yield ok("clock", "synchronised")
    else:
        yield warning("clock", "nothing synchronises the clock", "timedatectl set-ntp true: certificates need the time")


def _disciplined() -> bool | None:
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_ADJTIMEX_BYTES))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else bool(state != _TIME_ERROR)
