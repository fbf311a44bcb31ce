"""What broke the first design (a key box under the joint key), run against shares: each attack fails.

The attackers are a coordinator and a leader J that work together, with everything both of them see.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ofl_iot.crypto.context import KeyContext
from ofl_iot.crypto.entropy import SeededEntropy
from ofl_iot.crypto.lean import masks, sharing
from ofl_iot.crypto.lean.masks import MaskDomain, MaskKey
from ofl_iot.crypto.lean.params import DEGREE, PRIMES
from ofl_iot.crypto.lean.reed_solomon import interpolate
from ofl_iot.crypto.params import MAIN
from ofl_iot.crypto.sealing import Envelope, SealingKey, open_sealed, seal
from ofl_iot.errors import CryptoError, WrongShareError
from ofl_iot.ids import DeviceId, FederationId, Term

MEMBERS = tuple(DeviceId(f"truck-{n}") for n in range(4))
CONTEXT = KeyContext(MAIN, FederationId("harbour"), Term(3), MEMBERS, 3)
DOMAIN = MaskDomain(CONTEXT.key_id, 7)
J = MEMBERS[3]
WEIGHTS = dict(zip(MEMBERS, (4, 3, 3, 3), strict=True))


@pytest.fixture(scope="module")
def honest() -> dict[DeviceId, MaskKey]:
    return {name: MaskKey.draw(SeededEntropy(n)) for n, name in enumerate(MEMBERS)}


@pytest.fixture(scope="module")
def dealt(honest) -> dict[DeviceId, dict[DeviceId, bytes]]:
    return {name: sharing.deal(CONTEXT, key, SeededEntropy(50 + n)) for n, (name, key) in enumerate(honest.items())}


def answers_to(dealt: dict[DeviceId, dict[DeviceId, bytes]]) -> dict[DeviceId, bytes]:
    return {
        holder: sharing.answer({dealer: shares[holder] for dealer, shares in dealt.items()}, WEIGHTS)
        for holder in MEMBERS
    }


def others_sum(key: MaskKey, own: MaskKey) -> np.ndarray:
    """What is left of K when J's own part is taken away."""
    moduli = np.array(PRIMES, np.int64)[:, None]
    return (key.residues.astype(np.int64) - WEIGHTS[J] * own.residues.astype(np.int64)) % moduli


def test_a_constant_in_ones_own_share_reveals_a_constant(honest, dealt) -> None:
    """att3.py: 2^28 in J's half of the box gave the whole joint secret. Here it comes back as itself, exactly."""
    offset = np.zeros((2, DEGREE), np.uint32)
    offset[:, 0] = 4096
    moduli = np.array(PRIMES, np.uint64)[:, None]
    shifted = {
        holder: sharing.encode_share(
            ((sharing.decode_share(share, "") + offset.astype(np.uint64)) % moduli).astype(np.uint32)
        )
        for holder, share in dealt[J].items()
    }
    plain = sharing.recover(CONTEXT, answers_to(dealt))
    seen = sharing.recover(CONTEXT, answers_to(dealt | {J: shifted}))
    difference = (seen.residues.astype(np.int64) - plain.residues) % np.array(PRIMES, np.int64)[:, None]
    assert (difference == WEIGHTS[J] * offset.astype(np.int64) % np.array(PRIMES, np.int64)[:, None]).all()
    expected = masks.weighted_keys([honest[m] for m in MEMBERS[:3]], [4, 3, 3]).residues
    assert (others_sum(plain, honest[J]) == expected).all()


