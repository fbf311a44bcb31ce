"""Integer filters that read a frequency band off an encrypted autocorrelation.

With the model in the coefficients, A = D·conj(D) holds the autocorrelation r(k) = Σ_j D_j·D_{j+k} of the update, and
the constant coefficient of W·A with W = h_0 + Σ h_k·(X^k + X^-k) is h_0·r(0) + 2·Σ h_k·r(k): the energy of D weighted
by the response h_0 + 2·Σ h_k·cos(ωk). Taps are integers (times 2^bits) and travel with the request: two machines that
round a cosine differently would otherwise decrypt garbage. Every bit halves the largest energy that does not wrap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ofl_iot.errors import ConfigError, CryptoError

MAX_LAGS: Final = 64
MAX_BITS: Final = 10


@dataclass(frozen=True)
class Filter:
    """A symmetric filter by its taps h_0, h_1, … times 2^bits."""

    name: str
    taps: tuple[int, ...]
    bits: int

    def __post_init__(self) -> None:
        if not 1 <= len(self.taps) <= MAX_LAGS or not any(self.taps):
            raise CryptoError(f"filter {self.name!r}: between 1 and {MAX_LAGS} taps, not all zero")
        if not 0 <= self.bits <= MAX_BITS or self.norm > 2 ** (self.bits + 1):
            raise CryptoError(f"filter {self.name!r}: at most {MAX_BITS} bits and a gain of two")

    @property
    def norm(self) -> float:
        """Length of W's coefficient vector: by how much it enlarges independent noise."""
        return math.sqrt(self.taps[0] ** 2 + 2 * sum(tap**2 for tap in self.taps[1:]))

    def polynomial(self, degree: int) -> npt.NDArray[np.int64]:
        """W as one row of coefficients; X^-k = -X^(N-k)."""
        row = np.zeros((1, degree), dtype=np.int64)
        row[0, 0] = self.taps[0]
        for lag, tap in enumerate(self.taps[1:], start=1):
            row[0, lag] = tap
            row[0, degree - lag] = -tap
        return row

    def response(self, frequency: float) -> float:
        """Gain of the filter at a frequency in [0, 1], 1 being the alternating sequence +-+-."""
        waves = sum(tap * math.cos(math.pi * frequency * lag) for lag, tap in enumerate(self.taps[1:], start=1))
        return math.ldexp(self.taps[0] + 2 * waves, -self.bits)


def band(name: str, low: float, high: float, bits: int = 8) -> Filter:
    """The energy between two frequencies in [0, 1]: ideal taps (sin πkh - sin πkl)/(πk), tapered by a Hann window."""
    if not 0 <= low < high <= 1:
        raise ConfigError(f"band {name!r}: frequencies {low:g} to {high:g} must rise within 0 to 1")
    lags = np.arange(1, MAX_LAGS)
    ideal = (np.sin(np.pi * lags * high) - np.sin(np.pi * lags * low)) / (np.pi * lags)
    tapered = np.concatenate([[high - low], ideal * (0.5 + 0.5 * np.cos(np.pi * lags / MAX_LAGS))])
    taps = [round(float(tap) * 2**bits) for tap in tapered]
    while len(taps) > 1 and taps[-1] == 0:
        taps.pop()
    return Filter(name, tuple(taps), bits)


HIGH_BAND: Final = Filter("high", (2, -1), 2)
"""The high frequencies, where the paper's analysis looks for poisoning: response sin²(ω/2), from 0 for a constant over
1/2 in the middle of the spectrum to 1 for +-+-; the energy of differences between neighbours."""
