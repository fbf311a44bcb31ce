"""MNIST, Fashion-MNIST and SVHN: images from their published files, dealt to devices that train a `ConvNet`."""

from __future__ import annotations

import functools
import io
import zlib
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from ofl_iot.errors import ConfigError
from ofl_iot.workloads.base import Evaluation, TrainJob, TrainResult, Vector
from ofl_iot.workloads.catalogue import DATA_SETS, DataSet
from ofl_iot.workloads.cnn import ConvNet, Images, Pixels
from ofl_iot.workloads.flat_net import Labels
from ofl_iot.workloads.idx import FILES, images_of, parse_idx
from ofl_iot.workloads.training import Rows

CLASSES = 10
VALIDATION_SHARE = 1 / 12
"""Share of the training file, its last images: settings are chosen on them, and nothing is trained on them."""
_EVENED_AT_ONCE = 1000
_LUMINANCE = np.array([0.299, 0.587, 0.114], dtype=np.float32)
_LEAST_CONTRAST = 8.0


class ImageData(msgspec.Struct, frozen=True):
    """Images to train on, to choose settings by, to report on; all normalised by the first part's brightness."""

    train: Images
    validation: Images
    test: Images


class ImageWorkload:
    """A convolutional network on some rows of the images; the arrays are shared by all workloads of a process."""

    def __init__(self, name: str, net: ConvNet, images: Images, rows: Rows | None = None) -> None:
        """Use the given rows of the images, or all of them."""
        self._net = net
        self._images = images
        self._rows = np.arange(len(images.labels)) if rows is None else rows
        self.name = f"{name} convolutional {net.channels}x{net.side}x{net.side}-{net.hidden}-{net.classes}"
        self.digest = net.digest
        self.size = net.size
        self.sample_count = len(self._rows)

    def initial(self, seed: int) -> Vector:
        """Return untrained parameters, the same for the same seed."""
        return self._net.initial(seed)

    def train(self, params: Vector, job: TrainJob, rng: np.random.Generator) -> TrainResult:
        """Train a copy of `params` on this party's rows."""
        return self._net.train(params, self._images, self._rows, job, rng)

    def evaluate(self, params: Vector) -> Evaluation:
        """Judge `params` on this party's rows."""
        return self._net.evaluate(params, self._images, self._rows)

    def label_histogram(self) -> npt.NDArray[np.int64]:
        """Return how many of this party's images show each class."""
        return np.bincount(self._images.labels[self._rows], minlength=CLASSES)


@functools.lru_cache(maxsize=3)
def load_images(name: str, folder: Path | None) -> ImageData:
    """Read a data set of images from the data folder, verify it and cut it into its parts."""
    data = DATA_SETS[name]
    blobs = data.read(folder)
    read = _read_svhn if name == "svhn" else _read_idx
    train, train_labels, test, test_labels = read(data, blobs)
    if not len(test) or len(train) * VALIDATION_SHARE < 1:
        raise ConfigError(f"{data.folder} holds {len(train)} and {len(test)} images, too few to train, choose and test")
    kept = len(train) - round(len(train) * VALIDATION_SHARE)
    mean, deviation = float(train[:kept].mean()), float(train[:kept].std())
    return ImageData(
        train=Images(train[:kept], train_labels[:kept], mean, deviation),
        validation=Images(train[kept:], train_labels[kept:], mean, deviation),
        test=Images(test, test_labels, mean, deviation),
    )


def _read_idx(data: DataSet, blobs: dict[str, bytes]) -> tuple[Pixels, Labels, Pixels, Labels]:
    raw = images_of([parse_idx(blobs[name], f"{data.folder}/{name}") for name in FILES], data.folder)
    return raw.train[:, None], raw.train_labels, raw.test[:, None], raw.test_labels


def _read_svhn(data: DataSet, blobs: dict[str, bytes]) -> tuple[Pixels, Labels, Pixels, Labels]:
    train, test = (_parse_mat(blobs[file.name], f"{data.folder}/{file.name}") for file in data.files)
    return *train, *test


def _parse_mat(blob: bytes, path: str) -> tuple[Pixels, Labels]:
    """The images and digits of a file of cropped house numbers: X of 32 × 32 × 3 × count, y with 10 for the digit 0."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        table = loadmat(io.BytesIO(blob), variable_names=["X", "y"])
        pixels, labels = table["X"], table["y"].ravel()
    except (MatReadError, ValueError, TypeError, LookupError, NotImplementedError, OSError, zlib.error) as error:
        raise ConfigError(f"{path} is not a file of the cropped house numbers ({error}): fetch it again") from error
    if (
        pixels.ndim != 4
        or pixels.shape[:3] != (32, 32, 3)
        or pixels.dtype != np.uint8
        or len(labels) != pixels.shape[3]
    ):
        raise ConfigError(
            f"{path} has X of {pixels.dtype} {pixels.shape} and {len(labels)} labels, not 32 x 32 x 3 x count bytes "
            "and count labels: fetch it again"
        )
    if not np.isin(labels, np.arange(1, CLASSES + 1)).all():
        raise ConfigError(f"{path} has labels other than 1 to 10: fetch it again")
    return evened(pixels.transpose(3, 2, 0, 1)), labels.astype(np.int64) % CLASSES


def evened(colours: Pixels) -> Pixels:
    """Grey images (count, 1, side, side) of the same brightness and contrast, whatever light they were taken in.

    Chosen on validation images: the least loss and the best accuracy of one central run were 0.58 and 0.828, with
    colours as they are 0.64 and 0.819, grey alone 0.65 and 0.819, evened colours 0.64 and 0.819.
    """
    even = np.empty((len(colours), 1, *colours.shape[2:]), dtype=np.uint8)
    for start in range(0, len(colours), _EVENED_AT_ONCE):
        part = slice(start, start + _EVENED_AT_ONCE)
        grey = np.einsum("ncyx,c->nyx", colours[part].astype(np.float32), _LUMINANCE)[:, None]
        mean, deviation = grey.mean(axis=(1, 2, 3), keepdims=True), grey.std(axis=(1, 2, 3), keepdims=True)
        even[part] = np.clip(128 + 40 * (grey - mean) / np.maximum(deviation, _LEAST_CONTRAST), 0, 255).round()
    return even
