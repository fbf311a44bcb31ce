"""Long vectors, a cache-sized piece or a sample at a time.

Temporary vectors as long as the model cost more time (fresh pages) than the arithmetic on them, and memory that small
devices do not have.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float32]
_Scalar = TypeVar("_Scalar", bound=np.generic)

BLOCK = 65536
SAMPLE = 16_384
"""Statistics that only steer the order (medians, quantiles, densities) are read from about so many values."""


def blocks(size: int) -> Iterator[slice]:
    """Consecutive slices that cover a vector of `size`; each but the last holds BLOCK values."""
    for start in range(0, size, BLOCK):
        yield slice(start, min(start + BLOCK, size))


def strided_sample(values: npt.NDArray[_Scalar]) -> npt.NDArray[_Scalar]:
    """About SAMPLE of the values, evenly spread: always the same ones, no randomness is spent."""
    stride = max(1, len(values) // SAMPLE)
    return values[:: stride | 1]  # odd, so that it does not fall in step with a layer's width
