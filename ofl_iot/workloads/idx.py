"""Image sets in the idx format of MNIST: four gzip files, read with numpy alone."""

from __future__ import annotations

import gzip
import io
import os
import zlib
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from ofl_iot.errors import ConfigError

FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
"""Images and labels to train on, images and labels to test on."""

VARIABLE = "OFL_DATA"
"""Environment variable that names the folder with data sets."""

_PLACES = ("", "raw", "MNIST/raw", "MNIST")
_UBYTE = 0x08
_MAX_BYTES = 1 << 30

Pixels = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]


class IdxImages(msgspec.Struct, frozen=True):
    """Grey images (count, height, width) with brightness 0 to 255, and their labels."""

    train: Pixels
    train_labels: Labels
    test: Pixels
    test_labels: Labels


def data_folder(given: Path | None = None) -> Path | None:
    """The folder given, else the one that OFL_DATA names, else None."""
    named = os.environ.get(VARIABLE)
    return given or (Path(named) if named else None)


def load_idx(folder: Path) -> IdxImages:
    """Read the four files from `folder`, its subfolder raw, or MNIST/raw below it."""
    home = idx_home(folder)
    missing = [name for name in FILES if not (home / name).is_file()]
    if missing:
        raise ConfigError(
            f"{home} holds no {', '.join(missing)}: give a folder with the four official files {', '.join(FILES)}"
        )
    return images_of([read_idx(home / name) for name in FILES], home)


def idx_home(folder: Path) -> Path:
    """Where below `folder` the files are; `folder` itself if they are nowhere."""
    return next((folder / place for place in _PLACES if (folder / place / FILES[0]).is_file()), folder)


def images_of(arrays: list[Pixels], home: Path | str) -> IdxImages:
    """The contents of the four files, in their order; `home` is for error messages."""
    train, train_labels, test, test_labels = arrays
    for images, labels, name in ((train, train_labels, FILES[0]), (test, test_labels, FILES[2])):
        if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
            raise ConfigError(
                f"{home}/{name} has shape {images.shape}, its labels {labels.shape}: fetch the official files again"
            )
    if train.shape[1:] != test.shape[1:]:
        raise ConfigError(f"images of {train.shape[1:]} and {test.shape[1:]} pixels in {home}: they must be alike")
    return IdxImages(train, train_labels.astype(np.int64), test, test_labels.astype(np.int64))


def read_idx(path: Path) -> Pixels:
    """One idx.gz file of unsigned bytes."""
    try:
        return parse_idx(path.read_bytes(), path)
    except OSError as error:
        raise ConfigError(f"cannot read {path} ({error}): fetch the official file again") from error


def parse_idx(packed: bytes, path: Path | str) -> Pixels:
    """The values in the bytes of an idx.gz file; `path` is for error messages.

    Layout: two zero bytes, the type 0x08, the number of dimensions, each dimension as big-endian uint32, the values.
    """
    try:
        with gzip.open(io.BytesIO(packed)) as file:
            blob = file.read(_MAX_BYTES)
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"cannot read {path} ({error}): fetch the official file again") from error
    dimensions = blob[3] if len(blob) >= 4 and blob[:3] == bytes((0, 0, _UBYTE)) else 0
    start = 4 + 4 * dimensions
    if not dimensions or len(blob) < start:
        raise ConfigError(f"{path} is not an idx file of bytes: fetch the official file again")
    shape = tuple(int(extent) for extent in np.frombuffer(blob, ">u4", dimensions, offset=4))
    values = np.frombuffer(blob, np.uint8, offset=start)
    if values.size != np.prod(shape, dtype=np.float64):
        raise ConfigError(f"{path} promises {shape} bytes and holds {values.size}: fetch the official file again")
    return values.reshape(shape)


def halved(images: Pixels) -> npt.NDArray[np.float32]:
    """Images of half the side, brightness averaged over 2 × 2 pixels and scaled to [0, 1]."""
    count, height, width = images.shape
    pooled = images.reshape(count, height // 2, 2, width // 2, 2).mean(axis=(2, 4), dtype=np.float32)
    return np.asarray(pooled / np.float32(255))
