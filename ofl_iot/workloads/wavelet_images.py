"""Image data sets under privacy: fixed wavelet features, of which a linear head is learnt."""

from __future__ import annotations

import functools
import hashlib
import os
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ofl_iot.workloads.base import Evaluation, TrainJob, TrainResult, Vector
from ofl_iot.workloads.cnn import Images
from ofl_iot.workloads.dense import DenseNet, Samples
from ofl_iot.workloads.images import CLASSES
from ofl_iot.workloads.training import Rows, for_head
from ofl_iot.workloads.wavelets import VERSION, Wavelets, feature_count

SUFFIX = "-wavelet"
"""Of an app's name: `mnist-wavelet` learns the images of `mnist`."""
LENGTH = 10.0
"""Of an image's features as the head takes them."""
_BIAS = np.float32(1.0)
"""Input of the bias: beside the features it hardly lengthens a gradient."""


class FeatureStore:
    """The features of a public set of images: made once for each image, all of them kept in the user's cache folder."""

    def __init__(self, images: Images, folder: Path | None = None) -> None:
        """Keep files in `folder`, by default `ofl-iot` in $XDG_CACHE_HOME or ~/.cache."""
        self._images = images
        count, channels, self._height, self._width = images.pixels.shape
        self._channels, self.size = channels, feature_count(channels)
        self._made = np.zeros(count, bool)
        self._features: npt.NDArray[np.float16] | None = None
        self._folder = folder or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ofl-iot"

    def of(self, rows: Rows) -> npt.NDArray[np.float32]:
        """Return the features of some images."""
        held = self._held()
        missing = rows[~self._made[rows]]
        if len(missing):
            held[missing] = Wavelets(self._height, self._width, self._channels)(self._images.pixels[missing])
            self._made[missing] = True
            if self._made.all():
                self._keep(held)
        return held[rows].astype(np.float32)

    @functools.cached_property
    def _path(self) -> Path:
        digest = hashlib.blake2b(VERSION.encode(), digest_size=12)
        digest.update(repr(self._images.pixels.shape).encode())
        digest.update(np.ascontiguousarray(self._images.pixels).data)
        return self._folder / f"wavelets-{digest.hexdigest()}.npy"

    def _held(self) -> npt.NDArray[np.float16]:
        if self._features is None:
            shape = (len(self._made), self.size)
            try:
                kept = np.load(self._path, mmap_mode="r", allow_pickle=False)
            except (OSError, ValueError, EOFError):
                kept = None
            if kept is not None and kept.shape == shape and kept.dtype == np.float16:
                self._features, self._made[:] = kept, True
            else:
                self._features = np.zeros(shape, np.float16)
        return self._features

    def _keep(self, features: npt.NDArray[np.float16]) -> None:
        """Write the file whole or not at all; without room or permission there is none."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self._folder, suffix=".new", delete=False) as file:
                np.save(file, features)
            Path(file.name).replace(self._path)
        except OSError:
            return


class WaveletWorkload:
    """A linear head on the features of some images; features are made when they are first needed."""

    def __init__(self, name: str, images: Images, store: FeatureStore, rows: Rows | None = None) -> None:
        """Use the given rows of the images, or all of them."""
        channels, height, width = images.pixels.shape[1:]
        self._net = DenseNet((store.size, CLASSES))
        self._labels, self._store = images.labels, store
        self._rows = np.arange(len(images.labels)) if rows is None else rows
        features = f"linear on {VERSION} x {LENGTH:g} {channels}x{height}x{width}"
        self.name = f"{name} {features}"
        self.digest = hashlib.blake2b(self._net.digest + features.encode(), digest_size=8).digest()
        self.size = self._net.size
        self.sample_count = len(self._rows)

    @functools.cached_property
    def _samples(self) -> Samples:
        biased = np.empty((self.sample_count, self._store.size + 1), np.float32)
        biased[:, :-1], biased[:, -1] = self._store.of(self._rows), _BIAS
        biased[:, :-1] *= np.float32(LENGTH)
        biased.setflags(write=False)
        return Samples(biased, self._labels[self._rows])

    def initial(self, seed: int) -> Vector:
        """Return zeros: a linear head needs no chance."""
        del seed
        return np.zeros(self.size, np.float32)

    def train(self, params: Vector, job: TrainJob, rng: np.random.Generator) -> TrainResult:
        """Train a copy of `params` on this party's features."""
        return self._net.train(params, self._samples, np.arange(self.sample_count), for_head(job, LENGTH), rng)

    def evaluate(self, params: Vector) -> Evaluation:
        """Judge `params` on this party's features."""
        return self._net.evaluate(params, self._samples.features, self._samples.labels)

    def label_histogram(self) -> npt.NDArray[np.int64]:
        """Return how many of this party's images show each class."""
        return np.bincount(self._labels[self._rows], minlength=CLASSES)
