"""Is a leader's sketch that of its body? Checked at a few random places of the sketch.

For a place j, S[j]·sqrt(2N/3) = <g, D> with g the sketch's signs shifted by j. The same combination of the body needs
one number of the mask key: <g, a·k_i> = constant coefficient of A·k_i with A = Σ_rows a_row·conj(g_row). Each leader
answers that coefficient of A·share_i, `threshold` of them give it exactly, and body and sketch are compared modulo p. A
leader that lies in a share f of its sketch is caught with odds f at each place. What this reveals of an honest update
is one random projection a place.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from ofl_iot.crypto import kernels
from ofl_iot.crypto.context import KeyContext
from ofl_iot.crypto.encryption import EncryptedModel
from ofl_iot.crypto.lean.masks import MaskDomain, _tables, read_body
from ofl_iot.crypto.lean.params import DEGREE, ERROR_SIGMA, MODULUS, PRIMES
from ofl_iot.crypto.lean.quantiser import BLOCK, read_bounds
from ofl_iot.crypto.lean.reed_solomon import error_places, interpolate
from ofl_iot.crypto.ring import Integers, Residues, Small
from ofl_iot.errors import CryptoError, WrongShareError
from ofl_iot.ids import DeviceId

_BATCH: Final = 16
_TAIL: Final = 8.0
_RECORD: Final = np.dtype("<u4")

Numbers = dict[DeviceId, list[tuple[int, int]]]
"""For each contributor and place, a number modulo both primes."""


def sketches_digest(sketches: Mapping[DeviceId, EncryptedModel]) -> bytes:
    """What the places, directions and gains of the scores depend on, so that no sketch can be fitted to them."""
    digest = hashlib.sha256(b"ofl-iot lean sketches v1\n")
    for leader in sorted(sketches):
        model = sketches[leader]
        inner = hashlib.sha256(model.c0.astype("<u4").tobytes() + model.c1.astype("<u4").tobytes())
        digest.update(leader.encode() + b"\n" + inner.digest())
    return digest.digest()


def combination(signs: Small, place: int, bounds: bytes, n_params: int) -> Integers:
    """g with S[place]·sqrt(2N/3) = finest step · <g, m>: signs shifted by `place`, scaled by each block's step."""
    shifted = np.roll(signs, place, axis=1).astype(np.int64)
    shifted[:, :place] *= -1
    exponents = read_bounds(bounds, n_params).astype(np.int64)
    scale = np.repeat(np.int64(1) << (exponents - exponents.min()), BLOCK)[:n_params]
    out: Integers = shifted.reshape(-1)[:n_params] * scale
    return out


