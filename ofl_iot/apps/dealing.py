"""How one folder of data becomes the data of many simulated devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ofl_iot.apps.data import Records, joined
from ofl_iot.errors import ConfigError
from ofl_iot.workloads.splits import split_dirichlet

HELD_OUT = "holdout"
"""A file or folder of this name in the data folder of a simulation is the coordinator's."""
SHARE = 5
"""Without one, one record in so many is held out."""


@dataclass(frozen=True)
class Layout:
    """What a data folder holds for a simulation."""

    rest: str
    """Path of all records that are to be dealt."""
    parts: tuple[str, ...] = ()
    """Paths of the devices' own records; empty if records are dealt."""
    held_out: str = ""
    """Path of the coordinator's records; empty if there are none."""


def layout_of(where: str, devices: int) -> Layout:
    """Look whether a folder has a subfolder, or else a file, for each device, and one that is held out."""
    folder = Path(where) if where else None
    if folder is None or not folder.is_dir():
        return Layout(where)
    entries = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    held_out = next((path for path in entries if path.stem == HELD_OUT), None)
    rest = [path for path in entries if path != held_out]
    for kind in ([path for path in rest if path.is_dir()], [path for path in rest if path.is_file()]):
        if len(kind) == devices:
            return Layout(where, tuple(map(str, kind)), str(held_out or ""))
    if held_out is not None:
        raise ConfigError(
            f"{where} holds {held_out.name} beside {len(rest)} others, not one for each of {devices} devices: "
            f"ask for as many devices, or move {held_out.name} elsewhere to have the others dealt"
        )
    return Layout(where)


def hold_out(shares: Sequence[Records], seed: int) -> tuple[list[Records], Records]:
    """Take a fifth of every device's records, at random, to judge on; a device with few keeps them all."""
    rng = np.random.default_rng([seed, SHARE])
    kept, held = [], []
    for share in shares:
        order = rng.permutation(len(share))
        cut = len(share) // SHARE
        kept.append(share.take(order[cut:]))
        held.append(share.take(order[:cut]))
    return kept, joined(held)


def deal_records(records: Records, devices: int, *, seed: int, alpha: float) -> list[Records]:
    """Deal records by their labels, or by eight ranges of a target that is no label."""
    return [records.take(rows) for rows in split_dirichlet(_kinds(records), devices, seed, alpha=alpha)]


def _kinds(records: Records) -> npt.NDArray[np.int64]:
    targets = records.targets
    if targets.ndim == 1 and targets.dtype.kind in "iub":
        return targets.astype(np.int64)
    level = targets.reshape(len(targets), -1).astype(np.float64).mean(axis=1)
    edges = np.quantile(level, np.linspace(0, 1, 9)[1:-1])
    places: npt.NDArray[np.int64] = np.searchsorted(edges, level).astype(np.int64)
    return places
