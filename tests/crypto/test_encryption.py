"""Laws of Enc and Eval, decrypted by the leaders together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ofl_iot.crypto import noise
from ofl_iot.crypto.encryption import EncryptedModel, add, encrypt, weighted_sum
from ofl_iot.crypto.entropy import SeededEntropy
from ofl_iot.crypto.params import MAIN
from ofl_iot.crypto.threshold import final_decrypt, partial_decrypt, server_decrypt
from ofl_iot.errors import CryptoError
from ofl_iot.ids import COORDINATOR

law = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
BOUND = noise.error_bound(MAIN, 5, 3)


def decrypted(term, aggregate: EncryptedModel, entropy, active=None) -> np.ndarray:
    active = active or term.leaders[:3]
    held, request = server_decrypt(term.public, aggregate, active, term.leaders, entropy)
    return final_decrypt(held, [partial_decrypt(term.shares[name], request, entropy) for name in active])


@given(n_params=st.integers(1, 9000), largest=st.floats(1e-3, 16), seed=st.integers(0, 2**31))
@law
def test_decrypting_an_encryption_gives_the_model_within_the_bound(term, n_params, largest, seed) -> None:
    entropy = SeededEntropy(seed)
    values = np.random.default_rng(seed).uniform(-largest, largest, n_params)
    values[0] = largest
    model = encrypt(term.public, values, term.origin("truck-0"), entropy)
    result = decrypted(term, weighted_sum([model], [1.0]), entropy)
    assert result.shape == values.shape
    assert np.abs(result - values).max() < BOUND


@given(
    weights=st.lists(st.floats(-1, 1, allow_subnormal=False), min_size=1, max_size=5).filter(
        lambda w: sum(map(abs, w)) > 0.01
    ),
    seed=st.integers(0, 2**31),
)
@law
def test_weighted_sums_are_homomorphic(term, weights, seed) -> None:
    entropy = SeededEntropy(seed)
    weights = np.array(weights) / np.abs(weights).sum()
    values = np.random.default_rng(seed).normal(0, 1, (len(weights), 5000)).clip(-16, 16)
    result = decrypted(term, weighted_sum(term.models(values, entropy), weights.tolist()), entropy)
    assert np.abs(result - weights @ values).max() < BOUND


def test_addition_is_homomorphic(term, entropy) -> None:
    one, two = np.random.default_rng(0).normal(0, 1, (2, 100))
    first, second = term.models(np.stack([one, two]), entropy)
    assert np.abs(decrypted(term, weighted_sum([add(first, second)], [1.0]), entropy) - one - two).max() < BOUND


def test_two_encryptions_of_one_model_have_nothing_in_common(term, origin, entropy) -> None:
    values = np.ones(100, dtype=np.float32)
    one, two = (encrypt(term.public, values, origin, entropy) for _ in range(2))
    assert (one.c0 != two.c0).mean() > 0.999
    assert (one.c1 != two.c1).mean() > 0.999


@pytest.mark.parametrize("wrong", [16.01, -17.0, float("nan"), float("inf")])
def test_values_out_of_range_are_refused_by_name_and_place(term, origin, entropy, wrong) -> None:
    values = np.zeros(5000)
    values[4321] = wrong
    with pytest.raises(CryptoError, match=r"model of truck-0: parameter 4321 is .*clip the model"):
        encrypt(term.public, values, origin, entropy)


def test_a_model_is_one_flat_vector(term, origin, entropy) -> None:
    with pytest.raises(CryptoError, match="flat vector"):
        encrypt(term.public, np.zeros((2, 3)), origin, entropy)
    with pytest.raises(CryptoError, match="at least one parameter"):
        encrypt(term.public, np.zeros(0), origin, entropy)


def test_weights_that_could_overflow_are_refused(term, entropy) -> None:
    models = term.models(np.zeros((2, 10)), entropy)
    for weights in ([0.7, 0.7], [1.0, -0.5], [float("nan"), 0.1]):
        with pytest.raises(CryptoError, match="at most 1"):
            weighted_sum(models, weights)
    with pytest.raises(CryptoError, match="as many weights"):
        weighted_sum(models, [1.0])
    with pytest.raises(CryptoError, match="as many weights"):
        weighted_sum([], [])


def test_models_that_do_not_belong_together_are_refused_by_sender(term, other_term, entropy) -> None:
    good = encrypt(term.public, np.zeros(10), term.origin("truck-0"), entropy)
    longer = encrypt(term.public, np.zeros(11), term.origin("truck-1"), entropy)
    older = encrypt(term.public, np.zeros(10), term.origin("truck-2", round_no=6), entropy)
    foreign = encrypt(other_term.public, np.zeros(10), other_term.origin("truck-3"), entropy)
    with pytest.raises(CryptoError, match=r"truck-1: 11 parameters"):
        weighted_sum([good, longer], [0.5, 0.5])
    with pytest.raises(CryptoError, match=r"truck-2: of round 6, not 7"):
        add(good, older)
    with pytest.raises(CryptoError, match=r"truck-3: encrypted under another key"):
        weighted_sum([good, foreign], [0.5, 0.5])
    with pytest.raises(CryptoError, match="only fresh models"):
        weighted_sum([weighted_sum([good], [1.0])], [1.0])


def test_an_aggregate_belongs_to_the_coordinator(term, origin, entropy) -> None:
    aggregate = weighted_sum([encrypt(term.public, np.zeros(10), origin, entropy)], [1.0])
    assert aggregate.origin == replace(origin, sender=COORDINATOR)
    assert aggregate.scale_bits == MAIN.scale_bits + MAIN.weight_bits
