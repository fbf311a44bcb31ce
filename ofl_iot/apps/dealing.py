"""How one folder of data becomes the data of many simulated devices."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from ofl_iot.apps.data import Records
from ofl_iot.workloads.splits import split_dirichlet


def parts_of(where: str, devices: int) -> list[str]:
    """Return the subfolders, or else the files, of a folder if there are exactly as many as devices; else nothing."""
    folder = Path(where) if where else None
    if folder is None or not folder.is_dir():
        return []
    entries = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    for parts in ([path for path in entries if path.is_dir()], [path for path in entries if path.is_file()]):
        if len(parts) == devices:
            return [str(path) for path in parts]
    return []


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