@pytest.mark.parametrize("amplitude", [1, 40960, 2**13])
def test_a_share_chosen_to_cancel_isolates_nobody(honest, dealt, amplitude) -> None:
    """att.py: with E_J = -(E_A + E_B) the sum was k_C. J has one share of each key, and that is uniform without t - 1
    more: whatever it deals, the honest part of the sum stays w_A·k_A + w_B·k_B + w_C·k_C."""
    mine = {dealer: sharing.decode_share(dealt[dealer][J], "") for dealer in MEMBERS[:2]}
    chosen = (-amplitude * (mine[MEMBERS[0]].astype(np.int64) + mine[MEMBERS[1]])) % np.array(PRIMES)[:, None]
    flat = {holder: sharing.encode_share(chosen.astype(np.uint32)) for holder in MEMBERS}
    key = sharing.recover(CONTEXT, answers_to(dealt | {J: flat}))
    left = others_sum(key, MaskKey(chosen.astype(np.uint32)))
    for name in MEMBERS[:3]:
        alone = WEIGHTS[name] * honest[name].residues.astype(np.int64) % np.array(PRIMES)[:, None]
        assert np.mean(left == alone) < 0.01


def test_a_copied_box_does_not_open() -> None:
    """J passes A's sealed share on as its own, to have A's key counted twice: it is bound to A and to A's header."""
    entropy = SeededEntropy(1)
    keys = {name: SealingKey.generate(entropy) for name in MEMBERS}
    receiver = MEMBERS[1]

    def envelope(sender: DeviceId, header: bytes) -> Envelope:
        return Envelope(CONTEXT.federation, CONTEXT.term, sender, receiver, f"lean share {header.hex()}")

    box = seal(b"share", envelope(MEMBERS[0], b"one"), keys[MEMBERS[0]], keys[receiver].public_bytes, entropy)
    for sender, header in ((J, b"one"), (MEMBERS[0], b"other")):
        with pytest.raises(CryptoError, match="altered, or not made by this sender"):
            open_sealed(box, envelope(sender, header), keys[receiver], keys[sender].public_bytes)


def test_two_active_sets_tell_no_more_than_one(dealt) -> None:
    """A retry with another active set is the same polynomial: every answer follows from any t of them."""
    answers = {name: sharing.decode_share(answer, "") for name, answer in answers_to(dealt).items()}
    for active in itertools.combinations(MEMBERS, 3):
        points = [CONTEXT.point_of(name) for name in active]
        (left,) = set(MEMBERS) - set(active)
        for limb, p in enumerate(PRIMES):
            factors = interpolate(points, CONTEXT.point_of(left), p)
            implied = sum(f * answers[name][limb].astype(object) for f, name in zip(factors, active, strict=True)) % p
            assert (implied == answers[left][limb]).all()


def test_sixteen_of_sixteen_open_exactly() -> None:
    """marg.py: there is no margin that more leaders could use up."""
    members = tuple(DeviceId(f"truck-{n}") for n in range(16))
    context = KeyContext(MAIN, FederationId("harbour"), Term(3), members, 16)
    entropy = SeededEntropy(4)
    keys = [MaskKey.draw(entropy) for _ in members]
    shares = [sharing.deal(context, key, entropy) for key in keys]
    weights = {name: 3 if name == members[0] else 4 for name in members}
    answers = {h: sharing.answer({m: s[h] for m, s in zip(members, shares, strict=True)}, weights) for h in members}
    expected = masks.weighted_keys(keys, list(weights.values()))
    assert (sharing.recover(context, answers).residues == expected.residues).all()


def test_an_inconsistent_dealer_spoils_the_round_and_changes_no_sum_unseen(honest, dealt) -> None:
    values = np.arange(-100, 100, dtype=np.int32)
    entropy = SeededEntropy(8)
    bodies = [masks.mask_body(DOMAIN, honest[name], values, 20, entropy) for name in MEMBERS]
    total = masks.sum_bodies(DOMAIN, bodies, list(WEIGHTS.values()), 200, 20)
    other = sharing.deal(CONTEXT, MaskKey.draw(entropy), entropy)
    with pytest.raises(WrongShareError):
        masks.open_sum(total, sharing.recover(CONTEXT, answers_to(dealt | {J: other})))
    mixed = dealt[J] | {MEMBERS[0]: other[MEMBERS[0]]}
    three = {name: answers_to(dealt | {J: mixed})[name] for name in MEMBERS[:3]}
    with pytest.raises(WrongShareError):
        masks.open_sum(total, sharing.recover(CONTEXT, three))
