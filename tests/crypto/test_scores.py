"""Scores on ciphertext equal the scores of the plain updates; wrap-around is seen."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ofl_iot.crypto.encryption import EncryptedModel, encode, encrypt, encrypt_rows, weighted_sum
from ofl_iot.crypto.entropy import SeededEntropy
from ofl_iot.crypto.filters import HIGH_BAND, MAX_LAGS, Filter, band
from ofl_iot.crypto.params import MAIN
from ofl_iot.crypto.ring import ring_of
from ofl_iot.crypto.scalars import HeldScalars, ScalarRequest, ScalarShare, partial_scalars
from ofl_iot.crypto.scores import ScorePlan, Scores, combine_scores, energy_sigma, request_scores
from ofl_iot.errors import ConfigError, CryptoError
from ofl_iot.ids import DeviceId

GLOBAL = np.random.default_rng(0).normal(0, 0.1, 6000)


def asked(term, models, plan, entropy):
    active = term.leaders[1:4]
    held, request = request_scores(term.public, term.relin, models, GLOBAL, plan=plan, active=active, entropy=entropy)
    limit = plan.queries(len(models))
    return held, request, [partial_scalars(term.shares[name], request, entropy, limit) for name in active]


def scored(term, updates, plan, entropy) -> Scores:
    models = {
        name: encrypt(term.public, GLOBAL + update, term.origin(name), entropy)
        for name, update in zip(term.leaders, updates, strict=False)
    }
    held, _, shares = asked(term, models, plan, entropy)
    return combine_scores(held, shares, plan)


def filtered_energy(update: np.ndarray, chosen: Filter) -> float:
    """Σ over rows of the filter's response times the odd-frequency power spectrum."""
    rows = np.zeros(MAIN.rows(update.size) * MAIN.degree)
    rows[: update.size] = update
    half = np.exp(-1j * np.pi * np.arange(MAIN.degree) / MAIN.degree)
    power = np.abs(np.fft.fft(rows.reshape(-1, MAIN.degree) * half, axis=1)) ** 2 / MAIN.degree
    frequencies = (2 * np.arange(MAIN.degree) + 1) / MAIN.degree
    return float((power * np.array([chosen.response(f) for f in frequencies])).sum())


@given(sizes=st.lists(st.floats(1e-3, 0.03), min_size=1, max_size=4), seed=st.integers(0, 2**31))
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_scores_on_ciphertext_are_the_scores_of_the_updates(term, sizes, seed) -> None:
    updates = [np.random.default_rng(seed + k).normal(0, size, GLOBAL.size) for k, size in enumerate(sizes)]
    sharp = band("low", 0.0, 0.25, bits=4)
    plan = ScorePlan(max_energy=8.0, filters=(HIGH_BAND, sharp), projections=2)
    scores = scored(term, updates, plan, SeededEntropy(seed))
    near = 6 * scores.precision
    assert scores.gram is not None
    expected = np.array([[a @ b for b in updates] for a in updates])
    assert np.abs(scores.gram - expected).max() < near
    for number, name in enumerate(scores.distance):
        assert scores.distance[name] == scores.gram[number, number]
        assert scores.bands["high"][name] == pytest.approx(filtered_energy(updates[number], HIGH_BAND), abs=2 * near)
        assert scores.bands["low"][name] == pytest.approx(filtered_energy(updates[number], sharp), abs=2 * near)
        assert len(scores.projections[name]) == 2
    assert scores.wrapped() == ()


def test_an_alternating_update_is_all_high_band_and_a_constant_one_has_none(term, entropy) -> None:
    flat, zigzag = np.full(4096, 0.01), 0.01 * (1 - 2 * (np.arange(4096) % 2))
    updates = [np.concatenate([update, np.zeros(GLOBAL.size - 4096)]) for update in (flat, zigzag)]
    scores = scored(term, updates, ScorePlan(max_energy=1.0), entropy)
    high = list(scores.bands["high"].values())
    assert high[0] == pytest.approx(0.0, abs=1e-3)
    assert high[1] == pytest.approx(scores.distance[DeviceId("truck-1")], rel=0.01)


