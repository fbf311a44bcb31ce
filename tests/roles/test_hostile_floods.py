"""Messages that cost their receiver more than their sender: pulls, early parts, accusations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofl_iot.errors import RefusedError
from ofl_iot.protocol.topics import Kind
from ofl_iot.roles.allowance import Allowance
from ofl_iot.roles.keys.participant import FAULT, MAX_BODY_BYTES, ROUND1, ROUND2
from ofl_iot.roles.leader import membership
from ofl_iot.roles.reports.base import MessageDropped
from tests.roles import test_ceremony as ceremony
from tests.roles import test_leader as leader
from tests.roles import test_participant as participant
from tests.roles.parties import A, B, dropped, published


@given(st.lists(st.tuples(st.floats(0, 3), st.floats(0, 5)), max_size=50))
def test_no_more_is_spent_than_a_burst_and_what_came_in_since(steps: list[tuple[float, float]]) -> None:
    allowance, now, spent = Allowance(burst=4.0, rate=1.0), 0.0, 0.0
    for wait, amount in steps:
        now += wait
        spent += amount if allowance.spend(amount, now) and amount <= 4.0 else 0.0
        assert spent <= 4.0 + now + 1e-6


def test_pulls_of_one_device_are_answered_at_a_bounded_rate_and_others_are_not_affected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The attack: every pull is answered with 35 times its bytes, as often as it comes."""
    monkeypatch.setattr(membership, "LEAST_PULL_BYTES", 0)  # so that a model of 12 parameters is large
    machine = leader.in_office()
    answered = [bool(published(machine.handle(leader.pull(), 1.0), Kind.BLOCKS)) for _ in range(20)]
    assert answered == [True] * 4 + [False] * 16, "four models at once"
    refusal = dropped(machine.handle(leader.pull(), 1.0))
    assert refusal.sender == B
    assert "pulls faster" in refusal.reason
    assert published(machine.handle(leader.pull(sender=A), 1.0), Kind.BLOCKS)
    assert published(machine.handle(leader.pull(), 2.0), Kind.BLOCKS), "a second later it is answered again"


def test_parts_for_a_key_generation_still_unknown_cannot_fill_the_memory_nor_push_others_out() -> None:
    machine = participant.keeper()
    machine.handle(participant.from_(participant.B, participant.part(ROUND1, attempt=1)), 0.0)
    for attempt in range(1, 500):
        flood = participant.part(ROUND1, attempt=attempt, body=bytes(1000))
        machine.handle(participant.from_(participant.C, flood), 0.0)
    kept = machine._ring._early
    assert sum(1 for sender, _ in kept if sender == participant.B) == 1
    assert len(kept) <= 9
    for number in range(500):
        machine.handle(participant.from_(f"x{number}", participant.part(ROUND1)), 0.0)
    assert len({sender for sender, _ in machine._ring._early}) <= 16
    stage = machine.handle(participant.from_(participant.C, participant.part(ROUND2)), 0.0)
    assert isinstance(stage[-1], MessageDropped)


def test_an_accusation_is_of_a_member_and_short_whatever_was_sent() -> None:
    """The attack: a leader's FAULT of 15 MiB, which the coordinator wrote into its log."""
    made, _ = ceremony.begun()
    text = b"x\n" * (MAX_BODY_BYTES // 3)
    with pytest.raises(RefusedError, match="takes no part") as refused:
        ceremony.say(made, ceremony.B, FAULT, text)
    assert len(str(refused.value)) < 200
