"""Handwritten digits: 1,797 real images of 8 × 8 pixels; source and licence: `data/README.md`."""

from __future__ import annotations

import functools
import gzip
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from ofl_iot.errors import ConfigError
from ofl_iot.workloads.dense import DenseNet, Samples
from ofl_iot.workloads.dense_workload import DenseWorkload
from ofl_iot.workloads.splits import SplitKind, split_rows, stratified

NAME = "digits"
_FILE = Path(__file__).parent / "data" / "digits.csv.gz"
PIXELS = 64
CLASSES = 10
DEFAULT_HIDDEN = 32
MIN_SAMPLES = 4
"""A device of `digits_federation` has at least so many samples."""

_SHARES = (0.75, 0.08, 0.17)
_SPLIT_SEED = 20_240


class DigitsData(msgspec.Struct, frozen=True):
    """The fixed stratified parts: to train on, to choose settings by, to report on."""

    train: Samples
    validation: Samples
    test: Samples


def digits_federation(
    devices: int,
    seed: int,
    *,
    model: Literal["mlp", "softmax"] = "mlp",
    hidden: int = DEFAULT_HIDDEN,
    split: SplitKind = "dirichlet",
    alpha: float = 0.5,
    held_out: Literal["test", "validation"] = "test",
) -> tuple[list[DenseWorkload], DenseWorkload]:
    """Deal the training digits to devices; also return the coordinator's workload with the held-out digits.

    `held_out` is "validation" while settings are being chosen and "test" for what is reported.
    """
    if model not in {"mlp", "softmax"}:
        raise ConfigError(f"unknown digits model {model!r}: use 'mlp' or 'softmax'")
    if hidden < 1:
        raise ConfigError(f"the hidden layer needs at least 1 unit, not {hidden}")
    data = load_digits()
    net = DenseNet((PIXELS, hidden, CLASSES) if model == "mlp" else (PIXELS, CLASSES))
    parts = split_rows(split, data.train.labels, devices, seed, alpha=alpha, minimum=MIN_SAMPLES)
    judge = DenseWorkload(NAME, net, data.test if held_out == "test" else data.validation)
    return [DenseWorkload(NAME, net, data.train, rows) for rows in parts], judge


@functools.cache
def load_digits() -> DigitsData:
    """Read the digits, pixels scaled to [0, 1], and cut them into the fixed parts."""
    table = _read_table(_FILE)
    pixels, labels = table[:, :PIXELS].astype(np.float32) / np.float32(16), table[:, PIXELS].astype(np.int64)
    parts = [Samples.of(pixels[rows], labels[rows]) for rows in stratified(labels, _SHARES, _SPLIT_SEED)]
    return DigitsData(*parts)


def _read_table(path: Path) -> npt.NDArray[np.float64]:
    try:
        with gzip.open(path, "rt", encoding="ascii") as file:
            table = np.loadtxt(file, delimiter=",")
    except (OSError, EOFError, ValueError) as error:
        raise ConfigError(f"cannot read the digits from {path} ({error}): reinstall ofl-iot") from error
    if table.ndim != 2 or table.shape[1] != PIXELS + 1:
        raise ConfigError(f"{path} does not hold the digits: reinstall ofl-iot")
    return table
