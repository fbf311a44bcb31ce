"""The numbers of lean rounds: ring, error, precision, and what is checked about them."""

from __future__ import annotations

import math
from typing import Final

from ofl_iot.crypto.params import check_security
from ofl_iot.errors import CryptoError

DEGREE: Final = 2048
"""n: coefficients of a mask polynomial, so parameters a row."""
PRIMES: Final = (12289, 40961)
MODULUS: Final = PRIMES[0] * PRIMES[1]
"""q, 28.9 bits."""
check_security(DEGREE, math.log2(MODULUS), 256)

ERROR_SIGMA: Final = 80.0
"""Deviation of e. Knowing Σ w·e leaves an honest e_i with 3.6 or more for weights of 1 to 16 (15:16 is the worst);
the security standard's tables assume 3.2."""

PRECISIONS: Final = (16, 18, 20)
"""P: bits a parameter takes on the wire."""
DEFAULT_PRECISION: Final = 20

WEIGHT_BITS: Final = 6
MAX_WEIGHT: Final = 16
MAX_WEIGHT_SUM: Final = 1 << WEIGHT_BITS

CONTROLS: Final = 64
"""Zeros behind the parameters of every body. If they do not open to zero, the key of the sum is wrong."""


def check_precision(precision: int) -> None:
    """Refuse another number of bits than the analysis covers."""
    if precision not in PRECISIONS:
        raise CryptoError(f"{precision} bits a parameter: lean rounds use one of {PRECISIONS}")


def value_bits(precision: int) -> int:
    """Bits of one quantised value: what P leaves beside the weights."""
    return precision - WEIGHT_BITS


def value_limit(precision: int) -> int:
    """Largest absolute quantised value, 2^(b-1) - 2: a sum at the rail must not wrap when rounding adds to it."""
    return (1 << (value_bits(precision) - 1)) - 2


def padded(n_params: int) -> int:
    """Numbers in a body: the parameters and controls, filled up to a multiple of 64 for the packing."""
    if n_params < 1:
        raise CryptoError(f"a model has at least one parameter, got {n_params}")
    return -(-(n_params + CONTROLS) // 64) * 64


def body_bytes(n_params: int, precision: int) -> int:
    """Size of a body on the wire."""
    check_precision(precision)
    return padded(n_params) * precision // 8


def error_limit(total_weight: int, precision: int) -> int:
    """Largest error of an opened sum, in units of m: Σw/2 + 1/2 + (p/q)·|Σ w·e|, the last within 8 deviations."""
    noise = 8 * ERROR_SIGMA * total_weight * (1 << precision) / MODULUS
    return math.ceil(total_weight / 2 + 0.5 + noise)
