"""Finds a model: in a file, with a party that runs, in the store of one that does not."""

from __future__ import annotations

import os
from pathlib import Path

from ofl_iot.errors import ConfigError
from ofl_iot.ids import RESERVED, device_id
from ofl_iot.local.client import LocalParty, NotRunningError
from ofl_iot.local.messages import Which
from ofl_iot.models.named import ModelCopy, Vector
from ofl_iot.models.stored import copy_of_reply, copy_of_store
from ofl_iot.runtime.store import read_store


def party_in(state: Path, given: str | None) -> str:
    """Return the party of a state folder: the one named, or the only one there."""
    if given:
        return given if given in RESERVED else device_id(given)
    stores = sorted(path.stem for path in state.glob("*.sqlite"))
    if len(stores) != 1:
        there = f"it holds those of {', '.join(stores)}" if stores else "it holds no store"
        raise ConfigError(f"{state}: which party's model? {there}; name one with --id")
    return stores[0]


def copy_in(state: Path, name: str, which: Which) -> ModelCopy:
    """Return a party's model: asked over its socket if it runs, read from its store if it does not."""
    try:
        reply, body = LocalParty(state, name).model(which)
    except NotRunningError:
        return copy_of_store(read_store(state / f"{name}.sqlite"), name, which)
    return copy_of_reply(reply, body)


def personal_in(state: Path, name: str) -> Vector | None:
    """Return the values that a device keeps to itself; None if there are none."""
    import numpy as np

    kept = state / f"{name}.personal"
    return np.fromfile(kept, np.float32) if kept.is_file() else None


def owns(store: Path) -> bool:
    """Return whether the store is this user's own.

    Code that another user's store names is not run, least of all by root.
    """
    try:
        return store.stat().st_uid == os.geteuid()
    except OSError:
        return False
