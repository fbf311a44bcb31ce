"""What the coordinator learns about a round's encrypted cluster models: distances, band energies, inner products.

With θ the public global model and D_i = θ̄_i - θ the update of leader i, all of it is decrypted as scalars from
products of ciphertexts. The same statistics in the clear serve clear mode and the tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ofl_iot.errors import RoundError
from ofl_iot.ids import DeviceId

FloatArray = npt.NDArray[np.float64]

BLOCK = 4096
"""Coefficients in one ciphertext; the spectrum is taken block by block."""


@dataclass(frozen=True, eq=False)
class RoundScores:
    """The decrypted statistics of one round, one row per leader.

    distance2   ||D_i||²
    high_band   energy of D_i in the upper half band, at most ||D_i||²
    gram        <D_i, D_j>, n x n
    model_band  energy of θ̄_i itself in the upper half band; only the `literal` s-factor asks for it
    """

    leaders: tuple[DeviceId, ...]
    distance2: FloatArray
    high_band: FloatArray
    gram: FloatArray
    model_band: FloatArray | None = None

    def __post_init__(self) -> None:
        n = len(self.leaders)
        if n == 0:
            raise RoundError("scores of no leader: a round needs at least one cluster model")
        if len(set(self.leaders)) != n:
            raise RoundError("a leader is scored twice in one round: keep one cluster model per leader")
        wanted = {"distance2": (n,), "high_band": (n,), "gram": (n, n), "model_band": (n,)}
        for name, shape in wanted.items():
            values = getattr(self, name)
            if values is None:
                continue
            if values.shape != shape:
                raise RoundError(f"{name} has shape {values.shape}, but {n} leaders need {shape}")
            if not np.isfinite(values).all():
                raise RoundError(f"{name} holds a value that is not finite: drop the round, its decryption failed")

    @property
    def norms(self) -> FloatArray:
        """||D_i||; decryption noise may push a square of nearly nothing below zero, which counts as nothing."""
        return np.sqrt(np.maximum(self.distance2, 0.0))

    @property
    def cosines(self) -> FloatArray:
        """Cosine of the angle between each two updates; 0 where one of them is nothing."""
        norms = self.norms
        products = np.outer(norms, norms)
        cosines = np.divide(self.gram, products, out=np.zeros_like(products), where=products > 0.0)
        return np.clip(cosines, -1.0, 1.0)


def high_band_energy(values: npt.ArrayLike, block: int = BLOCK) -> float:
    """Energy of a vector in the upper half of the odd-frequency spectrum of its blocks.

    F_k = Σ_j x_j exp(-iπ(2k+1)j / N),  energy = 1/N Σ |F_k|² over the k with ω_k >= 1/2, where
    ω_k = (2k+1)/N folded into [0, 1] is the frequency in units of π. These are the evaluation points of the ring
    X^N + 1, so the ciphertext needs no transform of its own. The last block is padded with zeros.
    """
    flat = np.asarray(values, dtype=np.float64).ravel()
    padded = np.zeros((max(1, -(-flat.size // block)), block))
    padded.reshape(-1)[: flat.size] = flat
    twist = np.exp(-1j * np.pi * np.arange(block) / block)
    spectrum = np.fft.fft(padded * twist, axis=1)
    frequency = (2.0 * np.arange(block) + 1.0) / block
    folded = np.where(frequency > 1.0, 2.0 - frequency, frequency)
    return float(np.sum(np.abs(spectrum[:, folded >= 0.5]) ** 2) / block)


def plain_scores(
    deltas: Mapping[DeviceId, npt.NDArray[np.floating]],
    base: npt.NDArray[np.floating] | None = None,
    block: int = BLOCK,
) -> RoundScores:
    """The statistics of updates that are not encrypted; with the global model as `base` also those of the models."""
    if not deltas:
        raise RoundError("scores of no leader: a round needs at least one cluster model")
    sizes = {delta.size for delta in deltas.values()}
    if len(sizes) != 1 or (base is not None and base.size not in sizes):
        raise RoundError(f"updates of different lengths {sorted(sizes)}: all clusters train the same model")
    rows = np.stack([np.asarray(delta, dtype=np.float64).ravel() for delta in deltas.values()])
    gram = rows @ rows.T
    models = None if base is None else rows + np.asarray(base, dtype=np.float64).ravel()
    return RoundScores(
        leaders=tuple(deltas),
        distance2=np.diag(gram).copy(),
        high_band=_energies(rows, block),
        gram=gram,
        model_band=None if models is None else _energies(models, block),
    )


def _energies(rows: FloatArray, block: int) -> FloatArray:
    return np.array([high_band_energy(row, block) for row in rows])
