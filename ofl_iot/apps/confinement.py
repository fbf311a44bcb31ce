"""Bounds for the process that runs user code: it dies with its agent, keeps to its memory, cannot read keys and ledger.

This guards against accidents, not against malice: the process runs as the agent's user.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG, _PATH_BENEATH = 1, 1
_FILE_RIGHTS = 0b1_0000_0000_0000_0111
"""Execute, write, read a file; truncate it where the kernel knows that right."""
_ALL_RIGHTS_V1 = (1 << 13) - 1
_REFER, _TRUNCATE = 1 << 13, 1 << 14


def die_with_parent(parent: int) -> None:
    """Let the kernel end this process when the thread that started it ends; end now if that has happened already."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def yield_to_agent() -> None:
    """Run at a lower priority than the agent, and be the one that the kernel ends when memory is short."""
    with contextlib.suppress(OSError):  # a service's sandbox may refuse any of these
        os.nice(5)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def limit_memory(mebibytes: int) -> None:
    """Refuse allocations beyond so much data; 0 is no limit. Call it when libraries are loaded."""
    if mebibytes:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_DATA, (mebibytes << 20, mebibytes << 20))


def landlock_version() -> int:
    """Return which version of Landlock the kernel has; 0 or less for none."""
    return int(ctypes.CDLL(None, use_errno=True).syscall(_CREATE_RULESET, None, 0, _VERSION_FLAG))


def hide(secrets: Iterable[Path], keep: Iterable[Path]) -> bool:
    """Make files and folders unreachable for the rest of this process's life; whether the kernel could.

    Landlock knows only what is allowed: everything is, except the folders on the way to a secret themselves. Entries
    made there later are out of reach, too. What lies in `keep` stays reachable.
    """
    hidden = [path.resolve() for path in secrets]
    kept = [path.resolve() for path in keep if path.exists()]
    if not hidden or any(secret.is_relative_to(path) for secret in hidden for path in kept):
        return False
    libc, version = ctypes.CDLL(None, use_errno=True), landlock_version()
    if version < 1:
        return False
    handled = _ALL_RIGHTS_V1 | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    attributes = struct.pack("<Q", handled)
    ruleset = libc.syscall(_CREATE_RULESET, attributes, len(attributes), 0)
    if ruleset < 0:
        return False
    try:
        for path in [*_around(hidden), *kept]:
            _allow(libc, ruleset, path, handled)
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        return bool(libc.syscall(_RESTRICT_SELF, ruleset, 0) == 0)
    finally:
        os.close(ruleset)


def _around(hidden: list[Path]) -> Iterator[Path]:
    """Everything beside the hidden paths and the folders that lead to them; where a link leads is beside them, too."""
    ways = {parent for path in hidden for parent in path.parents}
    for way in ways:
        with contextlib.suppress(OSError):
            beside = (entry for entry in way.iterdir() if entry not in ways and entry not in hidden)
            yield from (entry for entry in beside if not entry.is_symlink())


def _allow(libc: ctypes.CDLL, ruleset: int, path: Path, handled: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        rights = handled if path.is_dir() else handled & (_FILE_RIGHTS | _TRUNCATE)
        rule = struct.pack("<Qi", rights, descriptor)
        libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0)
    finally:
        os.close(descriptor)
