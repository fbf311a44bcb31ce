"""A small two-level federation in numpy, for the detection bench: clusters train, attackers poison, leaders are judged.

It stands in for the virtual runtime and knows nothing of how leaders are judged: the s-factor form is handed in.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ofl_iot.errors import ConfigError
from ofl_iot.ids import DeviceId
from ofl_iot.robust import attacks
from ofl_iot.robust.scores import plain_scores
from ofl_iot.robust.sfactors import SFactor
from ofl_iot.robust.weights import cluster_weights

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]

CLASSES = 10
BACKDOOR_TARGET = 0


@dataclass(frozen=True, eq=False)
class Images:
    """A data set: square images with brightness in [0, 1] and their classes, apart for training and testing."""

    name: str
    train: Floats
    train_labels: Labels
    test: Floats
    test_labels: Labels


@dataclass(frozen=True)
class Setting:
    """One experiment's size."""

    leaders: int = 10
    devices_per_cluster: int = 2
    alpha: float = 0.5
    rounds: int = 30
    merges_per_round: int = 2
    steps: int = 5
    batch: int = 16
    learning_rate: float = 0.2
    hidden: int = 32
    judged_rounds: int = 3


@dataclass(frozen=True)
class Attack:
    """What malicious clusters do to their data, once, and to their update, every round."""

    name: str
    poison_data: Callable[[Floats, Labels], tuple[Any, Any]] | None = None
    poison_update: Callable[[Floats, np.random.Generator], Any] | None = None


ATTACKS: Mapping[str, Attack] = {
    attack.name: attack
    for attack in (
        Attack("none"),
        Attack("label flip", lambda x, y: (x, attacks.flip_labels(y, CLASSES))),
        Attack("sign flip", None, lambda d, _: attacks.flip_sign(d)),
        Attack("sign flip x3", None, lambda d, _: attacks.flip_sign(d, 3.0)),
        Attack(
            "backdoor x5",
            lambda x, y: attacks.plant_backdoor(x, y, BACKDOOR_TARGET),
            lambda d, _: attacks.boost(d, 5.0),
        ),
        Attack("quiet backdoor", lambda x, y: attacks.plant_backdoor(x, y, BACKDOOR_TARGET)),
        Attack("gaussian", None, lambda d, rng: attacks.gaussian(d, 5.0, rng)),
        Attack("high frequency", None, lambda d, _: attacks.alternate(d, 3.0)),
    )
}


@dataclass(frozen=True)
class Outcome:
    """What one run came to; rates are over leaders and rounds, None where there is nobody to count."""

    accuracy: float
    attack_success: float
    true_positive_rate: float | None
    false_positive_rate: float


# --- the model: one hidden layer, many copies trained at once ------------------------------------------------------


