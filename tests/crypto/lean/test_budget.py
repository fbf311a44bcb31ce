"""What a key may decrypt in its life."""

from __future__ import annotations

import math

from ofl_iot.crypto.lean.budget import ROW_BUDGET, SCALAR_BUDGET, exposure, model_requests, most_leaders, score_requests
from ofl_iot.crypto.noise import decryption_noise, smudging_sigma
from ofl_iot.crypto.params import MAIN, MAX_LOG_MODULUS


def test_the_scalar_budget_covers_what_colluding_leaders_can_shape() -> None:
    """Own energies, bands, projections and coefficients, and every inner product that one of them is part of."""
    assert exposure(4, 3) == 2 * 6 + 2 * 2 + 1
    assert exposure(3, 2) == 1 * 6 + 1 * 2
    assert exposure(15, 8) <= SCALAR_BUDGET < exposure(16, 9)
    assert score_requests(4, 3) == 7
    assert score_requests(16, 9) == 0
    assert most_leaders("majority") == 15


def test_what_is_left_unknown_of_the_secret_is_still_secure() -> None:
    """The standard's limit grows with the dimension: 109 bits at 4,096 unknown coefficients."""
    unknown = MAIN.degree - 4 * SCALAR_BUDGET
    assert MAIN.log_modulus < MAX_LOG_MODULUS[128][MAIN.degree] * unknown / MAIN.degree


def test_the_row_budget_leaves_115_bits_by_the_renyi_argument() -> None:
    """Shifts of squared length X have divergence a*X/2: (1 - 1/a)(128 - 0.72*a*X) bits for the best a."""
    shift = (decryption_noise(MAIN, 4) / smudging_sigma(MAIN, 4)) ** 2
    total = ROW_BUDGET * MAIN.degree * shift
    proven = max((1 - 1 / a) * (128 - a * total / 2 / math.log(2)) for a in (1 + n / 20 for n in range(1, 8000)))
    assert proven > 115


def test_small_and_large_models_can_both_be_decrypted() -> None:
    assert model_requests(200) == 100
    assert model_requests(1) == ROW_BUDGET
    assert model_requests(10**6) == 8
