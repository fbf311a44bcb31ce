"""Keys without a dealer: every step crosses the wire, missing and misplaced parts are named."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ofl_iot.crypto import keygen, relinearisation, sealing
from ofl_iot.crypto.context import KeyContext, Origin
from ofl_iot.crypto.encryption import PublicKey, common_polynomial, encrypt, weighted_sum
from ofl_iot.crypto.entropy import SeededEntropy
from ofl_iot.crypto.keygen import KEY_ROUND, KeyContribution, KeyDeal, KeyShare, LeaderSecret
from ofl_iot.crypto.params import ERROR_SIGMA, MAIN
from ofl_iot.crypto.relinearisation import RelinCompletion, RelinContribution, RelinFirst, RelinKey
from ofl_iot.crypto.ring import conjugate, ring_of
from ofl_iot.crypto.sealing import Envelope, SealingKey
from ofl_iot.crypto.threshold import final_decrypt, partial_decrypt, server_decrypt
from ofl_iot.errors import CryptoError
from ofl_iot.ids import COORDINATOR, DeviceId, FederationId, Term


def test_leaders_make_a_key_by_bytes_alone_and_nobody_holds_the_secret(entropy) -> None:
    """The whole protocol as messages: broadcasts as parts, deals sealed, state stored and restored between steps."""
    names = tuple(map(DeviceId, ("north", "south", "west")))
    context = KeyContext(MAIN, FederationId("harbour"), Term(1), names, 2)
    enrolled = {name: SealingKey.generate(entropy) for name in names}
    broadcasts: dict[DeviceId, list[bytes]] = {}
    boxes: dict[tuple[DeviceId, DeviceId], bytes] = {}
    for name in names:
        secret = keygen.generate_secret(context, name, entropy)
        secret = LeaderSecret.from_bytes(secret.to_bytes(), secret.origin)
        broadcasts[name] = keygen.generate_share(secret, entropy).to_parts()
        for receiver, deal in keygen.generate_deals(secret, entropy).items():
            envelope = Envelope(context.federation, context.term, name, receiver)
            public = enrolled[receiver].public_bytes
            boxes[name, receiver] = sealing.seal(deal.to_bytes(), envelope, enrolled[name], public, entropy)
    public = keygen.combine_shares(
        context, [KeyContribution.from_parts(broadcasts[name], Origin(context, KEY_ROUND, name)) for name in names]
    )
    public = PublicKey.from_bytes(public.to_bytes(), Origin(context, KEY_ROUND, COORDINATOR))
    shares = {}
    for me in names:
        deals = []
        for sender in names:
            envelope = Envelope(context.federation, context.term, sender, me)
            plain = sealing.open_sealed(boxes[sender, me], envelope, enrolled[me], enrolled[sender].public_bytes)
            deals.append(KeyDeal.from_bytes(plain, Origin(context, KEY_ROUND, sender)))
        share = keygen.combine_deals(context, me, deals)
        shares[me] = KeyShare.from_bytes(share.to_bytes(), share.origin)
    values = np.linspace(-1, 1, 100)
    model = encrypt(public, values, Origin(context, 1, names[0]), entropy)
    held, request = server_decrypt(public, weighted_sum([model], [1.0]), names[1:], names, entropy)
    result = final_decrypt(held, [partial_decrypt(shares[name], request, entropy) for name in names[1:]])
    assert np.abs(result - values).max() < 1e-4


def test_the_joint_public_key_hides_the_sum_of_the_secrets(term) -> None:
    """b + a·s is a small error: the sum of five binomials."""
    ring = ring_of(MAIN)
    a = common_polynomial(term.context, "a")[:, 0]
    s = next(iter(term.secrets.values())).s
    for secret in list(term.secrets.values())[1:]:
        s = ring.add(s, secret.s)
    e = ring.add(term.public.b, ring.multiply(a, s))
    errors = ring.join(e[0][None], e[1][None], (0, 1))
    assert errors.std() == pytest.approx(ERROR_SIGMA * 5**0.5, rel=0.05)


def test_the_relinearisation_key_carries_s_times_conj_s(term) -> None:
    ring = ring_of(MAIN)
    s = next(iter(term.secrets.values())).s
    for secret in list(term.secrets.values())[1:]:
        s = ring.add(s, secret.s)
    a11 = ring.from_integers(np.random.default_rng(0).integers(-(2**40), 2**40, (1, MAIN.degree)), 4)[:, 0]
    x0, x1 = relinearisation.relinearise(term.relin, a11)
    got = ring.add(x0, ring.multiply(x1, s))
    rest = ring.subtract(got, ring.multiply(a11, ring.multiply(s, conjugate(s))))
    coefficients = rest[:, None].copy()
    for limb in range(4):
        ring.untransform(coefficients[limb], limb)
    sizes = [abs(ring.centred(tuple(int(c) for c in coefficients[:, 0, j]))) for j in range(0, 4096, 64)]
    assert max(sizes) < 2**46


def test_every_step_of_the_relinearisation_key_crosses_the_wire(term, entropy) -> None:
    shares = [relinearisation.generate_share(secret, entropy) for secret in term.secrets.values()]
    shares = [RelinContribution.from_parts(share.to_parts(), share.origin) for share in shares]
    first = relinearisation.combine_shares(term.context, shares)
    first = RelinFirst.from_parts(first.to_parts(), first.origin)
    done = [relinearisation.complete_share(secret, first, entropy) for secret in term.secrets.values()]
    done = [RelinCompletion.from_parts(share.to_parts(), share.origin) for share in done]
    key = relinearisation.combine_completions(first, done)
    assert (RelinKey.from_bytes(key.to_bytes(), key.origin).h0 == key.h0).all()


def test_a_member_that_saw_another_first_round_is_named(term, entropy) -> None:
    shares = [relinearisation.generate_share(secret, entropy) for secret in term.secrets.values()]
    first = relinearisation.combine_shares(term.context, shares)
    shares[0] = relinearisation.generate_share(term.secrets[term.leaders[0]], entropy)
    other = relinearisation.combine_shares(term.context, shares)
    done = [relinearisation.complete_share(secret, first, entropy) for secret in term.secrets.values()]
    done[3] = relinearisation.complete_share(term.secrets[term.leaders[3]], other, entropy)
    with pytest.raises(CryptoError, match="truck-3: it saw another first round"):
        relinearisation.combine_completions(first, done)


def test_a_missing_doubled_foreign_or_strange_contribution_is_named(term, other_term, entropy) -> None:
    parts = [keygen.generate_share(secret, entropy) for secret in term.secrets.values()]
    with pytest.raises(CryptoError, match="lacks truck-2, truck-4: start again"):
        keygen.combine_shares(term.context, [parts[0], parts[1], parts[3]])
    with pytest.raises(CryptoError, match="key contribution from truck-0: came twice"):
        keygen.combine_shares(term.context, [*parts, parts[0]])
    foreign = keygen.generate_share(other_term.secrets[DeviceId("truck-4")], entropy)
    with pytest.raises(CryptoError, match="truck-4: made for another key"):
        keygen.combine_shares(term.context, [*parts[:4], foreign])
    stranger = replace(parts[4], origin=replace(parts[4].origin, sender=DeviceId("stranger")))
    with pytest.raises(CryptoError, match="stranger is no member"):
        keygen.combine_shares(term.context, [*parts[:4], stranger])
    with pytest.raises(CryptoError, match="stranger is no member"):
        keygen.generate_secret(term.context, DeviceId("stranger"), entropy)
    first = RelinFirst(other_term.relin.origin, other_term.relin.h0, other_term.relin.h1)
    with pytest.raises(CryptoError, match="another key"):
        relinearisation.complete_share(term.secrets[DeviceId("truck-0")], first, entropy)


def test_a_deal_for_somebody_else_is_refused(term, entropy) -> None:
    deals = [keygen.generate_deals(secret, entropy) for secret in term.secrets.values()]
    mine, yours = term.leaders[0], term.leaders[1]
    received = [deals[0][mine], deals[1][yours], *(dealt[mine] for dealt in deals[2:])]
    with pytest.raises(CryptoError, match="key deal from truck-1: made for truck-1, not for truck-0"):
        keygen.combine_deals(term.context, mine, received)


def test_secrets_do_not_show_in_a_repr(term) -> None:
    shown = repr(term.secrets[DeviceId("truck-0")]) + repr(term.shares[DeviceId("truck-0")])
    assert "array" not in shown
    assert "private_bytes" not in repr(SealingKey.generate(SeededEntropy(1)))