def functional(domain: MaskDomain, weights: Integers) -> Residues:
    """A = Σ_rows a_row·conj(g_row), transformed, modulo both primes."""
    rows = -(-weights.size // DEGREE)
    padded = np.zeros(rows * DEGREE, dtype=np.int64)
    padded[: weights.size] = weights
    stacked = padded.reshape(rows, DEGREE)
    total = np.zeros((len(PRIMES), DEGREE), dtype=np.uint64)
    for start in range(0, rows, _BATCH):
        count = min(_BATCH, rows - start)
        public = domain.rows(start, count)
        for limb, prime in enumerate(_tables()):
            transformed = np.empty((count, DEGREE), dtype=np.uint32)
            kernels.reduce_wide(np.ascontiguousarray(stacked[start : start + count]), prime.value, transformed)
            kernels.ntt_forward(transformed, prime.forward, prime.forward_shoup, prime.value)
            part = np.empty(DEGREE, dtype=np.uint32)
            kernels.correlate(public[limb], transformed, prime.value, part)
            total[limb] = (total[limb] + part) % np.uint64(prime.value)
    return total.astype(np.uint32)


def evaluate(functional_of: Residues, share: Residues) -> tuple[int, int]:
    """Constant coefficient of A·share modulo both primes: the mean of the products of their evaluations."""
    out = []
    for limb, prime in enumerate(_tables()):
        transformed = share[limb].reshape(1, DEGREE).copy()
        kernels.ntt_forward(transformed, prime.forward, prime.forward_shoup, prime.value)
        p = int(prime.value)
        summed = int((functional_of[limb].astype(np.uint64) * transformed[0] % np.uint64(p)).sum())
        out.append(summed * pow(DEGREE, -1, p) % p)
    return out[0], out[1]


def encode_numbers(numbers: Mapping[DeviceId, Sequence[tuple[int, int]]]) -> bytes:
    """A leader's numbers in the order of the contributors' names."""
    flat = [value for name in sorted(numbers) for pair in numbers[name] for value in pair]
    return np.array(flat, dtype=_RECORD).tobytes()


def decode_numbers(data: bytes, contributors: Sequence[DeviceId], places: int, title: str) -> Numbers:
    """Numbers from bytes; refuses another count or what is no residue."""
    if len(data) != _RECORD.itemsize * 2 * places * len(contributors):
        raise CryptoError(f"{title}: {len(data)} bytes of numbers for {len(contributors)} sketches")
    values = np.frombuffer(data, dtype=_RECORD).reshape(len(contributors), places, 2)
    if values.size and not (values < np.array(PRIMES, dtype=np.uint32)).all():
        raise CryptoError(f"{title}: a number that is no residue")
    return {
        name: [(int(first), int(second)) for first, second in values[row]]
        for row, name in enumerate(sorted(contributors))
    }


def recover_number(context: KeyContext, answers: Mapping[DeviceId, tuple[int, int]]) -> int:
    """<g, a·k_i> modulo q from threshold answers or more; WrongShareError names who answered wrongly."""
    members = sorted(answers, key=context.point_of)
    if len(members) < context.threshold:
        raise CryptoError(f"{len(members)} answers, {context.threshold} are needed")
    points = [context.point_of(name) for name in members]
    residues = []
    for limb, p in enumerate(PRIMES):
        word = [answers[name][limb] for name in members]
        wrong = error_places(points, word, context.threshold, p)
        if wrong is None or wrong:
            suspects = members if wrong is None else [members[place] for place in wrong]
            raise WrongShareError(f"wrong numbers of {', '.join(suspects)}", tuple(suspects))
        factors = interpolate(points[: context.threshold], 0, p)
        residues.append(sum(f * value for f, value in zip(factors, word, strict=False)) % p)
    first, second = residues
    return first + PRIMES[0] * ((second - first) * pow(PRIMES[0], -1, PRIMES[1]) % PRIMES[1])


def difference(body: bytes, weights: Integers, number: int, sketched: float, precision: int) -> int:
    """<g, m> by the body minus what the sketch says (in the finest step), modulo p and centred."""
    p = 1 << precision
    numbers = read_body(body, weights.size, precision)[: weights.size].astype(np.int64)
    combined = int((weights * numbers).sum()) - ((2 * (number << precision) + MODULUS) // (2 * MODULUS))
    off = (combined - round(sketched)) % p
    return off - p if off > p // 2 else off


def allowed(weights: Integers, sketch_noise: float, precision: int) -> float:
    """How far an honest body and sketch may differ; `sketch_noise` is the deviation of the decrypted number."""
    rounding = 1 / 12 + (ERROR_SIGMA * (1 << precision) / MODULUS) ** 2
    spread = math.sqrt(float(np.square(weights.astype(np.float64)).sum()) * rounding)
    return _TAIL * math.hypot(spread, sketch_noise) + 2.0


def finest_step(bounds: bytes, n_params: int, value_bits: int) -> float:
    """The step of the block with the smallest bound."""
    exponent: npt.NDArray[np.int8] = read_bounds(bounds, n_params)
    return math.ldexp(1.0, int(exponent.min()) - value_bits + 1)
