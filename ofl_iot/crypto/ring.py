"""The ring R_Q = Z_Q[X]/(X^N + 1) by residues: one transformed row of uint32 for each prime.

A stack of polynomials is an array `(limbs, rows, N)` of residues in transformed (NTT) form, one limb for each prime
of a prefix of Q's primes; a single polynomial is `(limbs, N)`. The transform's order agrees with
Microsoft SEAL's: the smallest primitive 2N-th root, bit-reversed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from ofl_iot.crypto import kernels
from ofl_iot.crypto.params import ParameterSet

Residues = npt.NDArray[np.uint32]
Integers = npt.NDArray[np.int64]
Small = npt.NDArray[np.int8]


@dataclass(frozen=True)
class Prime:
    """Twiddle tables of one prime."""

    value: np.uint32
    forward: Residues
    forward_shoup: Residues
    backward: Residues
    backward_shoup: Residues
    degree_inverse: np.uint32
    degree_inverse_shoup: np.uint32

    @classmethod
    def of(cls, p: int, degree: int) -> Prime:
        """Tables for stage s and pair j: root^bitreverse(2^s + j mod 2^s)."""
        root = _smallest_root(p, degree)
        forward, forward_shoup = _twiddles(root, p, degree)
        backward, backward_shoup = _twiddles(pow(root, -1, p), p, degree)
        n_inv = pow(degree, -1, p)
        return cls(
            np.uint32(p), forward, forward_shoup, backward, backward_shoup, np.uint32(n_inv), shoup_number(n_inv, p)
        )


def _smallest_root(p: int, degree: int) -> int:
    """The smallest primitive 2N-th root of one modulo p."""
    found = next(root for base in range(2, p) if pow(root := pow(base, (p - 1) // (2 * degree), p), degree, p) == p - 1)
    square = found * found % p
    smallest = power = found
    for _ in range(degree):
        power = power * square % p
        smallest = min(smallest, power)
    return smallest


def _twiddles(root: int, p: int, degree: int) -> tuple[Residues, Residues]:
    powers = [1]
    for _ in range(degree - 1):
        powers.append(powers[-1] * root % p)
    stages = degree.bit_length() - 1
    order = np.zeros(degree, dtype=np.int64)
    for bit in range(stages):
        order |= ((np.arange(degree) >> bit) & 1) << (stages - 1 - bit)
    shuffled = np.array(powers, dtype=np.uint32)[order]
    pair = np.arange(degree // 2)
    table = np.stack([shuffled[(1 << s) + pair % (1 << s)] for s in range(stages)])
    return table, shoup(table, p)


def shoup(values: Residues, p: int) -> Residues:
    """Shoup's constants floor(w·2^32/p) of fixed factors."""
    constants: Residues = ((values.astype(np.uint64) << np.uint64(32)) // np.uint64(p)).astype(np.uint32)
    return constants


def shoup_number(value: int, p: int) -> np.uint32:
    """Shoup's constant of one factor."""
    constant: np.uint32 = np.uint32((value << 32) // p)
    return constant


def conjugate(x: Residues) -> Residues:
    """X -> 1/X: reversal of the transformed rows."""
    return np.ascontiguousarray(x[..., ::-1])


class Ring:
    """Arithmetic on residue stacks for one parameter set."""

    def __init__(self, params: ParameterSet) -> None:
        self.params = params
        self.degree = params.degree
        self.moduli = params.primes
        self.primes = tuple(Prime.of(p, params.degree) for p in self.moduli)

    def transform(self, rows: Residues, limb: int) -> None:
        """Coefficients of one limb to transformed form, in place; rows is (rows, N)."""
        prime = self.primes[limb]
        kernels.ntt_forward(rows, prime.forward, prime.forward_shoup, prime.value)

    def untransform(self, rows: Residues, limb: int) -> None:
        """Transformed rows of one limb to coefficients, in place."""
        prime = self.primes[limb]
        kernels.ntt_inverse(
            rows,
            prime.backward,
            prime.backward_shoup,
            prime.value,
            prime.degree_inverse,
            prime.degree_inverse_shoup,
        )

    def limb_of(self, values: Small | Integers, limb: int) -> Residues:
        """Signed coefficients `(rows, N)` to one transformed limb."""
        rows = np.empty(values.shape, dtype=np.uint32)
        self.limb_into(values, limb, rows)
        return rows

    def limb_into(self, values: Small | Integers, limb: int, out: Residues) -> None:
        """The same, into rows that exist already."""
        reduce = kernels.reduce_small if values.dtype == np.int8 else kernels.reduce_wide
        reduce(values, self.primes[limb].value, out)
        self.transform(out, limb)

    def from_integers(self, values: Small | Integers, limbs: int) -> Residues:
        """Signed coefficients `(rows, N)` to a transformed stack `(limbs, rows, N)`."""
        out = np.empty((limbs, *values.shape), dtype=np.uint32)
        for limb in range(limbs):
            self.limb_into(values, limb, out[limb])
        return out

    def add(self, x: Residues, y: Residues) -> Residues:
        """x + y."""
        return self._by_limb(x.astype(np.uint64) + y)

    def subtract(self, x: Residues, y: Residues) -> Residues:
        """x - y."""
        return self._by_limb(x.astype(np.uint64) + self._moduli(x) - y)

    def multiply(self, x: Residues, y: Residues) -> Residues:
        """x·y."""
        return self._by_limb(x.astype(np.uint64) * y)

    def scale(self, x: Residues, number: int) -> Residues:
        """number·x for one integer."""
        factors = np.array([number % p for p in self.moduli[: len(x)]], dtype=np.uint64)
        return self._by_limb(x.astype(np.uint64) * factors.reshape(-1, *([1] * (x.ndim - 1))))

    def _moduli(self, x: npt.NDArray[np.uint32] | npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        chain = np.array(self.moduli[: len(x)], dtype=np.uint64)
        return chain.reshape(-1, *([1] * (x.ndim - 1)))

    def _by_limb(self, x: npt.NDArray[np.uint64]) -> Residues:
        return (x % self._moduli(x)).astype(np.uint32)

    def correlate(self, x: Residues, y: Residues) -> Residues:
        """Σ over rows of x·conj(y): `(limbs, rows, N)` twice to one polynomial `(limbs, N)`."""
        out = np.empty((len(x), self.degree), dtype=np.uint32)
        for limb in range(len(x)):
            kernels.correlate(x[limb], y[limb], self.primes[limb].value, out[limb])
        return out

    def subtract_rows(self, x: Residues, y: Residues) -> Residues:
        """x - y for whole stacks `(limbs, rows, N)`."""
        out: Residues = x.copy()
        for limb, p in enumerate(self.moduli[: len(x)]):
            kernels.subtract_scale(out[limb], y[limb], np.uint32(1), shoup_number(1, p), np.uint32(p))
        return out

    def scale_add(self, x: Residues, number: int, out: Residues) -> None:
        """out += number·x, in place."""
        for limb, p in enumerate(self.moduli[: len(out)]):
            w = number % p
            kernels.scale_add(x[limb], np.uint32(w), shoup_number(w, p), np.uint32(p), out[limb])

    def multiply_add(self, rows: Residues, w: Residues, out: Residues) -> None:
        """out += rows·w for one polynomial w `(limbs, N)`, in place."""
        for limb, p in enumerate(self.moduli[: len(out)]):
            kernels.multiply_add(rows[limb], w[limb], shoup(w[limb], p), np.uint32(p), out[limb])

    def switch_modulus(self, x: Residues, limbs: int) -> Residues:
        """round(x·q/Q) from all limbs of x to the first `limbs`, one prime at a time."""
        out = [x[limb].copy() for limb in range(len(x))]
        while len(out) > limbs:
            last = out.pop()
            dropped = len(out)
            self.untransform(last, dropped)
            lifted = np.empty_like(last)
            for limb, p in enumerate(self.moduli[:dropped]):
                kernels.lift_centred(last, self.primes[dropped].value, np.uint32(p), lifted)
                self.transform(lifted, limb)
                inverse = pow(self.moduli[dropped], -1, p)
                kernels.subtract_scale(out[limb], lifted, np.uint32(inverse), shoup_number(inverse, p), np.uint32(p))
        return np.stack(out)

    def join(self, first: Residues, second: Residues, limbs: tuple[int, int]) -> Integers:
        """Two transformed limbs `(rows, N)` to centred integer coefficients modulo both primes."""
        one, two = first.copy(), second.copy()
        self.untransform(one, limbs[0])
        self.untransform(two, limbs[1])
        out = np.empty(one.shape, dtype=np.int64)
        kernels.join_pair(one, two, self.primes[limbs[0]].value, self.primes[limbs[1]].value, out)
        return out

    def constant(self, x: Residues) -> tuple[int, ...]:
        """Constant coefficient of one polynomial `(limbs, N)`, by prime: the mean of its evaluations."""
        totals = x.astype(np.uint64).sum(axis=1)
        return tuple(int(total) * pow(self.degree, -1, p) % p for total, p in zip(totals, self.moduli, strict=False))

    def centred(self, residues: tuple[int, ...]) -> int:
        """The centred integer with these residues."""
        chain = self.moduli[: len(residues)]
        modulus = math.prod(chain)
        value = (
            sum(r * (modulus // p) * pow(modulus // p, -1, p) for r, p in zip(residues, chain, strict=True)) % modulus
        )
        return value - modulus if value > modulus // 2 else value


@lru_cache(maxsize=4)
def ring_of(params: ParameterSet) -> Ring:
    """The ring of a parameter set; its tables are built once."""
    return Ring(params)
