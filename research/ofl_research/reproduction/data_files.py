"""Which data files a cell is computed from: one digest of their names, sizes and contents."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from ofl_iot.errors import ConfigError
from ofl_iot.workloads.catalogue import DATA_SETS
from ofl_iot.workloads.idx import FILES as IDX_FILES
from ofl_iot.workloads.idx import idx_home
from ofl_research.reproduction.cells import Finished

_BLOCK = 1 << 20


@cache
def fingerprint(dataset: str, folder: Path | None) -> str:
    """Of a data set's files in the data folder, read once a process; empty if it has none or they are not all there."""
    known = DATA_SETS.get(dataset)
    if known is None or folder is None:
        return ""
    paths = [known.path(folder, file) for file in known.files]
    if dataset == "mnist" and not all(path.is_file() for path in paths):
        paths = [idx_home(folder) / name for name in IDX_FILES]  # the learning bench reads them there, too
    try:
        return _digest(paths)
    except OSError:
        return ""


def refuse_other_files(kept: Iterable[Finished], folder: Path | None) -> None:
    """ConfigError if finished cells were computed from other files than the data folder holds now.

    Cells that do not say from which, and data sets that are not in the folder, cannot be compared and pass.
    """
    other: Counter[str] = Counter(
        each.cell.dataset
        for each in kept
        if each.data_files and fingerprint(each.cell.dataset, folder) not in ("", each.data_files)
    )
    if other:
        counted = ", ".join(f"{count} of {dataset}" for dataset, count in other.items())
        files = ", ".join(f"cells/{dataset}-*.json" for dataset in other)
        raise ConfigError(
            f"finished cells in --out ({counted}) were computed from other data files than --data holds now: name "
            f"another folder with --out, give the files of before with --data, or delete {files} to compute them anew"
        )


def _digest(paths: Sequence[Path]) -> str:
    digest = hashlib.blake2b(digest_size=12)
    for path in paths:
        digest.update(f"{path.name} {path.stat().st_size}\n".encode())
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
    return digest.hexdigest()
