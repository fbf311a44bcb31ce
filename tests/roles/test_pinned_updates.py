"""What a leader signed for stays one unit until a global model includes it; what quantising took leaves later."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from ofl_iot.protocol.codec import encode_body
from ofl_iot.protocol.key_messages import KeyMember, KeyOpen
from ofl_iot.protocol.lean import LeanUpload, SignedHeader
from ofl_iot.protocol.messages import Member, RoundOpen, Seat
from ofl_iot.protocol.seqset import SeqSet
from ofl_iot.protocol.topics import Kind
from ofl_iot.roles.block_layout import BlockLayout
from ofl_iot.roles.commands import Persist
from ofl_iot.roles.events import ContributionProtected, LeanAnswered, LinkUp, Started
from ofl_iot.roles.job_kinds.keys import KeyMaterial
from ofl_iot.roles.job_kinds.rounds import ProtectContribution
from ofl_iot.roles.leader.cluster_model import ClusterModel
from ofl_iot.roles.leader.leadership import STATE
from ofl_iot.roles.leader.machine import LeaderMachine
from ofl_iot.roles.leader.pin import Pin
from ofl_iot.roles.leader.profile import LeaderProfile
from ofl_iot.roles.reports.leader import SignedVectorVoid
from ofl_iot.roles.settings import LeaderRules
from ofl_iot.roles.storage import Put
from ofl_iot.runtime.store import MemoryStore
from tests.roles.parties import (
    BLOCK,
    MODEL,
    SIZE,
    A,
    B,
    Unweighted,
    arrived,
    assigned,
    chunk_of,
    device_machine,
    global_model,
    jobs,
    office,
)

LAYOUT = BlockLayout(SIZE, BLOCK)
BOUNDS = b"\0"
UNIT = 2.0**-13
KEY, VECTOR = bytes(16), ((A, 1), (B, 1))
ZERO = np.zeros(SIZE, np.float32)


def cluster_with(*values: float) -> ClusterModel:
    cluster = ClusterModel(LAYOUT, 1, (Member(A, SeqSet(), 10),))
    cluster.adopt(ZERO, 0, included=False)
    for seq, value in enumerate(values, 1):
        cluster.merge(A, chunk_of(seq, {0: value}), 1.0)
    return cluster


def test_an_unsigned_update_joins_what_is_fresh_when_its_round_passes() -> None:
    cluster = cluster_with(0.5)
    cluster.freeze(1, BOUNDS)
    cluster.merge(A, chunk_of(2, {0: 0.25}), 1.0)
    assert cluster.freeze(2, BOUNDS)[0] == 0.75


def test_a_signed_update_is_contributed_again_without_what_came_later() -> None:
    """Two sums over it would otherwise show the difference: what the cluster merged in between."""
    cluster = cluster_with(0.5)
    cluster.freeze(1, BOUNDS)
    cluster.pin = Pin(KEY, VECTOR)
    cluster.merge(A, chunk_of(2, {0: 0.25}), 1.0)
    for round_no in (2, 3):
        cluster.thaw()
        assert cluster.freeze(round_no, BOUNDS)[0] == 0.5
    cluster.adopt(ZERO, 3, included=False)
    assert cluster.model[0] == 0.75
    assert cluster.freeze(4, BOUNDS)[0] == 0.5
    served = cluster.adopt(np.full(SIZE, 0.5, np.float32), 4, included=True)
    assert served == [A]
    assert (cluster.pin, cluster.frozen) == (None, None)
    assert cluster.freeze(5, BOUNDS)[0] == 0.25


def test_what_quantising_took_leaves_with_a_later_contribution() -> None:
    cluster = cluster_with(0.5 + UNIT / 4)
    cluster.freeze(1, BOUNDS)
    cluster.adopt(np.full(SIZE, 0.5, np.float32), 1, included=True)
    assert cluster.freeze(2, BOUNDS)[0] == pytest.approx(UNIT / 4)
    clipped = cluster_with(1.75)
    clipped.freeze(1, BOUNDS)
    clipped.adopt(np.full(SIZE, 1.0, np.float32), 1, included=True)
    assert clipped.freeze(2, BOUNDS)[0] == pytest.approx(0.75, abs=4 * UNIT)


def test_bounds_and_unit_survive_a_restart() -> None:
    cluster = cluster_with(0.5)
    cluster.freeze(1, BOUNDS)
    again = ClusterModel.restored(LAYOUT, cluster.snapshot())
    assert again.frozen_bounds == BOUNDS
    assert again.frozen is not None
    assert again.frozen[0] == 0.5


class Ring:
    def __init__(self) -> None:
        self.make(KEY, A, B)
        self.sealing_private = bytes(32)

    def make(self, key_id: bytes, *names: str) -> None:
        members = tuple(KeyMember(name, bytes(32)) for name in names)
        self.material = KeyMaterial(KeyOpen(1, 1, members, 2, "lean"), key_id, b"public", b"share")


class Leader:
    """A leader machine with its store."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.ring = Ring()
        self.machine = self._started()
        self.give(assigned(office()))
        parts, manifest = global_model(0)
        for part in parts:
            self.give(arrived(Kind.GLOBAL_PART, "coordinator", part))
        self.give(arrived(Kind.MANIFEST, "coordinator", manifest))

    def _started(self) -> LeaderMachine:
        profile = LeaderProfile(A, MODEL, device_machine(A).model.layout)
        self.machine = LeaderMachine(profile, LeaderRules(block_size=BLOCK, values="single"), Unweighted(), self.ring)
        self.give(Started(self.store.load()))
        self.give(LinkUp())
        return self.machine

    def restart(self) -> None:
        self._started()

    def give(self, event: object) -> list[object]:
        commands = self.machine.handle(event, 1.0)  # type: ignore[arg-type]
        for command in commands:
            if isinstance(command, Persist):
                self.store.apply(command.ops)
        return commands  # type: ignore[return-value]

    def contribute(self, round_no: int) -> tuple[ProtectContribution, bytes]:
        """Open a round; the job, and the header of the body that is made for it."""
        seats = (Seat(A, 1), Seat(B, 1))
        opened = RoundOpen(round_no, 0, seats, 0, 60.0, self.ring.material.key_id, BOUNDS)
        self.told = self.give(arrived(Kind.ROUND_OPEN, "coordinator", opened))
        (job,) = jobs(self.told, ProtectContribution)  # type: ignore[arg-type]
        header = b"header %d" % round_no
        upload = encode_body(LeanUpload(SignedHeader(header), b"body", {}))
        self.give(ContributionProtected(round_no, upload, header))
        return job, header

    def sign(self, round_no: int, header: bytes, vector: object = VECTOR) -> list[object]:
        return self.give(LeanAnswered(round_no, "r", "vouch", header, b"answer", b"mark", KEY, vector))  # type: ignore[arg-type]


