"""The audit finds a chunk that went missing and one that would be counted twice."""

from __future__ import annotations

import pytest

from ofl_agents.sim.audit import Audit, audit_chunks
from ofl_iot.ids import DeviceId
from ofl_iot.protocol.messages import Settlement
from ofl_iot.roles.coordinator.machine import CoordinatorMachine
from ofl_iot.roles.leader.cluster_model import device_of, store_of
from ofl_iot.runtime.virtual_broker import Faults
from tests.chaos.tally import TallyWorld


@pytest.fixture
def fleet() -> TallyWorld:
    """A federation in mid-run: its leaders hold chunks that no global model holds yet."""
    fleet = TallyWorld(devices=5, seed=0, faults=Faults())
    assert fleet.world.run(lambda: fleet.world.now > 10 and unsettled(fleet) is not None, limit_s=60)
    return fleet


def unsettled(fleet: TallyWorld) -> tuple[DeviceId, int, bytes] | None:
    """A chunk that a leader in office has merged since the last round."""
    for agent in fleet.agents.values():
        cluster = agent.leader.cluster
        if cluster is not None and cluster.round_no == coordinator(fleet).counter.closed:
            for owner, seqs in cluster.unsettled().items():
                return DeviceId(device_of(owner)), next(iter(seqs)), store_of(owner)
    return None


def coordinator(fleet: TallyWorld) -> CoordinatorMachine:
    assert fleet.coordinator is not None
    return fleet.coordinator


def test_the_books_of_a_sound_run_are_right(fleet: TallyWorld) -> None:
    assert all(agent.device.acknowledged.highest for agent in fleet.agents.values())
    assert audit_chunks(coordinator(fleet), fleet.agents) == Audit(lost=0, doubled=0)


def test_a_confirmed_chunk_that_is_nowhere_is_lost(fleet: TallyWorld) -> None:
    agent = next(iter(fleet.agents.values()))
    agent.device.acknowledged = agent.device.acknowledged.union((9_999,))
    assert audit_chunks(coordinator(fleet), fleet.agents) == Audit(lost=1, doubled=0)


def test_a_chunk_that_left_its_outbox_before_it_was_settled_is_lost(fleet: TallyWorld) -> None:
    chunk = unsettled(fleet)
    assert chunk is not None
    device, seq, _ = chunk
    machine = fleet.agents[device].device
    machine.acknowledged = machine.acknowledged.union((seq,))
    del machine.outbox._entries[seq]
    assert audit_chunks(coordinator(fleet), fleet.agents).lost == 1


def test_chunks_of_a_device_that_the_coordinator_does_not_know_are_lost(fleet: TallyWorld) -> None:
    name, agent = next(iter(fleet.agents.items()))
    del coordinator(fleet).roster.devices[name]
    confirmed = [seq for seq in range(1, agent.device.outbox.next_seq) if seq in agent.device.acknowledged]
    gone = [seq for seq in confirmed if seq not in agent.device.outbox.unsettled]
    assert gone
    agent.leader._leadership.cluster = None
    assert audit_chunks(coordinator(fleet), {name: agent}).lost == len(gone)


def test_a_settled_chunk_that_a_leader_will_contribute_again_is_doubled(fleet: TallyWorld) -> None:
    chunk = unsettled(fleet)
    assert chunk is not None
    coordinator(fleet).roster.settle(Settlement(chunk[0], (chunk[1],), chunk[2]))
    assert audit_chunks(coordinator(fleet), fleet.agents).doubled == 1


def test_what_the_coordinator_has_seen_twice_counts(fleet: TallyWorld) -> None:
    coordinator(fleet)._rounds.doubled_chunks = 2
    assert audit_chunks(coordinator(fleet), fleet.agents).doubled == 2


def test_a_leader_that_lost_its_office_cannot_double_anything(fleet: TallyWorld) -> None:
    chunk = unsettled(fleet)
    assert chunk is not None
    coordinator(fleet).roster.settle(Settlement(chunk[0], (chunk[1],), chunk[2]))
    for agent in fleet.agents.values():
        if agent.leader.cluster is not None:
            agent.leader.cluster.term -= 1
    assert audit_chunks(coordinator(fleet), fleet.agents).doubled == 0