def test_the_projection_sees_an_energy_that_wrapped_around(term) -> None:
    """One weight of sqrt(Q)/scale makes ||D||² a multiple of Q: it is reported as small, the projection as huge."""
    plan = ScorePlan(projections=4, gram=False)
    entropy = SeededEntropy(21)
    message = encode(MAIN, GLOBAL + 0.001)
    message[0, 77] += math.isqrt(MAIN.modulus) + 1
    c0, c1 = encrypt_rows(term.public, message, 4, entropy)
    honest = encrypt(term.public, GLOBAL + 0.001, term.origin("truck-1"), entropy)
    evil = EncryptedModel(term.origin("truck-0"), GLOBAL.size, MAIN.scale_bits, c0, c1)
    models = {DeviceId("truck-0"): evil, DeviceId("truck-1"): honest}
    held, _, shares = asked(term, models, plan, entropy)
    scores = combine_scores(held, shares, plan)
    assert scores.gram is None
    assert scores.distance[DeviceId("truck-0")] < 20
    assert max(map(abs, scores.projections[DeviceId("truck-0")])) > 80
    assert scores.wrapped() == ("truck-0",)


def test_coordinates_at_half_the_modulus_do_not_hide_from_the_projection(term) -> None:
    """Four weights of (Q + 1)/2 have energy 4/4 = 1 modulo Q, and every sum with signs ±1 alone is tiny."""
    plan = ScorePlan(projections=12, gram=False)
    entropy = SeededEntropy(5)
    ring = ring_of(MAIN)
    places = np.zeros((2, MAIN.degree), dtype=np.int64)
    places[0, :4] = 1
    honest = encrypt(term.public, GLOBAL + 0.001, term.origin("truck-0"), entropy)
    huge = ring.scale(ring.from_integers(places, 4), (MAIN.modulus + 1) // 2)
    evil = replace(honest, c0=ring.add(honest.c0, huge))
    held, _, shares = asked(term, {DeviceId("truck-0"): evil}, plan, entropy)
    scores = combine_scores(held, shares, plan)
    assert abs(scores.distance[DeviceId("truck-0")]) < 1
    assert scores.wrapped() == ("truck-0",)


def test_a_tiny_update_is_not_mistaken_for_a_wrapped_one(term, entropy) -> None:
    plan = ScorePlan(max_energy=0.01, projections=20, gram=False)
    assert scored(term, [np.full(GLOBAL.size, 1e-6)], plan, entropy).wrapped() == ()


def test_a_negative_energy_is_a_wrapped_one() -> None:
    one = DeviceId("a")
    assert Scores({one: -1.0}, {}, {one: ()}, None, 1e-3, 1e-3).wrapped() == (one,)


def test_requests_and_shares_survive_the_wire(term, entropy) -> None:
    plan = ScorePlan()
    models = {name: encrypt(term.public, GLOBAL, term.origin(name), entropy) for name in term.leaders[:2]}
    held, request, shares = asked(term, models, plan, entropy)
    back = ScalarRequest.from_parts(request.to_parts(60_000), request.origin)
    assert (back.request_id, back.ciphertext_id) == (request.request_id, request.ciphertext_id)
    assert back.filters == request.filters
    shares = [ScalarShare.from_bytes(share.to_bytes(), share.origin) for share in shares]
    kept = HeldScalars.from_bytes(held.to_bytes(), held.origin)
    assert combine_scores(kept, shares, plan).distance == combine_scores(held, shares, plan).distance
    assert len(shares[0].to_bytes()) < 400


def test_a_leader_answers_no_more_numbers_than_agreed(term, entropy) -> None:
    plan = ScorePlan()
    models = {name: encrypt(term.public, GLOBAL, term.origin(name), entropy) for name in term.leaders[:2]}
    _, request, _ = asked(term, models, plan, entropy)
    assert len(request.queries) == plan.queries(2) == 2 * 4 + 1 + 1
    with pytest.raises(CryptoError, match="10 numbers asked for, at most 9 were agreed"):
        partial_scalars(term.shares[term.leaders[1]], request, entropy, most_queries=9)
    with pytest.raises(CryptoError, match="truck-0 is not in its active set"):
        partial_scalars(term.shares[term.leaders[0]], request, entropy, most_queries=10)


def test_bad_shares_and_requests_are_named(term, entropy) -> None:
    plan = ScorePlan(gram=False)
    models = {DeviceId("truck-0"): encrypt(term.public, GLOBAL, term.origin("truck-0"), entropy)}
    held, request, shares = asked(term, models, plan, entropy)
    with pytest.raises(CryptoError, match="too few shares: truck-3"):
        combine_scores(held, shares[:2], plan)
    with pytest.raises(CryptoError, match="truck-1: 1 numbers, not 5"):
        combine_scores(held, [replace(shares[0], values=shares[0].values[:1]), *shares[1:]], plan)
    with pytest.raises(CryptoError, match="truck-1: answers another request"):
        combine_scores(held, [replace(shares[0], request_id=b"old"), *shares[1:]], plan)
    wrong = replace(shares[0], values=((2**40, 1),))
    with pytest.raises(CryptoError, match="score share from truck-1: a number is not modulo q_dec"):
        ScalarShare.from_bytes(wrong.to_bytes(), wrong.origin)
    for queries, complaint in (
        ((request.queries[0], request.queries[0]), "the same number twice"),
        ((type(request.queries[0])(99, -1, "truck-0", "truck-0"),), "row 99"),
    ):
        with pytest.raises(CryptoError, match=complaint):
            ScalarRequest.from_bytes(replace(request, queries=queries).to_bytes(), request.origin)
    with pytest.raises(CryptoError, match="1 noise levels for 4 rows"):
        ScalarRequest.from_bytes(replace(request, sigmas=request.sigmas[:1]).to_bytes(), request.origin)


def test_a_wrong_key_share_is_seen_by_the_control(term, entropy) -> None:
    plan = ScorePlan(gram=False)
    models = {DeviceId("truck-0"): encrypt(term.public, GLOBAL, term.origin("truck-0"), entropy)}
    held, request, shares = asked(term, models, plan, entropy)
    good = term.shares[DeviceId("truck-2")]
    spoilt = replace(good, values=np.ascontiguousarray(good.values[:, ::-1]))
    shares[1] = partial_scalars(spoilt, request, entropy, plan.queries(1))
    with pytest.raises(CryptoError, match="round 7: the score shares of truck-1, truck-2, truck-3 do not decrypt"):
        combine_scores(held, shares, plan)


def test_models_that_cannot_be_scored_are_named(term, other_term, entropy) -> None:
    plan = ScorePlan()
    good = encrypt(term.public, GLOBAL, term.origin("truck-0"), entropy)
    cases = {
        "no model to score": {},
        "not truck-1's": {DeviceId("truck-1"): good},
        "under another key": {
            DeviceId("truck-0"): encrypt(other_term.public, GLOBAL, other_term.origin("truck-0"), entropy)
        },
        "of another round": {
            DeviceId("truck-0"): good,
            DeviceId("truck-1"): encrypt(term.public, GLOBAL, term.origin("truck-1", round_no=8), entropy),
        },
        "not fresh": {
            DeviceId("truck-0"): replace(weighted_sum([good], [1.0]), origin=term.origin("truck-0")),
        },
        "9 parameters, the global model has 6000": {
            DeviceId("truck-0"): encrypt(term.public, GLOBAL[:9], term.origin("truck-0"), entropy)
        },
    }
    for complaint, models in cases.items():
        with pytest.raises(CryptoError, match=complaint):
            asked(term, models, plan, entropy)


def test_plans_and_filters_out_of_range_are_refused(term) -> None:
    context = term.context
    for wrong in (0.0, -1.0, 1e9, float("nan")):
        with pytest.raises(ConfigError, match="max_energy"):
            ScorePlan(max_energy=wrong).energy_gain(MAIN)
    with pytest.raises(ConfigError, match="drown in noise"):
        energy_sigma(context, ScorePlan(max_energy=1e-15))
    with pytest.raises(ConfigError, match="must rise within 0 to 1"):
        band("odd", 0.7, 0.3)
    with pytest.raises(CryptoError, match="taps"):
        Filter("empty", (), 2)
    with pytest.raises(CryptoError, match="taps"):
        Filter("long", (1,) * (MAX_LAGS + 1), 8)
    with pytest.raises(CryptoError, match="gain of two"):
        Filter("loud", (100,), 2)


@given(st.floats(0, 0.4), st.floats(0.1, 0.5))
@settings(max_examples=30)
def test_a_band_passes_its_middle_and_stops_what_is_far(low: float, width: float) -> None:
    chosen = band("test", low, low + width)
    assert chosen.response(low + width / 2) == pytest.approx(1.0, abs=0.1)
    assert chosen.response(1.0) == pytest.approx(0.0, abs=0.1) or low + width > 0.9