def test_the_pin_is_durable_and_the_next_header_says_it() -> None:
    leader = Leader()
    job, header = leader.contribute(1)
    assert job.ground is not None
    assert job.ground.pinned == ()
    (stored,) = [c for c in leader.sign(1, header) if isinstance(c, Persist)]
    assert stored.ops == (Put(STATE, "pin", msgspec.msgpack.encode(Pin(KEY, VECTOR))),)
    leader.restart()
    assert leader.machine.pin == VECTOR
    again, _ = leader.contribute(2)
    assert again.ground is not None
    assert again.ground.pinned == VECTOR
    assert (again.update == job.update).all()


def test_a_pin_outlives_the_key_unless_a_contributor_has_no_share_of_the_next() -> None:
    leader = Leader()
    _, header = leader.contribute(1)
    leader.sign(1, header)
    leader.ring.make(bytes(15) + b"2", A, B, "leader-c")
    again, later = leader.contribute(2)
    assert again.ground is not None
    assert again.ground.pinned == VECTOR
    leader.sign(2, later, ((A, 2), (B, 1)))
    assert leader.machine.pin == VECTOR
    leader.ring.make(bytes(15) + b"3", A, "leader-c")
    free, last = leader.contribute(3)
    assert free.ground is not None
    assert free.ground.pinned == ()
    assert [c.missing for c in leader.told if isinstance(c, SignedVectorVoid)] == [(B,)]
    leader.sign(3, last, ((A, 1), ("leader-c", 1)))
    assert leader.machine.pin == ((A, 1), ("leader-c", 1))


def test_another_vector_or_body_does_not_move_the_pin() -> None:
    leader = Leader()
    _, header = leader.contribute(1)
    assert leader.sign(1, b"another body") == []
    assert leader.machine.pin is None
    leader.sign(1, header)
    assert leader.sign(1, header, ((A, 2), (B, 1))) == []
    assert leader.machine.pin == VECTOR


def test_a_pin_of_an_earlier_term_does_not_come_back_with_a_restart() -> None:
    leader = Leader()
    _, header = leader.contribute(1)
    leader.sign(1, header)
    later = msgspec.structs.replace(office(), term=2)
    leader.give(assigned(later))
    assert leader.machine.pin is None
    leader.restart()
    assert leader.machine.pin is None
    parts, manifest = global_model(0)
    for part in parts:
        leader.give(arrived(Kind.GLOBAL_PART, "coordinator", part))
    leader.give(arrived(Kind.MANIFEST, "coordinator", manifest))
    opened = RoundOpen(3, 0, (Seat(A, 2), Seat(B, 2)), 0, 60.0, KEY, BOUNDS)
    (job,) = jobs(leader.give(arrived(Kind.ROUND_OPEN, "coordinator", opened)), ProtectContribution)
    assert job.ground is not None
    assert job.ground.pinned == ()
    leader.restart()
    assert leader.machine.pin is None
