"""Shamir shares of mask keys: any t leaders open a weighted sum, t - 1 learn nothing of any key.

    deal      share_i(h) = k_i + Σ_j r_ij·h^j  modulo each prime, j = 1 .. t - 1, h the receiver's point
    answer    Σ_i w_i·share_i(h): a share of K = Σ w_i·k_i
    recover   K from any t answers; with t + 2 or more, Reed-Solomon decoding names the wrong ones

Sums of shares are exact: there is no noise to hide, and another set of leaders yields the same K.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from ofl_iot.crypto import kernels, sampling
from ofl_iot.crypto.context import KeyContext
from ofl_iot.crypto.entropy import Entropy
from ofl_iot.crypto.lean.masks import MaskKey
from ofl_iot.crypto.lean.params import DEGREE, PRIMES
from ofl_iot.crypto.lean.reed_solomon import error_places, interpolate
from ofl_iot.crypto.ring import Residues
from ofl_iot.errors import CryptoError, WrongShareError
from ofl_iot.ids import DeviceId

SHARE_BYTES: Final = DEGREE * sum(p.bit_length() for p in PRIMES) // 8
"""7,680: fourteen and sixteen bits a coefficient."""
_CHECKS: Final = 8
"""Random combinations of all coefficients in which a wrong answer is looked for: one escapes with odds 1/p each."""


def deal(context: KeyContext, key: MaskKey, entropy: Entropy) -> dict[DeviceId, bytes]:
    """Shares of one body's key for every member (also for oneself); seal each to its receiver."""
    shares = {member: np.empty((len(PRIMES), DEGREE), dtype=np.uint32) for member in context.members}
    for limb, p in enumerate(PRIMES):
        coefficients = [sampling.uniform(p, DEGREE, entropy) for _ in range(context.threshold - 1)]
        for member, share in shares.items():
            point = np.uint64(context.point_of(member))
            value = np.zeros(DEGREE, dtype=np.uint64)
            for coefficient in (*coefficients, key.residues[limb]):
                value = (value * point + coefficient) % np.uint64(p)
            share[limb] = value
    return {member: encode_share(share) for member, share in shares.items()}


def encode_share(share: Residues) -> bytes:
    """A share, or a weighted sum of shares, as bytes."""
    out = []
    for limb, p in enumerate(PRIMES):
        words = np.empty(DEGREE // 64 * p.bit_length(), dtype="<u8")
        kernels.pack_bits(np.ascontiguousarray(share[limb]), p.bit_length(), words)
        out.append(words.tobytes())
    return b"".join(out)


def decode_share(data: bytes, title: str) -> Residues:
    """A share from bytes; refuses another size or coefficients that are no residues."""
    if len(data) != SHARE_BYTES:
        raise CryptoError(f"{title}: {len(data)} bytes, a share has {SHARE_BYTES}")
    out = np.empty((len(PRIMES), DEGREE), dtype=np.uint32)
    at = 0
    for limb, p in enumerate(PRIMES):
        size = DEGREE * p.bit_length() // 8
        words = np.frombuffer(data[at : at + size], dtype="<u8")
        if kernels.unpack_bits(words, p.bit_length(), out[limb]) >= p:
            raise CryptoError(f"{title}: a coefficient is not below {p}")
        at += size
    return out


def answer(shares: Mapping[DeviceId, bytes], weights: Mapping[DeviceId, int]) -> bytes:
    """A leader's answer: the weighted sum of what every contributor dealt it."""
    total = np.zeros((len(PRIMES), DEGREE), dtype=np.uint64)
    for contributor, weight in weights.items():
        if contributor not in shares:
            raise CryptoError(f"no share of {contributor}'s key is here")
        total += np.uint64(weight) * decode_share(shares[contributor], f"key share from {contributor}")
    return encode_share((total % _moduli()).astype(np.uint32))


def recover(context: KeyContext, answers: Mapping[DeviceId, bytes]) -> MaskKey:
    """K from t answers or more. WrongShareError names who answered wrongly, or all where it cannot be told."""
    if len(answers) < context.threshold:
        raise CryptoError(f"{len(answers)} answers, {context.threshold} leaders must open a sum")
    members = sorted(answers, key=context.point_of)
    decoded = {member: decode_share(answers[member], f"answer from {member}") for member in members}
    wrong = _wrong_answers(context, members, decoded)
    if wrong:
        raise WrongShareError(f"wrong answers among those of {', '.join(sorted(wrong))}", tuple(sorted(wrong)))
    points = [context.point_of(member) for member in members[: context.threshold]]
    out = np.zeros((len(PRIMES), DEGREE), dtype=np.uint64)
    for limb, p in enumerate(PRIMES):
        for member, factor in zip(members, interpolate(points, 0, p), strict=False):
            out[limb] = (out[limb] + np.uint64(factor) * decoded[member][limb]) % np.uint64(p)
    return MaskKey(out.astype(np.uint32))


def _wrong_answers(
    context: KeyContext, members: Sequence[DeviceId], decoded: Mapping[DeviceId, Residues]
) -> set[DeviceId]:
    """Who did not answer with a point of the one polynomial of degree t - 1.

    Eight fixed combinations of the coefficients stand for all 2,048: a wrong answer that was not made for them agrees
    in all with odds below p^-8.
    """
    if len(members) == context.threshold:
        return set()
    points = [context.point_of(member) for member in members]
    wrong: set[DeviceId] = set()
    for limb, p in enumerate(PRIMES):
        stacked = np.stack([decoded[member][limb] for member in members]).astype(np.uint64)
        seed = b"ofl-iot lean check" + stacked.astype("<u4").tobytes()
        factors = sampling.uniform_from_seed(seed, p, _CHECKS * DEGREE).reshape(_CHECKS, DEGREE).astype(np.uint64)
        for row in factors:
            word = [int(value) for value in (stacked * row % np.uint64(p)).sum(axis=1) % np.uint64(p)]
            places = error_places(points, word, context.threshold, p)
            if places is None:
                return set(members)
            wrong |= {members[place] for place in places}
    return wrong


def _moduli() -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
    return np.array(PRIMES, dtype=np.uint64)[:, None]