@dataclass(frozen=True)
class Perceptron:
    """pixels -> hidden (ReLU) -> classes; parameters are rows of a (copies, size) matrix."""

    pixels: int
    hidden: int

    @property
    def size(self) -> int:
        return self.hidden * (self.pixels + 1) + CLASSES * (self.hidden + 1)

    def initial(self, rng: np.random.Generator) -> Floats:
        theta = np.zeros((1, self.size), dtype=np.float32)
        first, _, second, _ = self.layers(theta)
        first[:] = rng.normal(0.0, np.sqrt(2.0 / self.pixels), first.shape)
        second[:] = rng.normal(0.0, np.sqrt(1.0 / self.hidden), second.shape)
        return np.asarray(theta[0])

    def layers(self, theta: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """Views of (pixels x hidden), (hidden), (hidden x classes), (classes) for each copy."""
        copies, h = len(theta), self.hidden
        ends = np.cumsum([self.pixels * h, h, h * CLASSES])
        w1, b1, w2, b2 = np.split(theta, ends, axis=1)
        return (
            w1.reshape(copies, self.pixels, h),
            b1.reshape(copies, 1, h),
            w2.reshape(copies, h, CLASSES),
            b2.reshape(copies, 1, CLASSES),
        )

    def descend(self, theta: Floats, images: Floats, labels: Labels, rate: float) -> None:
        """One step of stochastic gradient descent of every copy on its own batch, in place."""
        w1, b1, w2, b2 = self.layers(theta)
        step = np.float32(rate / images.shape[1])
        hidden = np.maximum(images @ w1 + b1, 0.0)
        logits = hidden @ w2 + b2
        error = np.exp(logits - logits.max(axis=2, keepdims=True))
        error /= error.sum(axis=2, keepdims=True)
        error[np.arange(len(labels))[:, None], np.arange(labels.shape[1])[None, :], labels] -= 1.0
        back = (error @ w2.transpose(0, 2, 1)) * (hidden > 0.0)
        w2 -= step * (hidden.transpose(0, 2, 1) @ error)
        b2 -= step * error.sum(axis=1, keepdims=True)
        w1 -= step * (images.transpose(0, 2, 1) @ back)
        b1 -= step * back.sum(axis=1, keepdims=True)

    def predict(self, theta: Floats, images: Floats) -> Labels:
        w1, b1, w2, b2 = self.layers(theta[None])
        hidden = np.maximum(images.reshape(len(images), -1) @ w1[0] + b1[0], 0.0)
        return np.asarray((hidden @ w2[0] + b2[0]).argmax(axis=1))


# --- the experiment ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Fleet:
    """Everyone's data pooled and each device's rows; device d serves cluster d // devices_per_cluster."""

    images: Floats
    labels: Labels
    rows: tuple[npt.NDArray[np.int64], ...]
    malicious: frozenset[int]


def build_fleet(data: Images, setting: Setting, attack: Attack, malicious: int, rng: np.random.Generator) -> Fleet:
    """Deal the training images to the devices (Dirichlet over classes) and poison the malicious clusters' share."""
    devices = setting.leaders * setting.devices_per_cluster
    rows = dirichlet_split(data.train_labels, devices, setting.alpha, rng)
    bad = frozenset(int(i) for i in rng.permutation(setting.leaders)[:malicious])
    images, labels = data.train.copy(), data.train_labels.copy()
    for device, own in enumerate(rows):
        if attack.poison_data is not None and device // setting.devices_per_cluster in bad:
            images[own], labels[own] = attack.poison_data(images[own], labels[own])
    return Fleet(images.reshape(len(images), -1), labels, rows, bad)


def dirichlet_split(
    labels: Labels, parts: int, alpha: float, rng: np.random.Generator, least: int = 10
) -> tuple[npt.NDArray[np.int64], ...]:
    """Rows of each of `parts` devices: every class dealt in Dirichlet(alpha) shares, again until all have some."""
    for _ in range(1000):
        dealt: list[list[npt.NDArray[np.int64]]] = [[] for _ in range(parts)]
        for label in range(CLASSES):
            own = rng.permutation(np.flatnonzero(labels == label))
            cuts = (np.cumsum(rng.dirichlet(np.full(parts, alpha)))[:-1] * len(own)).astype(int)
            for part, rows in zip(dealt, np.split(own, cuts), strict=True):
                part.append(rows)
        split = tuple(rng.permutation(np.concatenate(part)) for part in dealt)
        if min(len(rows) for rows in split) >= least:
            return split
    raise ConfigError(f"too few images for {parts} devices at Dirichlet {alpha}: use more images or a larger alpha")


def train_clusters(
    model: Perceptron, theta: Floats, fleet: Fleet, setting: Setting, rng: np.random.Generator
) -> Floats:
    """Every cluster's model after its devices trained and its leader merged, (leaders, size)."""
    per, lengths = setting.devices_per_cluster, np.array([len(rows) for rows in fleet.rows])
    shares = (lengths / np.repeat(lengths.reshape(-1, per).sum(axis=1), per)).astype(np.float32)
    clusters = np.repeat(theta[None], setting.leaders, axis=0)
    for _ in range(setting.merges_per_round):
        local = np.repeat(clusters, per, axis=0)
        for _ in range(setting.steps):
            picks = np.stack([rows[rng.integers(0, len(rows), setting.batch)] for rows in fleet.rows])
            model.descend(local, fleet.images[picks], fleet.labels[picks], setting.learning_rate)
        weighted = shares[:, None] * local
        clusters = weighted.reshape(setting.leaders, per, -1).sum(axis=1)
    return clusters


def run_once(
    data: Images, setting: Setting, attack: Attack, malicious: int, *, s_factor: SFactor, seed: int
) -> Outcome:
    """One federation from the first round to the last under one attack and one s-factor form."""
    rng = np.random.default_rng(seed)
    fleet = build_fleet(data, setting, attack, malicious, rng)
    model = Perceptron(fleet.images.shape[1], setting.hidden)
    theta = model.initial(rng)
    names = tuple(DeviceId(f"leader-{i}") for i in range(setting.leaders))
    per = setting.devices_per_cluster
    sizes = [sum(len(rows) for rows in fleet.rows[i * per : (i + 1) * per]) for i in range(setting.leaders)]
    evidence: Mapping[DeviceId, float] = {}
    caught = wronged = 0
    judged: list[tuple[float, float]] = []
    for round_no in range(setting.rounds):
        deltas = train_clusters(model, theta, fleet, setting, rng) - theta
        if attack.poison_update is not None:
            for i in sorted(fleet.malicious):
                deltas[i] = attack.poison_update(deltas[i], rng)
        verdict = s_factor(plain_scores(dict(zip(names, deltas, strict=True)), theta), evidence)
        evidence = verdict.evidence_after
        weights = cluster_weights(sizes, verdict.multipliers, renormalise=verdict.renormalise)
        theta = (weights @ (theta + deltas)).astype(np.float32)
        flagged = {names.index(leader) for leader in verdict.excluded}
        caught += len(flagged & fleet.malicious)
        wronged += len(flagged - fleet.malicious)
        if round_no >= setting.rounds - setting.judged_rounds:
            judged.append(judge(model, theta, data))
    accuracy, success = np.mean(judged, axis=0)
    honest = setting.leaders - len(fleet.malicious)
    return Outcome(
        accuracy=float(accuracy),
        attack_success=float(success),
        true_positive_rate=caught / (setting.rounds * len(fleet.malicious)) if fleet.malicious else None,
        false_positive_rate=wronged / (setting.rounds * honest),
    )


def judge(model: Perceptron, theta: Floats, data: Images) -> tuple[float, float]:
    """Accuracy on the test images, and how many stamped ones of other classes are taken for the backdoor's target."""
    accuracy = float(np.mean(model.predict(theta, data.test) == data.test_labels))
    others = data.test_labels != BACKDOOR_TARGET
    stamped = attacks.stamp_trigger(data.test[others])
    return accuracy, float(np.mean(model.predict(theta, stamped) == BACKDOOR_TARGET))


# --- data --------------------------------------------------------------------------------------------------------


def load_digits_images() -> Images:
    """scikit-learn's 1,797 digits of 8x8 pixels, every fourth one for testing."""
    from sklearn.datasets import load_digits

    raw = load_digits()
    images = (raw.images / 16.0).astype(np.float32)
    labels = raw.target.astype(np.int64)
    testing = np.arange(len(labels)) % 4 == 3
    return Images("digits", images[~testing], labels[~testing], images[testing], labels[testing])


def load_idx_images(folder: Path, train: int = 4000, test: int = 2000) -> Images:
    """MNIST-format files (*.gz) anywhere below `folder`, brightness averaged over 2x2 pixels to 14x14.

    Training images are the last `train` of the file and testing images the first `test`.
    """
    images, labels = (_read_idx(folder, f"train-{kind}.gz") for kind in ("images-idx3-ubyte", "labels-idx1-ubyte"))
    other, other_labels = (_read_idx(folder, f"t10k-{kind}.gz") for kind in ("images-idx3-ubyte", "labels-idx1-ubyte"))
    return Images(
        folder.name,
        _halve(images[-train:]),
        labels[-train:].astype(np.int64),
        _halve(other[:test]),
        other_labels[:test].astype(np.int64),
    )


def _read_idx(folder: Path, name: str) -> npt.NDArray[np.uint8]:
    found = sorted(folder.rglob(name))
    if not found:
        raise ConfigError(f"no {name} below {folder}: give a folder that holds the four idx files")
    blob = gzip.decompress(found[0].read_bytes())
    dimensions = blob[3]
    shape = np.frombuffer(blob, dtype=">u4", count=dimensions, offset=4).astype(int)
    return np.frombuffer(blob, dtype=np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def _halve(images: npt.NDArray[np.uint8]) -> Floats:
    n, height, width = images.shape
    pooled = images.reshape(n, height // 2, 2, width // 2, 2).mean(axis=(2, 4), dtype=np.float32)
    return np.asarray(pooled / 255.0, dtype=np.float32)
