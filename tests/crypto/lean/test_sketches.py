"""Sketches: lengths and angles survive, leaders compute the same request as the coordinator, within a budget."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from ofl_iot.crypto import relinearisation
from ofl_iot.crypto.encryption import encrypt
from ofl_iot.crypto.entropy import SeededEntropy
from ofl_iot.crypto.lean import sketches
from ofl_iot.crypto.lean.header import Header
from ofl_iot.crypto.params import MAIN
from ofl_iot.crypto.relinearisation import RelinFirst
from ofl_iot.crypto.scalars import partial_scalars
from ofl_iot.crypto.scores import ScorePlan, combine_scores
from ofl_iot.errors import CryptoError

PLAN = ScorePlan(64.0)
SIZE = 20_000


def headers_of(term, count: int = 4, round_no: int = 7) -> list[Header]:
    return [
        Header(
            "harbour",
            3,
            term.context.key_id,
            round_no,
            0,
            name,
            SIZE,
            20,
            hashlib.sha256(name.encode()).digest(),
            bytes(32),
            bytes(32),
        )
        for name in term.leaders[:count]
    ]


def updates(count: int = 4) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    common = rng.standard_t(5, SIZE) * 0.002
    out = [(common + rng.standard_t(5, SIZE) * 0.003).astype(np.float32) for _ in range(count)]
    out[-1] *= -2  # one attacker: flipped and doubled
    return out


@pytest.fixture(scope="module")
def scored(term):
    headers = headers_of(term)
    entropy = SeededEntropy(5)
    drawn = {
        name: encrypt(term.public, sketches.sketch(update, headers, MAIN.degree), term.origin(name), entropy)
        for name, update in zip(term.leaders, updates(), strict=False)
    }
    return headers, drawn


def test_distances_bands_and_angles_survive_the_sketch(term, scored) -> None:
    headers, drawn = scored
    entropy, active = SeededEntropy(6), term.leaders[:3]
    held = sketches.hold_scores(
        term.public, term.relin, drawn, headers, active=active, retry=0, plan=PLAN, entropy=entropy
    )
    request = sketches.compute_request(term.public, term.relin, drawn, headers, active=active, retry=0, plan=PLAN)
    shares = [partial_scalars(term.shares[name], request, entropy, PLAN.queries(5)) for name in active]
    scores = combine_scores(held, shares, PLAN)
    true = np.array([[float(np.dot(a, b)) for b in updates()] for a in updates()])
    lengths = np.sqrt(np.outer(np.diag(true), np.diag(true)))
    assert scores.wrapped() == ()
    assert (np.abs(scores.gram - true) / lengths).max() < 0.15
    assert np.sign(scores.gram[0, 3]) == -1


def test_each_leader_computes_the_request_that_the_coordinator_holds_the_other_half_of(term, scored) -> None:
    headers, drawn = scored
    active = term.leaders[1:4]
    held = sketches.hold_scores(
        term.public, term.relin, drawn, headers, active=active, retry=2, plan=PLAN, entropy=SeededEntropy(1)
    )
    first = relinearisation.combine_shares(
        term.context, [relinearisation.generate_share(secret, SeededEntropy(8)) for secret in term.secrets.values()]
    )
    half = sketches.relin_of(replace(first, h1=term.relin.h1))
    shuffled = dict(reversed(drawn.items()))
    request = sketches.compute_request(
        term.public, half, shuffled, list(reversed(headers)), active=active, retry=2, plan=PLAN
    )
    assert request.request_id == held.request_id
    assert isinstance(first, RelinFirst)


def test_another_try_other_headers_or_another_sketch_make_another_request(term, scored) -> None:
    headers, drawn = scored
    active = term.leaders[:3]

    def request_id(models, made, retry):
        return sketches.compute_request(
            term.public, term.relin, models, made, active=active, retry=retry, plan=PLAN
        ).ciphertext_id

    first = request_id(drawn, headers, 0)
    assert request_id(drawn, headers, 0) == first
    fewer = {name: drawn[name] for name in term.leaders[:3]}
    assert len({first, request_id(drawn, headers, 1), request_id(fewer, headers, 0),
                request_id(drawn, [*headers, headers_of(term, 5)[4]], 0)}) == 4  # fmt: skip


def test_directions_are_not_known_before_the_last_header(term) -> None:
    headers = headers_of(term)
    changed = [*headers[:3], msgspec.structs.replace(headers[3], attempt=1)]
    one, two = (sketches.sketch(updates()[0], made, MAIN.degree) for made in (headers, changed))
    assert abs(float(np.corrcoef(one, two)[0, 1])) < 0.1


def test_a_sketch_of_a_stranger_or_of_another_size_is_refused(term, scored) -> None:
    headers, drawn = scored
    with pytest.raises(CryptoError, match="has no header"):
        sketches.compute_request(
            term.public, term.relin, drawn, headers[:3], active=term.leaders[:3], retry=0, plan=PLAN
        )
    name = term.leaders[0]
    short = encrypt(term.public, np.zeros(100), term.origin(name), SeededEntropy(1))
    with pytest.raises(CryptoError, match="100 numbers"):
        sketches.compute_request(
            term.public, term.relin, drawn | {name: short}, headers, active=term.leaders[:3], retry=0, plan=PLAN
        )


def test_public_coins_are_the_same_for_everybody() -> None:
    one, two = sketches.PublicCoins(b"seed"), sketches.PublicCoins(b"seed")
    assert one.random_bytes(40) == two.random_bytes(40)
    assert one.random_bytes(8) != sketches.PublicCoins(b"seed").random_bytes(8)
