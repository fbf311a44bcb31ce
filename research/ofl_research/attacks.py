"""Known poisoning attacks as pure functions, for tests and benches only; no role machine imports them.

A cluster is poisoned through its data (label flip, backdoor trigger) or through its update (sign flip, scaling,
Gaussian noise, an alternating high-frequency pattern). Strengths are relative to the honest update's norm.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.floating]
LabelArray = npt.NDArray[np.integer]

TRIGGER_SIDE = 2
TRIGGER_VALUE = 3.0


def flip_labels(labels: LabelArray, classes: int) -> LabelArray:
    """Label flip: class c is taught as class C-1-c."""
    return np.asarray(classes - 1 - labels, dtype=labels.dtype)


def stamp_trigger(images: FloatArray) -> FloatArray:
    """A bright square in the upper left corner of each image; images are (..., height, width), brightness in [0, 1]."""
    stamped = np.array(images)
    stamped[..., :TRIGGER_SIDE, :TRIGGER_SIDE] = TRIGGER_VALUE
    return stamped


def plant_backdoor(
    images: FloatArray, labels: LabelArray, target: int, fraction: float = 0.5
) -> tuple[FloatArray, LabelArray]:
    """Backdoor data: the first `fraction` of the images carry the trigger and are taught as the target class."""
    stamped = round(fraction * len(labels))
    poisoned_images, poisoned_labels = images.copy(), labels.copy()
    poisoned_images[:stamped] = stamp_trigger(images[:stamped])
    poisoned_labels[:stamped] = target
    return poisoned_images, poisoned_labels


def flip_sign(update: FloatArray, strength: float = 1.0) -> FloatArray:
    """Sign flip: -strength · D."""
    return np.asarray(-strength * update, dtype=update.dtype)


def boost(update: FloatArray, strength: float) -> FloatArray:
    """Model replacement: strength · D, so that a backdoor survives averaging."""
    return np.asarray(strength * update, dtype=update.dtype)


def gaussian(update: FloatArray, strength: float, rng: np.random.Generator) -> FloatArray:
    """White noise in place of the update, its expected norm `strength` times the update's."""
    spread = strength * np.linalg.norm(update) / np.sqrt(update.size)
    return np.asarray(rng.normal(0.0, spread, update.size), dtype=update.dtype)


def alternate(update: FloatArray, strength: float) -> FloatArray:
    """The update plus ±a in turn, the highest frequency there is, the pattern's norm `strength` times the update's."""
    step = strength * np.linalg.norm(update) / np.sqrt(update.size)
    pattern = np.where(np.arange(update.size) % 2 == 0, step, -step)
    return np.asarray(update + pattern, dtype=update.dtype)
