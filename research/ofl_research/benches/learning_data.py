"""Images for the learning bench, MNIST at 14 × 14 pixels or the digits, and how they are dealt to devices."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from ofl_iot.errors import ConfigError
from ofl_iot.workloads.catalogue import DATA_SETS
from ofl_iot.workloads.dense import DenseNet, Samples
from ofl_iot.workloads.dense_workload import DenseWorkload
from ofl_iot.workloads.digits import load_digits
from ofl_iot.workloads.idx import FILES, IdxImages, halved, idx_home, images_of, load_idx, parse_idx
from ofl_iot.workloads.splits import split_dirichlet

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int64]
HeldOut = Literal["validation", "test"]

CLASSES = 10
VALIDATION = 5_000
"""The last images of the training file: settings are chosen on them, and nothing is trained on them."""
MIN_SAMPLES = 20
MNIST = "mnist"
TITLES = {MNIST: "MNIST", "fashion-mnist": "Fashion-MNIST"}
"""Names of the published data sets in this format."""
_DIGITS_SIDE = 8


@dataclass(frozen=True, eq=False)
class Part:
    """Square images (count, side, side), brightness in [0, 1], and their classes."""

    images: Floats
    labels: Labels


@dataclass(frozen=True, eq=False)
class Corpus:
    """A data set in three parts: to train on, to choose settings by, to report on."""

    name: str
    train: Part
    validation: Part
    test: Part

    @property
    def pixels(self) -> int:
        """Inputs of a network."""
        return int(np.prod(self.train.images.shape[1:]))

    def held_out(self, which: HeldOut) -> Part:
        """The part that judges."""
        return self.test if which == "test" else self.validation


def load_corpus(folder: Path | None, train: int) -> Corpus:
    """Images in MNIST's format from a folder, at most `train` of them to train on; without a folder the digits.

    Files where MNIST or Fashion-MNIST is expected must be the published ones; elsewhere any of the format will do.
    """
    if folder is None:
        data = load_digits()
        return Corpus("digits", *(_digits_part(part) for part in (data.train, data.validation, data.test)))
    published = published_at(idx_home(folder))
    return _halves(load_idx(folder), TITLES[published] if published else folder.name, train)


def load_mnist(data: Path | None, train: int) -> Corpus:
    """MNIST from a data folder; ConfigError unless the files are the published ones."""
    if data is not None and published_at(idx_home(data)) == MNIST:
        return _halves(load_idx(data), TITLES[MNIST], train)
    known = DATA_SETS[MNIST]
    blobs = known.read(data)
    raw = images_of([parse_idx(blobs[name], f"{known.folder}/{name}") for name in FILES], known.folder)
    return _halves(raw, TITLES[MNIST], train)


def published_at(home: Path) -> str | None:
    """The data set whose published files these are, if they are; ConfigError for others in the place of such."""
    for name in TITLES:
        known = DATA_SETS[name]
        if home.as_posix().endswith(f"/{known.folder}"):
            known.read(home.parents[known.folder.count("/")])
            return name
        paths = {file: home / file.name for file in known.files}
        if all(path.is_file() and file.matches(path.read_bytes()) for file, path in paths.items()):
            return name
    return None


def _halves(raw: IdxImages, name: str, train: int) -> Corpus:
    if not 0 < train <= len(raw.train) - VALIDATION:
        raise ConfigError(f"{train} images to train on: choose 1 to {len(raw.train) - VALIDATION}")
    return Corpus(
        f"{name}, halved",
        Part(halved(raw.train[:train]), raw.train_labels[:train]),
        Part(halved(raw.train[-VALIDATION:]), raw.train_labels[-VALIDATION:]),
        Part(halved(raw.test), raw.test_labels),
    )


def deal(labels: Labels, devices: int, seed: int, *, alpha: float = 0.5) -> list[Rows]:
    """The rows of each device by Dirichlet(alpha) over the classes."""
    return split_dirichlet(labels, devices, seed, alpha=alpha, minimum=MIN_SAMPLES)


def deal_own_classes(labels: Labels, devices: int, slow: int, own: tuple[int, ...], seed: int) -> list[Rows]:
    """Dirichlet(0.5), but all images of the classes `own` go to the last `slow` devices, one class each."""
    rng = np.random.default_rng(seed)
    common = np.flatnonzero(~np.isin(labels, own))
    parts = [common[rows] for rows in deal(labels[common], devices, seed)]
    for place, label in enumerate(own):
        holders = range(devices - slow + place, devices, len(own))
        rows = rng.permutation(np.flatnonzero(labels == label))
        for holder, share in zip(holders, np.array_split(rows, len(holders)), strict=True):
            parts[holder] = np.concatenate([parts[holder], share])
    return parts


class ImageWorkload(DenseWorkload):
    """A dense network on some images."""

    def __init__(self, net: DenseNet, part: Part, rows: Rows | None = None) -> None:
        """Use the given rows of the part, or all of them."""
        own = part if rows is None else Part(part.images[rows], part.labels[rows])
        super().__init__("images", net, Samples.of(own.images.reshape(len(own.images), -1), own.labels))


def _digits_part(samples: Samples) -> Part:
    return Part(samples.features[:, :-1].reshape(-1, _DIGITS_SIDE, _DIGITS_SIDE), samples.labels)
