"""Sample counts are claims: the attack is one device that says it has more data than all others together."""

from __future__ import annotations

import statistics

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofl_iot.errors import ConfigError
from ofl_iot.protocol.codec import encode, encode_body
from ofl_iot.protocol.messages import Assignment, Contribution, Member
from ofl_iot.protocol.parts import split_body
from ofl_iot.protocol.seqset import SeqSet
from ofl_iot.protocol.topics import Kind
from ofl_iot.robust.claims import CLUSTER_RATIO, FLEET_RATIO, believable
from ofl_iot.robust.weights import cluster_weights, without_dominant
from ofl_iot.roles.commands import Command
from ofl_iot.roles.events import TimerFired
from ofl_iot.roles.job_kinds.rounds import AggregateRound
from ofl_iot.roles.leader.membership import Membership
from ofl_iot.roles.leader.merging import MergeRules, WeightedMerging
from tests.roles.parties import A, B, C, D, arrived, chunk_of, jobs, published, status
from tests.roles.test_coordinator import Office

ABSURD = [10**12, 2**53 - 1]
claims = st.dictionaries(st.sampled_from([A, B, C, D, "e", "f"]), st.integers(0, 2**53 - 1), min_size=1)


@given(claims, st.integers(1, 100))
def test_no_claim_counts_beyond_its_ratio_to_the_median_and_none_below_changes(said: dict, ratio: int) -> None:
    counts = believable(said, ratio)
    most = ratio * max(1, statistics.median_low(said.values()))
    for device, claim in said.items():
        assert counts[device] == claim or (claim >= most * 0.999999 and counts[device] <= most * 1.000001)


def test_a_ratio_below_one_is_refused() -> None:
    with pytest.raises(ConfigError):
        believable({A: 1}, 0.5)
    assert believable({}, 4.0) == {}


weights = st.dictionaries(st.text(max_size=3), st.floats(1e-6, 1.0), min_size=2, max_size=8)


@given(weights)
def test_no_weight_is_above_half_of_the_sum_and_the_sum_stays(given_weights: dict[str, float]) -> None:
    bounded = without_dominant(given_weights)
    total = sum(given_weights.values())
    assert sum(bounded.values()) == pytest.approx(total)
    assert max(bounded.values()) <= 0.5 * total * (1 + 1e-9)
    if max(given_weights.values()) <= 0.5 * total * (1 - 1e-9):
        assert bounded == given_weights


def test_a_single_weight_stays_as_it_is() -> None:
    assert without_dominant({A: 1.0, B: 0.0}) == {A: 1.0, B: 0.0}


@pytest.mark.parametrize("claim", ABSURD)
def test_a_liar_in_the_cluster_leaves_the_others_their_voice(claim: int) -> None:
    """Before: the honest members' steps fell to 1e-10."""
    members = Membership()
    members.take(Member(device, SeqSet(), 100) for device in (A, B, C))
    merging = WeightedMerging(MergeRules(compensate_rate=False, gate=False), salt=1)
    usual = merging.step(A, chunk_of(1, {0: 1.0}), 0.0, members.samples, 0)
    members.take(Member(device, SeqSet(), count) for device, count in ((A, 100), (B, 100), (C, 100), (D, claim)))
    step = merging.step(A, chunk_of(2, {0: 1.0}), 0.0, members.samples, 0)
    assert step >= 0.999 * usual * 3 / (3 + CLUSTER_RATIO)
    assert sum(members.samples.values()) < 2**53


def liars_fleet(claim: int) -> Office:
    """Four devices in two clusters; the last one lies about its data."""
    office = Office()
    for device in (A, B, C, D):
        said = msgspec.structs.replace(status(), sample_count=claim if device == D else 100)
        office.give(arrived(Kind.STATUS, device, said))
    commands = office.give(TimerFired("coordinator.gather"))
    for message in published(commands, Kind.ASSIGNMENT):
        assert isinstance(message, Assignment)
        assert all(member.sample_count <= FLEET_RATIO * 100 for member in message.members)
        encode(message)
    return office


@pytest.mark.parametrize("claim", ABSURD)
def test_what_a_leader_claims_for_its_cluster_counts_as_far_as_its_members_are_believed(claim: int) -> None:
    """Before: a weight of 0.9999999993, so the decrypted sum was one cluster's update."""
    office = liars_fleet(claim)
    office.open_round()
    commands: list[Command] = []
    for leader, count in zip(office.leaders, (claim, 200), strict=True):
        body = encode_body(Contribution(b"payload", (), count, 1))
        for part in split_body(body, office.machine.roster.terms[leader], 1, "contribute"):
            commands = office.give(arrived(Kind.CONTRIBUTION, leader, part))
    (job,) = jobs(commands, AggregateRound)
    counts = {each.leader: float(each.sample_count) for each in job.contributions}
    assert max(counts.values()) <= (FLEET_RATIO + 1) * 100
    shares = dict(zip(counts, cluster_weights(list(counts.values()), [1.0, 1.0]), strict=True))
    assert max(without_dominant(shares).values()) == pytest.approx(0.5)
