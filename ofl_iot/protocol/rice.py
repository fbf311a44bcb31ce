"""Gaps between selected parameters by a Rice code: near their entropy, and read without a loop over them.

    gap = quotient · 2^k + remainder

One byte is k, then come all remainders, k bits each, then all quotients in unary (so many zeros and a one). A code of
gaps with mean m takes about k + 1 + m / 2^k bits a gap: at every tenth parameter 4.8, where the entropy is 4.7.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Gaps = npt.NDArray[np.int64]
MAX_BITS = 32


def encode_gaps(gaps: Gaps) -> bytes:
    """Code gaps, at least one, none negative."""
    bits = best_bits(gaps)
    remainders = ((gaps[:, None] >> np.arange(bits)) & 1).astype(np.uint8)
    ends = np.cumsum((gaps >> bits) + 1)
    unary = np.zeros(int(ends[-1]), np.uint8)
    unary[ends - 1] = 1
    return bytes([bits]) + _packed(remainders.reshape(-1)) + _packed(unary)


def best_bits(gaps: Gaps) -> int:
    """The k with which these gaps take the fewest bits, of the two next to what their mean suggests."""
    guess = math.floor(math.log2(max(1.0, (float(gaps.mean()) + 1) * math.log(2))))
    return min((min(MAX_BITS, k) for k in (guess, guess + 1)), key=lambda k: len(gaps) * k + int((gaps >> k).sum()))


def decode_gaps(coded: bytes, count: int) -> Gaps:
    """The gaps of a code, or ValueError unless it is one of so many gaps, with nothing behind it."""
    bits = coded[0] if coded else MAX_BITS + 1
    middle = 1 + (count * bits + 7) // 8
    if bits > MAX_BITS or count < 1 or len(coded) <= middle:
        raise ValueError("the gaps are cut")
    remainders = np.unpackbits(np.frombuffer(coded, np.uint8, offset=1, count=middle - 1), bitorder="little")
    unary = np.frombuffer(coded, np.uint8, offset=middle)
    ends = np.flatnonzero(np.unpackbits(unary, bitorder="little"))
    if len(ends) != count or not unary[-1] or remainders[count * bits :].any():
        raise ValueError(f"the code is not of {count} gaps")
    quotients = np.diff(ends, prepend=-1) - 1
    weights = np.left_shift(1, np.arange(bits, dtype=np.int64))
    rests = remainders[: count * bits].reshape(count, bits).astype(np.int64) @ weights
    gaps: Gaps = (quotients << bits) + rests
    return gaps


def _packed(bits: npt.NDArray[np.uint8]) -> bytes:
    return np.packbits(bits, bitorder="little").tobytes()
