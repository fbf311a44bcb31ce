"""FedPHE: the packs of an update that changed most, under packed homomorphic encryption.

N. Yan, Y. Li, J. Chen, X. Wang, J. Hong, K. He, W. Wang: Efficient and Straggler-Resistant Homomorphic Encryption for
Heterogeneous Federated Learning, INFOCOM 2024. Simplified: packs travel in the clear, filled up to the size of their
ciphertexts, because CKKS adds the very sums that are computed here, up to a noise below float32's; all devices take
part, so the selection of representative ones by sketches has nothing to choose. Sizes are those of its CKKS
parameters in SEAL's layout: degree 8192, so 4096 values a pack, and two polynomials of residues for three primes of
64-bit words, 393,216 bytes (96 bytes a value). The new model goes down as float32: bytes down are too few.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from ofl_iot.errors import DecodeError
from ofl_research.baselines.fedavg import FedAvg
from ofl_research.baselines.letters import Reply, Vector

PACK_VALUES = 4096
CIPHERTEXT_BYTES = 2 * 8192 * 3 * 8


class FedPheOptions(msgspec.Struct, frozen=True):
    """How much of an update leaves the device."""

    share: float = 0.2


class Packs(msgspec.Struct, frozen=True, array_like=True):
    """Some packs of an update: their numbers, their values and what a ciphertext has beyond them."""

    numbers: tuple[int, ...]
    values: bytes
    padding: bytes


class PackPacking:
    """The packs with the largest norms; the rest waits for the next round (its residual)."""

    def __init__(self, options: FedPheOptions) -> None:
        self._share = options.share
        self._residual: Vector | None = None

    def pack(self, start: Vector, trained: Vector) -> bytes:
        """Ciphertexts of a share of the packs."""
        update = trained - start if self._residual is None else trained - start + self._residual
        rows = in_packs(update)
        chosen = np.sort(np.argsort(-np.square(rows).sum(axis=1), kind="stable")[: self._count(len(rows))])
        values = rows[chosen].astype("<f4").tobytes()
        rows[chosen] = 0
        self._residual = rows.ravel()[: len(update)].copy()
        padding = bytes(max(0, len(chosen) * CIPHERTEXT_BYTES - len(values)))
        return msgspec.msgpack.encode(Packs(tuple(chosen.tolist()), values, padding))

    def _count(self, packs: int) -> int:
        return max(1, round(self._share * packs))


def in_packs(update: Vector) -> Vector:
    """One row a pack, the last filled up with zeros."""
    count = -(-len(update) // PACK_VALUES)
    rows = np.zeros(count * PACK_VALUES, np.float32)
    rows[: len(update)] = update
    return rows.reshape(count, PACK_VALUES)


class FedPhe(FedAvg):
    """θ ← θ + Σ |D_i|·packs_i / Σ |D_i|, the sums over all devices: a pack that a device left out counts as zero."""

    def combine(self, round_no: int, replies: Mapping[str, Reply]) -> int:  # noqa: ARG002
        """Add the packs up, each weighed by its device's share of all samples; the rest is in the residuals."""
        total = sum(self._sizes[device] for device in replies)
        rows = np.zeros_like(in_packs(self.model))
        work = 0
        for device, reply in replies.items():
            packs = _read(reply.body)
            values = np.frombuffer(packs.values, "<f4").reshape(len(packs.numbers), PACK_VALUES)
            rows[list(packs.numbers)] += np.float32(self._sizes[device] / total) * values
            work += len(packs.numbers) * CIPHERTEXT_BYTES // 8
        self.model = self.model + rows.ravel()[: len(self.model)]
        return work


def _read(body: bytes) -> Packs:
    try:
        return msgspec.msgpack.decode(body, type=Packs)
    except msgspec.DecodeError as error:
        raise DecodeError(f"no packs of an update: {error}") from error
