"""What a leader lets out, and under which key: never its update in the clear beside others, never under another key."""

from __future__ import annotations

import pytest

from ofl_iot.protocol.key_messages import KeyMember, KeyOpen
from ofl_iot.protocol.messages import RoundOpen, Seat
from ofl_iot.protocol.topics import Kind
from ofl_iot.roles.commands import Command
from ofl_iot.roles.events import LinkUp, Started
from ofl_iot.roles.job_kinds.keys import KeyMaterial
from ofl_iot.roles.job_kinds.rounds import ProtectContribution
from ofl_iot.roles.leader.machine import LeaderMachine
from ofl_iot.roles.leader.profile import LeaderProfile
from ofl_iot.roles.reports.base import LateMessageDropped, MessageDropped
from ofl_iot.roles.settings import LeaderRules
from tests.roles.parties import (
    BLOCK,
    MODEL,
    A,
    B,
    Unweighted,
    arrived,
    assigned,
    device_machine,
    global_model,
    jobs,
    office,
    round_open,
)

KEY_ID, OTHER = b"k" * 16, b"o" * 16
SEATS = (Seat(A, 1), Seat(B, 1))


class Ring:
    def __init__(self, material: KeyMaterial | None) -> None:
        self.material = material


def material(key_id: bytes = KEY_ID) -> KeyMaterial:
    members = tuple(KeyMember(name, bytes(32)) for name in (A, B))
    return KeyMaterial(KeyOpen(1, 1, members, 2, "main"), key_id, b"public", b"share")


def leader(ring: Ring, *, encrypted: bool = True) -> LeaderMachine:
    profile = LeaderProfile(A, MODEL, device_machine(A).model.layout, encrypted)
    machine = LeaderMachine(profile, LeaderRules(block_size=BLOCK, values="single"), Unweighted(), ring)
    for event in (Started(), LinkUp(), assigned(office())):
        machine.handle(event, 0.0)
    parts, manifest = global_model(0)
    for part in parts:
        machine.handle(arrived(Kind.GLOBAL_PART, "coordinator", part), 0.0)
    machine.handle(arrived(Kind.MANIFEST, "coordinator", manifest), 0.0)
    return machine


def opened(machine: LeaderMachine, seats: tuple[Seat, ...] = SEATS, key_id: bytes = b"") -> list[Command]:
    base = round_open(1)
    message = RoundOpen(base.round_no, base.attempt, seats, base.base_round, base.deadline_s, key_id)
    return machine.handle(arrived(Kind.ROUND_OPEN, "coordinator", message), 1.0)


def test_a_round_in_the_clear_with_other_clusters_is_refused() -> None:
    commands = opened(leader(Ring(material())))
    assert not jobs(commands, ProtectContribution)
    (report,) = [c for c in commands if type(c) is MessageDropped]
    assert report.reason == "round 1 asks for cluster updates in the clear"


def test_alone_there_is_nobody_to_hide_among() -> None:
    (job,) = jobs(opened(leader(Ring(None)), (Seat(A, 1),)), ProtectContribution)
    assert job.key is None


def test_where_the_settings_say_clear_it_is() -> None:
    (job,) = jobs(opened(leader(Ring(None), encrypted=False)), ProtectContribution)
    assert job.key is None


@pytest.mark.parametrize("held", [None, material(OTHER)])
def test_under_a_key_that_is_not_here_nothing_goes_out_until_it_is(held: KeyMaterial | None) -> None:
    ring = Ring(held)
    machine = leader(ring)
    commands = opened(machine, key_id=KEY_ID)
    assert not jobs(commands, ProtectContribution)
    (report,) = [c for c in commands if isinstance(c, LateMessageDropped)]
    assert "under a key that is not here yet" in report.reason
    ring.material = material()  # the coordinator's next reminder finds it
    (job,) = jobs(opened(machine, key_id=KEY_ID), ProtectContribution)
    assert job.key == material()
