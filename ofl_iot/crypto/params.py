"""Named parameter sets and the table that refuses weak ones.

A set fixes the ring Z_Q[X]/(X^N + 1), the primes of Q, the primes of q_dec (the first ones) and the encoding
scale. What it must offer in security is a field of the set; `ParameterSet` cannot be built below it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from ofl_iot.errors import ConfigError, CryptoError

MAX_LOG_MODULUS: Final = {
    128: {1024: 27, 2048: 54, 4096: 109, 8192: 218, 16384: 438, 32768: 881},
    192: {1024: 19, 2048: 37, 4096: 75, 8192: 152, 16384: 305, 32768: 611},
    256: {1024: 14, 2048: 29, 4096: 58, 8192: 118, 16384: 237, 32768: 476},
}
"""Largest log2 of the whole modulus by security level and ring degree: uniform ternary secret, error deviation
3.2, classical attacks (Homomorphic Encryption Security Standard, 2018, table 1)."""

ERROR_SIGMA: Final = math.sqrt(21 / 2)
"""Deviation of the centred binomial error, 3.24; the standard's table assumes 3.19 or more."""

MAX_PRIME: Final = 1 << 30
"""Lazy butterflies hold values below four primes in 32 bits."""

DECRYPTION_LIMBS: Final = 2
"""q_dec is the product of the first two primes of Q."""

_WITNESSES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)


@dataclass(frozen=True)
class ParameterSet:
    """One named choice of ring, moduli and scale; refuses to exist below its security level."""

    name: str
    code: int
    """The set's number on the wire."""
    degree: int
    """N: coefficients of a polynomial, so parameters a ciphertext."""
    primes: tuple[int, ...]
    """The primes of Q; the first `DECRYPTION_LIMBS` of them make q_dec."""
    scale_bits: int = 41
    """A parameter x is encoded as round(x · 2^scale_bits)."""
    bound: float = 16.0
    """Largest absolute parameter that may be encrypted."""
    smudging_bits: int = 14
    """Noise added in a decryption is 2^smudging_bits times the noise it must hide."""
    security_bits: int = 128

    def __post_init__(self) -> None:
        check_security(self.degree, self.log_modulus, self.security_bits)
        if len(set(self.primes)) != len(self.primes):
            raise ConfigError(f"parameter set {self.name!r}: a prime is listed twice")
        for prime in self.primes:
            if prime >= MAX_PRIME or prime % (2 * self.degree) != 1 or not is_prime(prime):
                raise ConfigError(
                    f"parameter set {self.name!r}: {prime} must be a prime below 2^30 "
                    f"that is 1 modulo {2 * self.degree}"
                )
        if len(self.primes) <= DECRYPTION_LIMBS:
            raise ConfigError(f"parameter set {self.name!r}: q_dec must be a proper part of Q")
        if self.weight_bits < 20:
            raise ConfigError(f"parameter set {self.name!r}: Q leaves only {self.weight_bits} bits for weights")

    @property
    def modulus(self) -> int:
        """Q, the modulus of ciphertexts."""
        return math.prod(self.primes)

    @property
    def decryption_modulus(self) -> int:
        """q_dec, the small modulus of threshold decryption."""
        return math.prod(self.primes[:DECRYPTION_LIMBS])

    @property
    def log_modulus(self) -> float:
        """log2(Q), what the security table limits."""
        return math.log2(self.modulus)

    @property
    def scale(self) -> float:
        """Encoding scale of a fresh ciphertext."""
        return math.ldexp(1.0, self.scale_bits)

    @property
    def weight_bits(self) -> int:
        """Integer weights are round(w · 2^weight_bits): the largest power for which a sum within the bound fits Q."""
        return math.floor(math.log2(self.modulus / (2 * self.bound * self.scale)))

    def rows(self, n_params: int) -> int:
        """How many ciphertexts hold `n_params` parameters: ceil(n/N)."""
        if n_params < 1:
            raise CryptoError(f"a model has at least one parameter, got {n_params}")
        return -(-n_params // self.degree)


def check_security(degree: int, log_modulus: float, security_bits: int = 128) -> None:
    """Refuse a ring that the security standard's table does not allow at this level."""
    if security_bits not in MAX_LOG_MODULUS:
        raise ConfigError(f"security level {security_bits}: choose one of {sorted(MAX_LOG_MODULUS)}")
    limits = MAX_LOG_MODULUS[security_bits]
    if degree not in limits:
        raise ConfigError(f"ring degree {degree}: choose one of {sorted(limits)}")
    if log_modulus > limits[degree]:
        raise ConfigError(
            f"a modulus of {log_modulus:.1f} bits at degree {degree} is below {security_bits}-bit security: "
            f"at most {limits[degree]} bits"
        )


def is_prime(number: int) -> bool:
    """Miller-Rabin with bases that are exact below 2^64."""
    if number < 2:
        return False
    for prime in _WITNESSES:
        if number % prime == 0:
            return number == prime
    odd = number - 1
    twos = (odd & -odd).bit_length() - 1
    odd >>= twos
    for base in _WITNESSES:
        power = pow(base, odd, number)
        if power in (1, number - 1):
            continue
        for _ in range(twos - 1):
            power = power * power % number
            if power == number - 1:
                break
        else:
            return False
    return True


MAIN: Final = ParameterSet(
    name="main",
    code=1,
    degree=4096,
    primes=(16760833, 16736257, 16588801, 8380417),
)
"""24+24+24+23 bits: log Q = 95 of the 109 that degree 4096 allows. A larger Q would buy range for scores, not accuracy
of the aggregate, and costs bytes."""

LEAN: Final = ParameterSet(name="lean", code=3, degree=MAIN.degree, primes=MAIN.primes)
"""The ring of `main` for the sketches of lean rounds (`ofl_iot.crypto.lean`): models are masked, not encrypted here."""

PARAMETER_SETS: Final = {chosen.name: chosen for chosen in (MAIN, LEAN)}


def parameter_set(name: str) -> ParameterSet:
    """The parameter set of that name."""
    if name not in PARAMETER_SETS:
        raise ConfigError(f"parameter set {name!r}: choose one of {sorted(PARAMETER_SETS)}")
    return PARAMETER_SETS[name]


def parameter_set_of_code(code: int) -> ParameterSet:
    """The parameter set of that number on the wire."""
    for chosen in PARAMETER_SETS.values():
        if chosen.code == code:
            return chosen
    raise CryptoError(f"unknown parameter set number {code}")
