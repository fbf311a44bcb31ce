"""Small files in the published formats, and a catalogue that knows their digests."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from ofl_iot.workloads.catalogue import DATA_SETS, DataFile, DataSet


def packed_idx(values: npt.NDArray[np.uint8]) -> bytes:
    """The bytes of an idx.gz file."""
    head = bytes((0, 0, 8, values.ndim)) + b"".join(extent.to_bytes(4, "big") for extent in values.shape)
    return gzip.compress(head + values.tobytes(), mtime=0)


def write_idx_set(folder: Path, *, train: int = 240, test: int = 60, side: int = 28) -> None:
    """Four idx files with blobs that tell the classes apart."""
    folder.mkdir(parents=True, exist_ok=True)
    for prefix, count, seed in (("train", train, 0), ("t10k", test, 1)):
        labels = np.arange(count) % 10
        images = np.random.default_rng(seed).integers(0, 40, (count, side, side))
        for image, label in zip(images, labels, strict=True):
            image[2 * label : 2 * label + 6, 4:20] += 180
        (folder / f"{prefix}-images-idx3-ubyte.gz").write_bytes(packed_idx(images.astype(np.uint8)))
        (folder / f"{prefix}-labels-idx1-ubyte.gz").write_bytes(packed_idx(labels.astype(np.uint8)))


def write_svhn(folder: Path, *, train: int = 120, test: int = 30) -> None:
    """Two .mat files of the layout of the cropped house numbers."""
    from scipy.io import savemat

    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for prefix, count in (("train", train), ("test", test)):
        pixels = rng.integers(0, 256, (32, 32, 3, count), dtype=np.uint8)
        labels = (np.arange(count) % 10 + 1).astype(np.uint8)[:, None]
        savemat(folder / f"{prefix}_32x32.mat", {"X": pixels, "y": labels})


def know(monkeypatch: pytest.MonkeyPatch, data: Path, name: str) -> DataSet:
    """Make the catalogue take what is now in the folder for the published files of a data set."""
    old = DATA_SETS[name]
    files = tuple(
        DataFile(file.name, "sha256:" + hashlib.sha256(old.path(data, file).read_bytes()).hexdigest())
        for file in old.files
    )
    known = dataclasses.replace(old, files=files)
    monkeypatch.setitem(DATA_SETS, name, known)
    return known
