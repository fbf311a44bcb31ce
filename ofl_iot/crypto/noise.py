"""How large the noise is at each step, as standard deviations of one coefficient.

All figures are for `leaders` parties that made the key together: their secrets and errors add up, so the joint
secret has variance 2/3·leaders a coefficient.
"""

from __future__ import annotations

import math

from ofl_iot.crypto.params import ERROR_SIGMA, ParameterSet

_TAIL = 6.0
"""Deviations within which all of a million Gaussian coefficients stay, but for odds of one in 500."""


def fresh_noise(params: ParameterSet, leaders: int) -> float:
    """Noise of Enc: v·e + e1·s + e0, so σ·sqrt(4/3·N·leaders + 1)."""
    return ERROR_SIGMA * math.sqrt(4 / 3 * params.degree * leaders + 1)


def rounding_noise(params: ParameterSet, leaders: int) -> float:
    """Noise of a modulus switch: τ0 + τ1·s with τ uniform in ±1/2, so sqrt((N·2/3·leaders + 1)/12)."""
    return math.sqrt((params.degree * 2 / 3 * leaders + 1) / 12)


def decryption_noise(params: ParameterSet, leaders: int) -> float:
    """Noise at q_dec of a weighted sum of fresh ciphertexts whose absolute weights sum to at most one."""
    shrink = math.ldexp(params.decryption_modulus / params.modulus, params.weight_bits)
    return math.hypot(fresh_noise(params, leaders) * shrink, rounding_noise(params, leaders))


def smudging_sigma(params: ParameterSet, leaders: int) -> float:
    """Deviation of the flooding in ServerDec and of every leader's noise in PartDec."""
    return math.ldexp(decryption_noise(params, leaders), params.smudging_bits)


def decrypted_scale(params: ParameterSet) -> float:
    """What one unit of a weighted sum is worth at q_dec."""
    return math.ldexp(params.decryption_modulus / params.modulus, params.scale_bits + params.weight_bits)


def error_bound(params: ParameterSet, leaders: int, active: int) -> float:
    """Largest error of a decrypted aggregate to expect when `active` of the `leaders` decrypt."""
    smudging = smudging_sigma(params, leaders) * math.sqrt(active + 1)
    return _TAIL * math.hypot(smudging, decryption_noise(params, leaders)) / decrypted_scale(params)
