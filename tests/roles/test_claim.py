"""Two coordinators of one federation: the lesser claim yields, and says what to do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofl_iot.errors import ConfigError
from ofl_iot.fleet.assignment import FleetSettings
from ofl_iot.ids import COORDINATOR
from ofl_iot.protocol.messages import Assignment, Manifest
from ofl_iot.protocol.topics import Kind
from ofl_iot.roles.coordinator.claim import TABLE, CoordinatorClaim, Verdict
from ofl_iot.roles.coordinator.machine import CoordinatorMachine
from ofl_iot.roles.coordinator.profile import CoordinatorRules, ModelProfile
from ofl_iot.roles.events import LinkUp, Started, TimerFired
from ofl_iot.roles.reports.coordinator import RivalCoordinator, TakeoverBegun
from ofl_iot.roles.settings import FleetRules, ProtectionRules, RoundRules
from ofl_iot.roles.storage import Put
from tests.roles.parties import MODEL, SIZE, A, B, arrived, kinds, published, status, told

ONE, OTHER = b"one", b"other"


def manifest(term: int, round_no: int, incarnation: bytes = ONE, digest: bytes = bytes(16)) -> Manifest:
    return Manifest(round_no, b"tinytiny", 12, digest, (), term=term, incarnation=incarnation)


def goes_on(seen: Manifest, own: Manifest) -> bool:
    try:
        CoordinatorClaim(own.incarnation, take_over=False).judge(seen, own, begun=True)
    except ConfigError:
        return False
    return True


@given(st.tuples(st.integers(0, 3), st.integers(0, 3)), st.tuples(st.integers(0, 3), st.integers(0, 3)))
def test_of_two_that_see_each_other_exactly_one_goes_on(first: tuple[int, int], second: tuple[int, int]) -> None:
    one, other = manifest(*first), manifest(*second, OTHER)
    assert goes_on(other, one) != goes_on(one, other)


def test_the_first_start_stores_who_it_is_and_a_later_one_is_the_same() -> None:
    assert CoordinatorClaim(ONE, take_over=False).restore({}) == [Put(TABLE, "incarnation", ONE)]
    later = CoordinatorClaim(OTHER, take_over=False)
    assert later.restore({TABLE: {"incarnation": ONE}}) == []
    assert later.incarnation == ONE


def test_its_own_manifests_are_no_news() -> None:
    fence = CoordinatorClaim(ONE, take_over=False)
    assert fence.judge(manifest(1, 2), manifest(1, 2), begun=True) is Verdict.OURS
    assert fence.judge(manifest(1, 1, digest=bytes([1]) * 16), manifest(1, 2), begun=True) is Verdict.OURS, "late"
    assert fence.judge(manifest(9, 9, b""), manifest(1, 2), begun=True) is Verdict.OURS, "unsigned"


@pytest.mark.parametrize("seen", [manifest(1, 3), manifest(1, 2, digest=bytes([1]) * 16)])
def test_a_copy_of_the_state_folder_is_noticed(seen: Manifest) -> None:
    with pytest.raises(ConfigError, match="old copy, or a copy of it is in use"):
        CoordinatorClaim(ONE, take_over=False).judge(seen, manifest(1, 2), begun=True)


def test_who_has_not_begun_yields_to_any_other() -> None:
    with pytest.raises(ConfigError, match="state folder that was in use last"):
        CoordinatorClaim(ONE, take_over=False).judge(manifest(0, 0, OTHER), manifest(5, 0), begun=False)


def test_taking_over_holds_until_there_is_a_term_to_claim_and_then_once() -> None:
    fence = CoordinatorClaim(ONE, take_over=True)
    assert fence.judge(manifest(4, 9, OTHER), manifest(0, 0), begun=False) is Verdict.TAKE_OVER
    assert fence.judge(manifest(4, 9, OTHER), manifest(5, 0), begun=False) is Verdict.TAKE_OVER
    assert fence.judge(manifest(4, 9, OTHER), manifest(6, 0), begun=True) is Verdict.BELOW
    assert fence.judge(manifest(7, 9, OTHER), manifest(6, 0), begun=True) is Verdict.TAKE_OVER
    with pytest.raises(ConfigError):
        fence.judge(manifest(9, 9, OTHER), manifest(8, 0), begun=True)


# --- the coordinator behind the fence


def begun(*, take_over: bool = False) -> CoordinatorMachine:
    """A coordinator with a cluster of two, in term 1."""
    rules = CoordinatorRules(RoundRules(), FleetRules(gather_s=1.0), ProtectionRules(mode="clear"), FleetSettings())
    profile = ModelProfile(MODEL, np.zeros(SIZE, np.float32))
    machine = CoordinatorMachine(profile, rules, CoordinatorClaim(ONE, take_over=take_over))
    machine.handle(Started(), 0.0)
    machine.handle(LinkUp(), 0.0)
    for device in (A, B):
        machine.handle(arrived(Kind.STATUS, device, status()), 0.0)
    machine.handle(TimerFired("coordinator.gather"), 1.0)
    return machine


def test_who_meets_a_lesser_claim_says_everything_again_under_its_own_name() -> None:
    machine = begun()
    commands = machine.handle(arrived(Kind.MANIFEST, COORDINATOR, manifest(0, 7, OTHER)), 2.0)
    assert told(commands) == [RivalCoordinator]
    (said,) = published(commands, Kind.MANIFEST)
    assert isinstance(said, Manifest)
    assert (said.term, said.incarnation) == (1, ONE)
    assigned = published(commands, Kind.ASSIGNMENT)
    assert [each.incarnation for each in assigned if isinstance(each, Assignment)] == [ONE, ONE]


def test_a_running_one_stops_at_a_greater_claim() -> None:
    with pytest.raises(ConfigError, match="another coordinator"):
        begun().handle(arrived(Kind.MANIFEST, COORDINATOR, manifest(5, 0, OTHER)), 2.0)


def test_one_that_had_begun_and_takes_over_claims_a_higher_term_durably_before_it_says_so() -> None:
    machine = begun(take_over=True)
    commands = machine.handle(arrived(Kind.MANIFEST, COORDINATOR, manifest(5, 9, OTHER)), 2.0)
    assert told(commands) == [TakeoverBegun]
    (said,) = published(commands, Kind.MANIFEST)
    assert isinstance(said, Manifest)
    assert said.term == 6
    order = kinds(commands)
    assert order.index("Persist") < order.index("Publish MANIFEST")
    assert machine.roster.highest_term == 6
