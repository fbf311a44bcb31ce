"""How samples are dealt to devices: each sample to exactly one, and the same way for the same seed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from ofl_iot.errors import ConfigError

Labels: TypeAlias = npt.NDArray[np.int64]
Rows: TypeAlias = npt.NDArray[np.int64]
SplitKind: TypeAlias = Literal["iid", "dirichlet", "shards"]


@dataclass(frozen=True)
class Split:
    """How samples are dealt: `alpha` matters to "dirichlet" only, `shards_per_device` to "shards" only.

    No device gets fewer than `minimum` samples.
    """

    kind: SplitKind = "dirichlet"
    alpha: float = 0.5
    shards_per_device: int = 2
    minimum: int = 1

    def rows(self, labels: Labels, devices: int, seed: int) -> list[Rows]:
        """The rows of `labels` that each device gets."""
        if self.kind == "shards":
            each = self.shards_per_device
            return split_shards(labels, devices, seed, shards_per_device=each, minimum=self.minimum)
        return split_rows(self.kind, labels, devices, seed, alpha=self.alpha, minimum=self.minimum)


def split_rows(
    split: SplitKind, labels: Labels, devices: int, seed: int, *, alpha: float = 0.5, minimum: int = 1
) -> list[Rows]:
    """Deal the rows of `labels` in the named way; `alpha` matters to "dirichlet" only."""
    if split == "iid":
        return split_iid(labels, devices, seed, minimum=minimum)
    if split == "dirichlet":
        return split_dirichlet(labels, devices, seed, alpha=alpha, minimum=minimum)
    if split == "shards":
        return split_shards(labels, devices, seed, minimum=minimum)
    raise ConfigError(f"unknown split {split!r}: use one of {', '.join(get_args(SplitKind))}")


def split_iid(labels: Labels, devices: int, seed: int, *, minimum: int = 1) -> list[Rows]:
    """Deal shuffled rows evenly: sizes differ by at most one."""
    _check_enough(labels, devices, minimum)
    return np.array_split(np.random.default_rng(seed).permutation(len(labels)), devices)


def split_dirichlet(labels: Labels, devices: int, seed: int, *, alpha: float, minimum: int = 1) -> list[Rows]:
    """Share out each label by proportions drawn from Dirichlet(alpha, ..., alpha); small alpha, large skew.

    Devices that come out below `minimum` are filled up from the largest.
    """
    _check_enough(labels, devices, minimum)
    if not 0 < alpha < math.inf:
        raise ConfigError(f"alpha of a Dirichlet split must be positive, not {alpha}")
    rng = np.random.default_rng(seed)
    dealt: list[list[Rows]] = [[] for _ in range(devices)]
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        cuts = np.cumsum(rng.dirichlet(np.full(devices, alpha)))[:-1] * len(rows)
        for own, part in zip(dealt, np.split(rows, np.rint(cuts).astype(np.int64)), strict=True):
            own.append(part)
    return filled_up([rng.permutation(np.concatenate(own)) for own in dealt], minimum)


def split_shards(
    labels: Labels, devices: int, seed: int, *, shards_per_device: int = 2, minimum: int = 1
) -> list[Rows]:
    """Sort rows by label, cut them into equal shards and deal each device `shards_per_device` of them."""
    _check_enough(labels, devices, minimum)
    if shards_per_device < 1:
        raise ConfigError(f"a split by shards needs at least 1 shard per device, not {shards_per_device}")
    rng = np.random.default_rng(seed)
    shuffled = rng.permutation(len(labels))
    by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
    shards = np.array_split(by_label, devices * shards_per_device)
    order = rng.permutation(len(shards)).reshape(devices, shards_per_device)
    return filled_up([rng.permutation(np.concatenate([shards[i] for i in own])) for own in order], minimum)


def stratified(labels: Labels, shares: tuple[float, ...], seed: int) -> list[Rows]:
    """Cut the rows into parts of the given shares, the labels in the same proportions in each."""
    rng = np.random.default_rng(seed)
    parts: list[list[Rows]] = [[] for _ in shares]
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        cuts = np.rint(np.cumsum(shares)[:-1] * len(rows)).astype(np.int64)
        for part, own in zip(parts, np.split(rows, cuts), strict=True):
            part.append(own)
    return [np.sort(np.concatenate(part)) for part in parts]


def filled_up(parts: list[Rows], minimum: int) -> list[Rows]:
    """Move rows from the largest part to each that has fewer than `minimum`."""
    sizes = np.array([len(part) for part in parts])
    for needy in np.flatnonzero(sizes < minimum):
        while sizes[needy] < minimum:
            donor = int(sizes.argmax())
            parts[needy] = np.append(parts[needy], parts[donor][-1])
            parts[donor] = parts[donor][:-1]
            sizes[needy] += 1
            sizes[donor] -= 1
    return parts


def _check_enough(labels: Labels, devices: int, minimum: int) -> None:
    if devices < 1:
        raise ConfigError(f"a split needs at least 1 device, not {devices}")
    if minimum < 0:
        raise ConfigError(f"the minimum of samples per device must not be negative, not {minimum}")
    if devices * minimum > len(labels):
        raise ConfigError(
            f"{len(labels)} samples are too few for {devices} devices with at least {minimum} each: use "
            "fewer devices or a smaller minimum"
        )
