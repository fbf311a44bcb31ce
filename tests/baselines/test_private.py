"""AHFL, FLDP and FedPHE: noise, sums of which nobody sees the terms, packs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofl_iot.errors import ConfigError, DecodeError, RefusedError
from ofl_iot.ids import COORDINATOR, DeviceId
from ofl_iot.roles.commands import Command, Publish
from ofl_iot.roles.events import Trained
from ofl_research.baselines.ahfl import AhflOptions, AsynchronousHead, NoisyPacking, perturbed
from ofl_research.baselines.device import Worker
from ofl_research.baselines.fedphe import CIPHERTEXT_BYTES, PACK_VALUES, FedPhe, FedPheOptions, PackPacking
from ofl_research.baselines.fldp import Fldp, FldpDevice, FldpFleet, FldpOptions, FldpServer, quantised
from ofl_research.baselines.letters import (
    BaselineMessage,
    BaselineMessageArrived,
    Hello,
    Lead,
    Offer,
    Reply,
    Shares,
    Vector,
    pack_dense,
    read_letter,
    unpack_dense,
)
from ofl_research.baselines.secure_sum import DEGREE, MODULUS, centred, deal_shares, join_shares, masks, random_secret
from ofl_research.baselines.server import Schedule

DEVICES = ("anna", "bert", "carl")


def vector(*values: float) -> Vector:
    return np.array(values, np.float32)


def letters(commands: list[Command]) -> list[tuple[str, BaselineMessage]]:
    published = [c for c in commands if isinstance(c, Publish)]
    return [(str(c.topic.receiver), read_letter(bytes(c.message))) for c in published]  # type: ignore[arg-type]


# --- secure sums


@settings(max_examples=20)
@given(count=st.integers(1, 5), size=st.integers(1, 2 * DEGREE + 3), seed=st.integers(0, 2**32))
def test_a_masked_sum_equals_the_plain_sum_exactly(count: int, size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    terms = rng.integers(-(10**6), 10**6, (count, size))
    secrets = [random_secret(rng) for _ in range(count)]
    hidden = [(t + masks(s, size, np.random.default_rng(7))) % MODULUS for t, s in zip(terms, secrets, strict=True)]
    total = sum(hidden) - masks(sum(secrets) % MODULUS, size, np.random.default_rng(7))
    np.testing.assert_array_equal(centred(total), terms.sum(axis=0))


@given(seed=st.integers(0, 2**32), count=st.integers(1, 6), data=st.data())
def test_any_threshold_of_the_shares_gives_the_secret_and_one_less_does_not(
    seed: int, count: int, data: st.DataObject
) -> None:
    rng = np.random.default_rng(seed)
    threshold = data.draw(st.integers(1, count))
    secret, places = rng.integers(0, MODULUS, 8), range(1, count + 1)
    shares = dict(zip(places, deal_shares(secret, places, threshold, rng), strict=True))
    some = data.draw(st.permutations(list(places)))[:threshold]
    np.testing.assert_array_equal(join_shares({place: shares[place] for place in some}), secret)
    if threshold > 1:
        assert not np.array_equal(join_shares({place: shares[place] for place in some[1:]}), secret)


def test_shares_of_sums_are_sums_of_shares() -> None:
    rng = np.random.default_rng(0)
    one, two = (rng.integers(0, MODULUS, 4) for _ in range(2))
    dealt = [deal_shares(secret, (1, 2, 3), 2, rng) for secret in (one, two)]
    added = {place: (dealt[0][place - 1] + dealt[1][place - 1]) % MODULUS for place in (1, 3)}
    np.testing.assert_array_equal(join_shares(added), (one + two) % MODULUS)


@pytest.mark.parametrize(("places", "threshold"), [((1, 2), 3), ((0, 1), 1), ((1, 2), 0)])
def test_shares_that_would_tell_the_secret_or_never_give_it_are_refused(
    places: tuple[int, ...], threshold: int
) -> None:
    with pytest.raises(RefusedError, match="threshold"):
        deal_shares(np.array([1]), places, threshold, np.random.default_rng(0))


# --- FLDP


def fleet(**options: float) -> FldpFleet:
    return FldpFleet(DEVICES, 5, FldpOptions(**options))  # type: ignore[arg-type]


def fldp_round(group: FldpFleet, updates: dict[str, Vector]) -> tuple[Fldp, list[Command]]:
    """One round of three devices and a server, letter by letter."""
    strategy = Fldp(vector(1, 1), group)
    server = FldpServer(strategy, group, Schedule(devices=3, rounds=1))
    machines = {
        d: FldpDevice(Worker(DeviceId(d), 1, 1), group, np.random.default_rng(i)) for i, d in enumerate(DEVICES)
    }
    post_office = [(str(COORDINATOR), DeviceId(device), Hello(1)) for device in DEVICES]
    queue: list[tuple[str, DeviceId, BaselineMessage]] = list(post_office)
    last: list[Command] = []
    while queue:
        receiver, sender, letter = queue.pop(0)
        if receiver == COORDINATOR:
            commands = server.handle(BaselineMessageArrived(sender, letter), 0)
            last = commands or last
            queue += [(to, COORDINATOR, each) for to, each in letters(commands)]
            continue
        machine = machines[receiver]
        commands = machine.handle(BaselineMessageArrived(sender, letter), 0)
        if isinstance(letter, Offer):
            start = unpack_dense(letter.models[0])
            commands = machine.handle(Trained(start, start + updates[receiver], 0, 1, 0), 0)
        queue += [(to, DeviceId(receiver), each) for to, each in letters(commands)]
    return strategy, last


def test_the_server_learns_the_mean_and_no_device_sends_its_update_in_the_clear() -> None:
    updates = {"anna": vector(0.3, 0), "bert": vector(0, 0.6), "carl": vector(-0.9, 0.3)}
    strategy, last = fldp_round(fleet(), updates)
    np.testing.assert_allclose(strategy.model, vector(1 - 0.2, 1 + 0.3), atol=1e-3)
    assert last


def test_updates_are_clipped_before_they_are_hidden() -> None:
    values = quantised(vector(30, 40), fleet(clip_norm=5.0), np.random.default_rng(0))
    np.testing.assert_allclose(values / 2**16, [3, 4], atol=1e-3)


def test_noise_is_added_by_all_devices_together() -> None:
    group, rng = fleet(noise_multiplier=1.0, clip_norm=2.0), np.random.default_rng(0)
    noise = sum(quantised(np.zeros(20_000, np.float32), group, rng) for _ in DEVICES) / 2**16
    assert np.std(noise) == pytest.approx(2.0, rel=0.05)


def test_a_fleet_whose_sum_would_overflow_is_refused() -> None:
    with pytest.raises(ConfigError, match="clip"):
        fleet(clip_norm=10_000.0)


def test_shares_of_another_round_are_dropped() -> None:
    server = FldpServer(Fldp(vector(0), fleet()), fleet(), Schedule(devices=3, rounds=1))
    assert not server.handle(BaselineMessageArrived(DeviceId("anna"), Shares(9, {})), 0)


# --- AHFL


def test_noise_is_in_proportion_to_each_layer() -> None:
    model = np.concatenate([np.full(5000, 100, np.float32), np.full(5000, 1, np.float32)])
    noise = perturbed(model, (5000, 5000), 0.1, np.random.default_rng(0)) - model
    assert np.std(noise[:5000]) == pytest.approx(10, rel=0.1)
    assert np.std(noise[5000:]) == pytest.approx(0.1, rel=0.1)


def test_without_deviation_the_model_leaves_as_it_is() -> None:
    packing = NoisyPacking(AhflOptions(deviation=0.0), np.random.default_rng(0))
    assert packing.pack(vector(0, 0), vector(1, 2)) == pack_dense(vector(1, 2))


def test_a_head_answers_each_member_at_once_and_the_server_when_enough_came() -> None:
    head = AsynchronousHead(Lead({"anna": 10, "bert": 10}), AhflOptions(alpha=0.5))
    assert not list(head.replied("anna", Reply(0, pack_dense(vector(8)))))
    assert [to for to, _ in head.offered(Offer(3, (pack_dense(vector(0)),)))] == ["anna", "bert"]
    assert list(head.replied("anna", Reply(0, pack_dense(vector(8))))) == [("anna", Offer(1, (pack_dense(vector(4)),)))]
    answers = list(head.replied("bert", Reply(0, pack_dense(vector(8)))))
    assert answers[1] == (COORDINATOR, Reply(3, pack_dense(vector(6))))
    assert head.merged == 2
    assert head.merged == 0
    list(head.replied("anna", Reply(2, pack_dense(vector(8)))))  # 7, while the server thinks
    assert not list(head.offered(Offer(4, (pack_dense(vector(5)),))))
    (to, offer), *_ = head.replied("bert", Reply(3, pack_dense(vector(6))))
    assert (to, offer) == ("bert", Offer(4, (pack_dense(vector(6)),)))  # 5 + (7 - 6), then half way to 6


# --- FedPHE


def test_the_packs_that_changed_most_leave_and_the_rest_waits() -> None:
    packing = PackPacking(FedPheOptions(share=0.5))
    start = np.zeros(2 * PACK_VALUES, np.float32)
    trained = start.copy()
    trained[0], trained[-1] = 1, 2
    strategy = FedPhe(start)
    strategy.begin({"anna": Hello(10)})
    body = packing.pack(start, trained)
    assert CIPHERTEXT_BYTES <= len(body) <= CIPHERTEXT_BYTES + 100
    strategy.combine(1, {"anna": Reply(1, body)})
    assert strategy.model[-1] == 2
    assert strategy.model[0] == 0
    strategy.combine(2, {"anna": Reply(2, packing.pack(strategy.model, strategy.model))})
    assert strategy.model[0] == 1
    assert strategy.judged()[0].share == 1


@given(st.integers(1, 3 * PACK_VALUES), st.integers(0, 2**32))
@settings(max_examples=20)
def test_with_all_packs_fedphe_is_the_weighted_mean(size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    start, one, two = (rng.normal(size=size).astype(np.float32) for _ in range(3))
    strategy = FedPhe(start)
    strategy.begin({"anna": Hello(30), "bert": Hello(10)})
    bodies = {d: PackPacking(FedPheOptions(share=1.0)).pack(start, m) for d, m in (("anna", one), ("bert", two))}
    strategy.combine(1, {device: Reply(1, body) for device, body in bodies.items()})
    np.testing.assert_allclose(strategy.model, 0.75 * one + 0.25 * two, atol=1e-4)


def test_a_body_without_packs_is_refused() -> None:
    strategy = FedPhe(vector(0))
    strategy.begin({"anna": Hello(1)})
    with pytest.raises(DecodeError, match="packs"):
        strategy.combine(1, {"anna": Reply(1, b"\x01")})
