"""Shares of mask keys: any t open a weighted sum, t - 1 learn nothing, wrong answers are named."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofl_iot.crypto.context import KeyContext
from ofl_iot.crypto.entropy import SeededEntropy
from ofl_iot.crypto.lean import masks, sharing
from ofl_iot.crypto.lean.masks import MaskKey
from ofl_iot.crypto.lean.params import DEGREE, PRIMES
from ofl_iot.crypto.lean.reed_solomon import error_places, interpolate
from ofl_iot.crypto.params import MAIN
from ofl_iot.errors import CryptoError, WrongShareError
from ofl_iot.ids import DeviceId, FederationId, Term


def context_of(leaders: int, threshold: int) -> KeyContext:
    members = tuple(DeviceId(f"truck-{n}") for n in range(leaders))
    return KeyContext(MAIN, FederationId("harbour"), Term(3), members, threshold)


def answers_of(
    context: KeyContext, weights: list[int], seed: int = 1
) -> tuple[MaskKey, dict[DeviceId, bytes], list[dict[DeviceId, bytes]]]:
    entropy = SeededEntropy(seed)
    contributors = context.members[: len(weights)]
    keys = [MaskKey.draw(entropy) for _ in weights]
    dealt = [sharing.deal(context, key, entropy) for key in keys]
    by_weight = dict(zip(contributors, weights, strict=True))
    answers = {
        holder: sharing.answer({c: d[holder] for c, d in zip(contributors, dealt, strict=True)}, by_weight)
        for holder in context.members
    }
    return masks.weighted_keys(keys, weights), answers, dealt


def altered(answer: bytes, limb: int = 0, place: int = 5) -> bytes:
    share = sharing.decode_share(answer, "test").copy()
    share[limb, place] = (share[limb, place] + 1) % PRIMES[limb]
    return sharing.encode_share(share)


def test_any_t_answers_give_the_same_key() -> None:
    context = context_of(5, 3)
    key, answers, _ = answers_of(context, [16, 13, 7, 1])
    for size in (3, 4, 5):
        for active in itertools.combinations(context.members, size):
            got = sharing.recover(context, {name: answers[name] for name in active})
            assert (got.residues == key.residues).all()


def test_t_minus_one_shares_say_nothing() -> None:
    """For every key there is a polynomial through t - 1 given shares: the shares of two keys cannot be told apart."""
    context = context_of(3, 3)
    shares = {m: sharing.decode_share(s, "") for m, s in answers_of(context, [1, 1])[2][0].items()}
    other = MaskKey.draw(SeededEntropy(99))
    for limb, p in enumerate(PRIMES):
        factors = interpolate([1, 2, 3], 0, p)
        known = sum(f * shares[m][limb].astype(object) for f, m in zip(factors, context.members[:2], strict=False))
        third = (other.residues[limb].astype(object) - known) * pow(factors[2], -1, p) % p
        assert ((known + factors[2] * third) % p == other.residues[limb]).all()


def test_fewer_than_t_answers_are_refused() -> None:
    context = context_of(4, 3)
    _, answers, _ = answers_of(context, [1, 1, 1])
    with pytest.raises(CryptoError, match="2 answers, 3 leaders must open"):
        sharing.recover(context, dict(list(answers.items())[:2]))


@pytest.mark.parametrize("liars", [(0,), (3,), (6,), (1, 4)])
@pytest.mark.parametrize("limb", [0, 1])
def test_with_t_plus_two_answers_the_liars_are_named(liars, limb) -> None:
    context = context_of(7, 3)
    key, answers, _ = answers_of(context, [2, 3, 4])
    for liar in liars:
        answers[context.members[liar]] = altered(answers[context.members[liar]], limb, 100 + liar)
    with pytest.raises(WrongShareError) as caught:
        sharing.recover(context, answers)
    assert caught.value.leaders == tuple(context.members[liar] for liar in liars)
    honest = {name: answer for name, answer in answers.items() if name not in caught.value.leaders}
    assert (sharing.recover(context, honest).residues == key.residues).all()


def test_with_one_answer_to_spare_a_lie_is_seen_and_all_are_suspected() -> None:
    context = context_of(4, 3)
    _, answers, _ = answers_of(context, [1, 2, 2])
    answers[context.members[2]] = altered(answers[context.members[2]])
    with pytest.raises(WrongShareError) as caught:
        sharing.recover(context, answers)
    assert set(caught.value.leaders) == set(context.members)


@settings(max_examples=40)
@given(st.data())
def test_decoding_finds_every_correctable_error(data) -> None:
    p = PRIMES[0]
    dimension, errors = data.draw(st.integers(1, 5)), data.draw(st.integers(0, 3))
    length = dimension + 2 * errors + data.draw(st.integers(0, 2))
    polynomial = data.draw(st.lists(st.integers(0, p - 1), min_size=dimension, max_size=dimension))
    points = list(range(1, length + 1))
    word = [sum(c * pow(x, k, p) for k, c in enumerate(polynomial)) % p for x in points]
    places = sorted(data.draw(st.permutations(range(length)))[:errors])
    for place in places:
        word[place] = (word[place] + data.draw(st.integers(1, p - 1))) % p
    assert error_places(points, word, dimension, p) == places


def test_a_share_travels_as_7680_bytes_and_comes_back() -> None:
    share = np.stack([np.arange(DEGREE) * 5 % p for p in PRIMES]).astype(np.uint32)
    data = sharing.encode_share(share)
    assert len(data) == sharing.SHARE_BYTES == 7680
    assert (sharing.decode_share(data, "share") == share).all()
    for bad in (data[:-1], data + b"\0", b"\xff" * 7680):
        with pytest.raises(CryptoError, match="share"):
            sharing.decode_share(bad, "share")


def test_a_missing_share_is_named() -> None:
    context = context_of(3, 2)
    _, _, dealt = answers_of(context, [1, 1])
    with pytest.raises(CryptoError, match="no share of truck-1's key"):
        sharing.answer(
            {context.members[0]: dealt[0][context.members[0]]}, {context.members[0]: 1, DeviceId("truck-1"): 1}
        )
