"""Copies a party's store, whether it runs or not: what `ofl coordinator backup` and `ofl agent backup` do."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from ofl_iot.errors import ConfigError
from ofl_iot.ids import RESERVED, device_id
from ofl_iot.local.client import LocalParty, NotRunningError
from ofl_iot.runtime.store import SqliteStore


def write_backup(state: Path, name: str, file: Path) -> int:
    """Write a copy of the party's store to `file`, readable by its owner alone; return its size."""
    store = state / f"{name}.sqlite"
    if not store.is_file():
        raise ConfigError(f"there is no store {store}: name the state folder with --state, and an agent with --id")
    if file.exists():
        raise ConfigError(f"{file} exists: a backup overwrites nothing; name another file")
    if not file.parent.is_dir():
        raise ConfigError(f"{file}: there is no folder {file.parent}")
    copy = _copy(state, name, store)
    handle, half = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(copy)
            stream.flush()
            os.fsync(stream.fileno())
        os.link(half, file)  # whole or not there, and never in place of another file
    except OSError as error:
        raise ConfigError(f"{file} cannot be written ({error.strerror}): name another file") from error
    finally:
        Path(half).unlink()
    return len(copy)


def _copy(state: Path, name: str, store: Path) -> bytes:
    try:
        return LocalParty(state, name).backup()
    except NotRunningError:
        with SqliteStore(store) as stopped:
            return stopped.copy()


def only_agent_in(state: Path) -> str:
    """Return the name of the only device that has a store in this folder."""
    names = sorted(path.stem for path in state.glob("*.sqlite") if path.stem not in RESERVED)
    if len(names) != 1:
        found = ", ".join(names) or "none"
        raise ConfigError(f"{state} holds stores of these devices: {found}; name one with --id")
    return device_id(names[0])


def run_backup(state: Path, name: str, file: Path | None) -> int:
    """Back up and say so."""
    if file is None:
        raise ConfigError("backup: name the file to write, for example `ofl coordinator backup /backup/c.sqlite`")
    size = write_backup(state, name, file)
    sys.stdout.write(f"{name}: {size} bytes in {file}\n")
    return 0
