"""Threshold decryption: any t of n, nothing with one less, and every share that does not belong is named."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofl_iot.crypto import noise
from ofl_iot.crypto.encryption import encrypt, weighted_sum
from ofl_iot.crypto.entropy import SeededEntropy
from ofl_iot.crypto.params import DECRYPTION_LIMBS, MAIN
from ofl_iot.crypto.ring import ring_of
from ofl_iot.crypto.threshold import (
    DecryptionRequest,
    DecryptionShare,
    HeldDecryption,
    final_decrypt,
    lagrange,
    partial_decrypt,
    server_decrypt,
)
from ofl_iot.errors import CryptoError
from ofl_iot.ids import DeviceId

VALUES = np.random.default_rng(4).normal(0, 0.1, (5, 3000))
WEIGHTS = [0.2] * 5
MEAN = VALUES.mean(axis=0)
BOUND = noise.error_bound(MAIN, 5, 5)


@pytest.fixture(scope="module")
def aggregate(term):
    return weighted_sum(term.models(VALUES, SeededEntropy(9)), WEIGHTS)


def decrypt_with(term, aggregate, active, entropy):
    held, request = server_decrypt(term.public, aggregate, active, term.leaders, entropy)
    return held, request, [partial_decrypt(term.shares[name], request, entropy) for name in active]


def test_any_set_of_at_least_t_leaders_decrypts(term, aggregate, entropy) -> None:
    for size in (3, 4, 5):
        for active in itertools.combinations(term.leaders, size):
            held, _, shares = decrypt_with(term, aggregate, active, entropy)
            assert np.abs(final_decrypt(held, shares) - MEAN).max() < BOUND


def test_all_but_one_see_noise(term, aggregate, entropy) -> None:
    """The others' shares and the coordinator's half put together: uniform modulo q_dec, nothing of the model."""
    held, _, shares = decrypt_with(term, aggregate, term.leaders[:3], entropy)
    ring = ring_of(MAIN)
    total = held.c0
    for share in shares[:-1]:
        total = ring.add(total, share.values)
    seen = ring.join(total[0], total[1], (0, 1)).reshape(-1)[:3000] / MAIN.decryption_modulus
    assert abs(seen.std() - 12**-0.5) < 0.01
    assert abs(np.corrcoef(seen, MEAN)[0, 1]) < 0.06


def test_t_minus_one_key_shares_are_independent_of_the_secret(term) -> None:
    """Lagrange interpolation at zero of two of three shares yields something unlike the joint secret."""
    p = MAIN.primes[0]
    secret = np.sum([s.s[0].astype(np.int64) for s in term.secrets.values()], axis=0) % p

    def interpolated(active):
        terms = [
            term.shares[name].values[0].astype(np.uint64) * lagrange(term.context, active, name, p) % p
            for name in active
        ]
        return np.sum(terms, axis=0) % p

    assert (interpolated(term.leaders[1:4]) == secret).all()
    assert (interpolated(term.leaders[1:3]) == secret).mean() < 0.01


@given(st.sets(st.integers(0, 4), min_size=3), st.integers(0, 2**31))
@settings(deadline=None)
def test_lagrange_interpolates_every_polynomial_of_degree_below_the_set(term, chosen, seed) -> None:
    p = MAIN.primes[1]
    active = [term.leaders[i] for i in sorted(chosen)]
    coefficients = np.random.default_rng(seed).integers(0, p, len(active)).tolist()
    values = [sum(c * term.context.point_of(name) ** k for k, c in enumerate(coefficients)) for name in active]
    total = sum(lagrange(term.context, active, name, p) * value for name, value in zip(active, values, strict=False))
    assert total % p == coefficients[0]


def test_a_share_is_smudged_afresh_each_time_so_it_must_be_stored_and_resent(term, aggregate, entropy) -> None:
    _, request, (first, *_) = decrypt_with(term, aggregate, term.leaders[:3], entropy)
    second = partial_decrypt(term.shares[term.leaders[0]], request, entropy)
    assert (first.values != second.values).mean() > 0.99
    stored = first.to_bytes()
    assert DecryptionShare.from_bytes(stored, first.origin).to_bytes() == stored


def test_the_smudging_is_as_wide_as_promised(term, aggregate, entropy) -> None:
    _, request, (share, *_) = decrypt_with(term, aggregate, term.leaders[:3], entropy)
    ring = ring_of(MAIN)
    product = np.stack(
        [
            term.shares[share.origin.sender].values[limb].astype(np.uint64)
            * lagrange(term.context, request.active, share.origin.sender, p)
            % p
            * request.c1[limb]
            % p
            for limb, p in enumerate(MAIN.primes[:DECRYPTION_LIMBS])
        ]
    )
    z = ring.subtract(share.values, product.astype(np.uint32))
    integers = ring.join(z[0], z[1], (0, 1))
    assert integers.std() == pytest.approx(noise.smudging_sigma(MAIN, 5), rel=0.05)


def test_a_vanished_member_leads_to_another_ciphertext_for_another_set(term, aggregate, entropy) -> None:
    _, first, _ = decrypt_with(term, aggregate, term.leaders[:3], entropy)
    held, second, shares = decrypt_with(term, aggregate, term.leaders[2:], entropy)
    assert first.ciphertext_id != second.ciphertext_id
    assert (first.c1 != second.c1).mean() > 0.99
    assert np.abs(final_decrypt(held, shares) - MEAN).max() < BOUND


def test_requests_and_what_is_held_survive_the_wire(term, aggregate, entropy) -> None:
    held, request, shares = decrypt_with(term, aggregate, term.leaders[:3], entropy)
    back = DecryptionRequest.from_parts(request.to_parts(30_000), request.origin)
    assert back.request_id == request.request_id == shares[0].request_id
    kept = HeldDecryption.from_bytes(held.to_bytes(), held.origin)
    shares = [DecryptionShare.from_parts(share.to_parts(), share.origin) for share in shares]
    assert np.abs(final_decrypt(kept, shares) - MEAN).max() < BOUND


# --- bad input: each is named, none decrypts to something wrong ---


def test_too_few_shares_name_who_is_missing(term, aggregate, entropy) -> None:
    held, _, shares = decrypt_with(term, aggregate, term.leaders[:3], entropy)
    with pytest.raises(CryptoError, match="too few shares: truck-2"):
        final_decrypt(held, shares[:2])


def test_a_replayed_or_repeated_share_is_refused(term, aggregate, entropy) -> None:
    _, _, old = decrypt_with(term, aggregate, term.leaders[:3], entropy)
    held, _, shares = decrypt_with(term, aggregate, term.leaders[:3], entropy)
    with pytest.raises(CryptoError, match="truck-1: answers another request"):
        final_decrypt(held, [shares[0], old[1], shares[2]])
    with pytest.raises(CryptoError, match="truck-0: came twice"):
        final_decrypt(held, [shares[0], shares[0], shares[2]])


def test_a_share_of_a_non_member_is_refused(term, aggregate, entropy) -> None:
    held, _, shares = decrypt_with(term, aggregate, term.leaders[:3], entropy)
    stranger = replace(shares[0], origin=replace(shares[0].origin, sender=DeviceId("truck-4")))
    with pytest.raises(CryptoError, match="truck-4: not a member of the active set"):
        final_decrypt(held, [stranger, *shares[1:]])


def test_a_share_of_another_size_is_refused(term, aggregate, entropy) -> None:
    held, _, shares = decrypt_with(term, aggregate, term.leaders[:3], entropy)
    with pytest.raises(CryptoError, match="truck-0: of another size"):
        final_decrypt(held, [replace(shares[0], values=shares[0].values[:, :0]), *shares[1:]])


@pytest.mark.parametrize("n_params", [3000, 4096])
def test_a_wrong_share_never_yields_a_wrong_model(term, entropy, n_params) -> None:
    """A single altered residue suffices, whether or not the model leaves padding to look at."""
    model = encrypt(term.public, np.zeros(n_params), term.origin("truck-0"), entropy)
    held, _, shares = decrypt_with(term, weighted_sum([model], [1.0]), term.leaders[:3], entropy)
    values = shares[1].values.copy()
    values[0, 0, 0] = (int(values[0, 0, 0]) + 1) % MAIN.primes[0]
    with pytest.raises(CryptoError, match="round 7: the shares of truck-0, truck-1, truck-2 do not decrypt to a model"):
        final_decrypt(held, [shares[0], replace(shares[1], values=values), shares[2]])


def test_a_share_of_another_round_is_refused_on_arrival(term, aggregate, entropy) -> None:
    _, _, shares = decrypt_with(term, aggregate, term.leaders[:3], entropy)
    with pytest.raises(CryptoError, match="decryption share from truck-0: made for round 7, this is round 8"):
        DecryptionShare.from_bytes(shares[0].to_bytes(), term.origin("truck-0", round_no=8))


def test_leaders_refuse_what_they_must_not_decrypt(term, other_term, aggregate, entropy) -> None:
    _, request, _ = decrypt_with(term, aggregate, term.leaders[:3], entropy)
    share = term.shares[DeviceId("truck-0")]
    with pytest.raises(CryptoError, match="an aggregate of 1 contributors is refused"):
        partial_decrypt(share, replace(request, contributors=("truck-1",)), entropy)
    with pytest.raises(CryptoError, match="at least 4 were agreed"):
        partial_decrypt(share, replace(request, contributors=term.leaders[:3]), entropy, fewest_contributors=4)
    with pytest.raises(CryptoError, match="nobody is no member"):
        partial_decrypt(share, replace(request, contributors=("truck-1", "nobody")), entropy)
    with pytest.raises(CryptoError, match="truck-4 is not in its active set"):
        partial_decrypt(term.shares[DeviceId("truck-4")], request, entropy)
    with pytest.raises(CryptoError, match="cannot decrypt: the threshold is 3"):
        partial_decrypt(share, replace(request, active=term.leaders[:2]), entropy)
    with pytest.raises(CryptoError, match="for another key"):
        partial_decrypt(other_term.shares[DeviceId("truck-0")], request, entropy)


def test_server_decryption_refuses_fresh_models_and_foreign_keys(term, other_term, aggregate, entropy) -> None:
    fresh = encrypt(term.public, VALUES[0], term.origin("truck-0"), entropy)
    with pytest.raises(CryptoError, match="a fresh model must never be"):
        server_decrypt(term.public, fresh, term.leaders[:3], term.leaders, entropy)
    with pytest.raises(CryptoError, match="another key"):
        server_decrypt(other_term.public, aggregate, term.leaders[:3], term.leaders, entropy)
    with pytest.raises(CryptoError, match="threshold is 3"):
        server_decrypt(term.public, aggregate, term.leaders[:2], term.leaders, entropy)
