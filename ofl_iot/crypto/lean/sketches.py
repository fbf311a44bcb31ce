"""Scores of lean rounds: a sketch of 4,096 numbers under the term's threshold key, and requests that leaders recompute.

    S_i = Σ_rows conj(r_row)·D_row / sqrt(2N/3)        r uniform -1, 0, 1, from SHAKE(all headers)

A circulant sketch commutes with the band filter, so lengths, inner products and band energies are kept within
sqrt(2/N) = 2.2 %. r is fixed only when all bodies are in. Everything random in a request (directions, gains, Enc(0))
comes from the headers, the sketches and the number of the try, so each leader computes the request itself and decrypts
what it computed; smudging is the leader's own. The sketch key masks nothing, and answers few numbers (`budget`).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ofl_iot.crypto import sampling
from ofl_iot.crypto.context import KeyContext
from ofl_iot.crypto.encryption import EncryptedModel, PublicKey, encrypt_zero
from ofl_iot.crypto.entropy import Entropy
from ofl_iot.crypto.lean.binding import sketches_digest
from ofl_iot.crypto.lean.budget import BINDINGS
from ofl_iot.crypto.lean.header import Header
from ofl_iot.crypto.params import DECRYPTION_LIMBS
from ofl_iot.crypto.relinearisation import RelinFirst, RelinKey
from ofl_iot.crypto.ring import Residues, Small, ring_of
from ofl_iot.crypto.scalars import HeldScalars, ScalarCiphertexts, ScalarRequest, least_sigma
from ofl_iot.crypto.scores import ScorePlan, score_models
from ofl_iot.errors import CryptoError
from ofl_iot.ids import DeviceId


class PublicCoins:
    """Bytes that everybody derives alike from a seed: SHAKE-256(seed, counter)."""

    def __init__(self, seed: bytes) -> None:
        self._seed = seed
        self._calls = 0

    def random_bytes(self, count: int) -> bytes:
        """The next `count` bytes."""
        self._calls += 1
        return hashlib.shake_256(self._seed + self._calls.to_bytes(8, "little")).digest(count)


def seed_of(headers: Iterable[Header], purpose: str, retry: int = 0, drawn: bytes = b"") -> bytes:
    """32 bytes that nobody knows before all headers are made, and all sketches where `drawn` is their digest."""
    digest = hashlib.sha256(b"ofl-iot lean coins v1\n" + purpose.encode() + b"\n" + retry.to_bytes(8, "little"))
    for encoded in sorted(header.encode() for header in headers):
        digest.update(hashlib.sha256(encoded).digest())
    digest.update(drawn)
    return digest.digest()


def signs_of(headers: Iterable[Header], n_params: int, degree: int) -> Small:
    """The public signs r of the sketch, a row for each `degree` parameters."""
    return sampling.ternary((-(-n_params // degree), degree), PublicCoins(seed_of(headers, "sketch")))


def places_of(headers: Iterable[Header], drawn: bytes, retry: int, degree: int) -> tuple[int, ...]:
    """Where sketches are compared with bodies: known only when all sketches are in."""
    octets = PublicCoins(seed_of(headers, "places", retry, drawn)).random_bytes(4 * BINDINGS)
    return tuple(int.from_bytes(octets[4 * n : 4 * n + 4], "little") % degree for n in range(BINDINGS))


def sketch(update: npt.NDArray[np.float32], headers: Iterable[Header], degree: int) -> npt.NDArray[np.float64]:
    """S of one update."""
    rows = -(-update.size // degree)
    values = np.zeros(rows * degree)
    values[: update.size] = update
    signs = signs_of(headers, update.size, degree)
    twist = np.exp(1j * np.pi * np.arange(degree) / degree)
    total = np.zeros(degree, dtype=np.complex128)
    for row, sign in zip(values.reshape(rows, degree), signs, strict=True):
        total += np.conj(np.fft.fft(sign * twist)) * np.fft.fft(row * twist)
    summed: npt.NDArray[np.float64] = (np.fft.ifft(total) / twist).real / math.sqrt(2 * degree / 3)
    return summed


def relin_of(first: RelinFirst) -> RelinKey:
    """All that a leader needs of the relinearisation key: the second halves of a product use H1 alone."""
    return RelinKey(first.origin, np.zeros_like(first.h0), first.h1)


def _fresh(
    public: PublicKey, scored: ScalarCiphertexts, headers: Sequence[Header], retry: int, drawn: bytes
) -> tuple[Residues, Residues]:
    """The score ciphertexts plus the public Enc(0) of this try."""
    coins = PublicCoins(seed_of(headers, "fresh", retry, drawn))
    zero0, zero1 = encrypt_zero(public, scored.c0.shape[1], coins)
    ring = ring_of(public.context.params)
    ring.scale_add(scored.c0, 1, zero0)
    ring.scale_add(scored.c1, 1, zero1)
    return zero0, zero1


def _scored(
    relin: RelinKey, sketches: Mapping[DeviceId, EncryptedModel], headers: Sequence[Header], retry: int, plan: ScorePlan
) -> ScalarCiphertexts:
    context = relin.origin.context
    known = {header.sender for header in headers}
    for leader, model in sketches.items():
        if leader not in known:
            raise CryptoError(f"a sketch of {leader}, which has no header in this round")
        if model.n_params != context.params.degree:
            raise CryptoError(f"sketch of {leader}: {model.n_params} numbers, not {context.params.degree}")
    ordered = {leader: sketches[leader] for leader in sorted(sketches)}
    nothing = np.zeros(context.params.degree, np.float32)
    drawn = sketches_digest(ordered)
    coins = PublicCoins(seed_of(headers, "scores", retry, drawn))
    places = places_of(headers, drawn, retry, context.params.degree)
    return score_models(relin, ordered, nothing, plan=plan, entropy=coins, places=places)


def _request(scored: ScalarCiphertexts, active: Sequence[DeviceId], c1: Residues) -> ScalarRequest:
    return ScalarRequest(
        scored.origin, tuple(active), scored.contributors, scored.filters, scored.queries, scored.sigmas, c1
    )


def compute_request(
    public: PublicKey,
    relin: RelinKey,
    sketches: Mapping[DeviceId, EncryptedModel],
    headers: Sequence[Header],
    *,
    active: Sequence[DeviceId],
    retry: int,
    plan: ScorePlan,
) -> ScalarRequest:
    """The request that this try's headers and sketches make: what a leader answers, whatever it was sent."""
    context: KeyContext = public.context
    context.check_active(tuple(active))
    scored = _scored(relin, sketches, headers, retry, plan)
    _, second = _fresh(public, scored, headers, retry, sketches_digest(sketches))
    return _request(scored, active, ring_of(context.params).switch_modulus(second, DECRYPTION_LIMBS))


def hold_scores(
    public: PublicKey,
    relin: RelinKey,
    sketches: Mapping[DeviceId, EncryptedModel],
    headers: Sequence[Header],
    *,
    active: Sequence[DeviceId],
    retry: int,
    plan: ScorePlan,
    entropy: Entropy,
) -> HeldScalars:
    """The coordinator's half of the same request, flooded with noise of its own."""
    context = public.context
    ring = ring_of(context.params)
    scored = _scored(relin, sketches, headers, retry, plan)
    first, second = _fresh(public, scored, headers, retry, sketches_digest(sketches))
    request = _request(scored, active, ring.switch_modulus(second, DECRYPTION_LIMBS))
    c0 = ring.switch_modulus(first, DECRYPTION_LIMBS)
    for row, sigma in enumerate(np.maximum(scored.sigmas, least_sigma(context))):
        flood = ring.from_integers(sampling.gaussian((1, ring.degree), float(sigma), entropy), DECRYPTION_LIMBS)
        ring.scale_add(flood, 1, c0[:, row : row + 1])
    return HeldScalars(
        replace(scored.origin),
        request.active,
        request.request_id,
        scored.filters,
        scored.queries,
        scored.gains,
        scored.sigmas,
        c0,
    )
