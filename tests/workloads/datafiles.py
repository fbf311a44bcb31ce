"""Small files in the published formats, and a catalogue that knows their digests."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import pickle
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
        for number, label in enumerate(labels[:, 0]):
            pixels[2 * label : 2 * label + 6, 4:24, :, number] = 250  # a bar that tells the digits apart
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


def write_planetoid(folder: Path, name: str, *, nodes: int = 600, classes: int = 3, features: int = 24) -> None:
    """Eight Planetoid files of a graph whose nodes like their own class, with words that tell the classes apart.

    The last nodes are those to test on, in the shuffled order of the published files; `nodes` leaves room for the
    500 that torch_geometric takes to choose settings by.
    """
    from scipy.sparse import csr_matrix

    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    trained, tested = 4 * classes, 60
    labels = np.arange(nodes) % classes
    words = (rng.random((nodes, features)) < 0.1).astype(np.float32)
    words[np.arange(nodes), labels * (features // classes) + rng.integers(0, features // classes, nodes)] = 1
    links: dict[int, list[int]] = {node: [] for node in range(nodes)}
    for one, other in rng.integers(0, nodes // classes, (2 * nodes, 2)) * classes + rng.integers(
        0, classes, (2 * nodes, 1)
    ):
        links[int(one)].append(int(other))
    rows, truth = csr_matrix(words), np.eye(classes, dtype=np.int32)[labels]
    order = nodes - tested + rng.permutation(tested)
    parts = {
        "x": rows[:trained],
        "y": truth[:trained],
        "allx": rows[: nodes - tested],
        "ally": truth[: nodes - tested],
        "tx": rows[order],
        "ty": truth[order],
        "graph": links,
    }
    for part, content in parts.items():
        (folder / f"ind.{name}.{part}").write_bytes(pickle.dumps(content))
    (folder / f"ind.{name}.test.index").write_text("".join(f"{node}\n" for node in order))
