"""Parameter sets carry their security level and cannot exist below it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofl_iot.crypto import noise
from ofl_iot.crypto.context import KeyContext, threshold_of
from ofl_iot.crypto.params import (
    LEAN,
    MAIN,
    MAX_LOG_MODULUS,
    PARAMETER_SETS,
    check_security,
    is_prime,
    parameter_set,
    parameter_set_of_code,
)
from ofl_iot.errors import ConfigError, CryptoError
from ofl_iot.ids import DeviceId, FederationId, Term


@given(st.sampled_from(sorted(MAX_LOG_MODULUS[128])), st.floats(1, 1000), st.sampled_from([128, 192, 256]))
def test_the_table_alone_decides_what_is_secure(degree: int, log_modulus: float, level: int) -> None:
    if log_modulus <= MAX_LOG_MODULUS[level][degree]:
        check_security(degree, log_modulus, level)
    else:
        with pytest.raises(ConfigError, match=f"below {level}-bit"):
            check_security(degree, log_modulus, level)


@given(st.integers(0, 20_000))
def test_primality_agrees_with_trial_division(number: int) -> None:
    assert is_prime(number) == (number > 1 and all(number % d for d in range(2, int(number**0.5) + 1)))


@pytest.mark.parametrize("k", [35, 45, 51])
def test_a_product_that_fools_fermat_is_no_prime(k: int) -> None:
    """Carmichael numbers (6k + 1)(12k + 1)(18k + 1): a^(n - 1) = 1 modulo n for every a without a common factor."""
    factors = (6 * k + 1, 12 * k + 1, 18 * k + 1)
    number = math.prod(factors)
    assert all(map(is_prime, factors))
    assert all(pow(base, number - 1, number) == 1 for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37))
    assert not is_prime(number)


def test_the_named_sets_are_128_bit_secure_with_room() -> None:
    assert MAIN.log_modulus < 95 < MAX_LOG_MODULUS[128][MAIN.degree]
    assert LEAN.log_modulus < 95 < MAX_LOG_MODULUS[128][LEAN.degree]


def test_a_set_below_its_level_cannot_be_built() -> None:
    with pytest.raises(ConfigError, match="below 256-bit security"):
        replace(MAIN, security_bits=256)
    with pytest.raises(ConfigError, match="below 128-bit security"):
        replace(MAIN, primes=(*MAIN.primes, 1073692673))
    with pytest.raises(ConfigError, match="security level 100"):
        replace(MAIN, security_bits=100)
    with pytest.raises(ConfigError, match="ring degree 3000"):
        replace(MAIN, degree=3000)


def test_unusable_primes_are_refused() -> None:
    first, *rest = MAIN.primes
    with pytest.raises(ConfigError, match="listed twice"):
        replace(MAIN, primes=(first, first, *rest[:2]))
    with pytest.raises(ConfigError, match="must be a prime"):
        replace(MAIN, primes=(first, *rest[:2], 8192 * 3 + 1))
    with pytest.raises(ConfigError, match="proper part of Q"):
        replace(MAIN, primes=MAIN.primes[:2])
    with pytest.raises(ConfigError, match="bits for weights"):
        replace(MAIN, scale_bits=80)


def test_sets_are_found_by_name_and_number_only() -> None:
    for name, chosen in PARAMETER_SETS.items():
        assert parameter_set(name) is parameter_set_of_code(chosen.code) is chosen
    with pytest.raises(ConfigError, match="choose one of"):
        parameter_set("tiny")
    with pytest.raises(CryptoError, match="number 9"):
        parameter_set_of_code(9)


def test_ten_leaders_stay_within_the_promised_error() -> None:
    assert noise.error_bound(MAIN, 10, 10) < 2e-4


def test_rows_cover_every_parameter() -> None:
    assert [MAIN.rows(n) for n in (1, 4096, 4097)] == [1, 1, 2]
    with pytest.raises(CryptoError, match="at least one"):
        MAIN.rows(0)


def test_thresholds_are_words_or_numbers() -> None:
    assert [threshold_of(setting, 10) for setting in ("all", "majority", 4)] == [10, 6, 4]
    for wrong in ("most", 1, 11, True):
        with pytest.raises(ConfigError, match="threshold"):
            threshold_of(wrong, 10)


def test_a_key_context_names_each_leader_once_and_needs_two_to_decrypt() -> None:
    names = tuple(map(DeviceId, ("a", "b", "c")))
    context = KeyContext(MAIN, FederationId("f"), Term(1), names, 2)
    assert context.key_id != replace(context, attempt=1).key_id
    with pytest.raises(ConfigError, match="named twice"):
        replace(context, members=(*names, names[0]))
    with pytest.raises(ConfigError, match="at least 2 leaders"):
        replace(context, threshold=1)
    with pytest.raises(CryptoError, match="no member"):
        context.point_of(DeviceId("d"))
    with pytest.raises(CryptoError, match="twice"):
        context.check_active((names[0], names[0]))
    with pytest.raises(CryptoError, match="cannot decrypt"):
        context.check_active(names[:1])
