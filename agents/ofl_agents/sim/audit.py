"""Accounts for every chunk of a run: each one that a leader confirmed is somewhere, and in one place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ofl_iot.ids import DeviceId
from ofl_iot.roles.agent import AgentMachine
from ofl_iot.roles.coordinator.machine import CoordinatorMachine
from ofl_iot.roles.leader.cluster_model import device_of, store_of


@dataclass(frozen=True)
class Audit:
    """Chunks that went missing or were counted twice; both must be 0."""

    lost: int
    doubled: int


def audit_chunks(coordinator: CoordinatorMachine, agents: Mapping[DeviceId, AgentMachine]) -> Audit:
    """Compare the books of devices, leaders and coordinator.

    A confirmed chunk is settled, or still in its device's outbox: everything else is lost. A chunk that a leader
    holds unsettled although it is settled would be counted twice with its next contribution.
    """
    lost = 0
    doubled = coordinator.doubled_chunks
    for name, agent in agents.items():
        record = coordinator.roster.devices.get(name)
        for seq in range(1, agent.device.acknowledged.highest + 1):
            if seq not in agent.device.acknowledged:
                continue
            settled = record is not None and seq in record.settled
            if not settled and seq not in agent.device.outbox.unsettled:
                lost += 1
    for leader in agents.values():
        cluster = leader.leader.cluster
        if cluster is None or cluster.round_no != coordinator.counter.closed:
            continue
        for owner, seqs in cluster.unsettled().items():
            books = coordinator.roster.devices[DeviceId(device_of(owner))].books
            settled_set = books.settled_of(store_of(owner))
            in_office = coordinator.roster.terms.get(leader.leader.profile.device) == cluster.term
            doubled += sum(1 for seq in seqs if seq in settled_set) if in_office else 0
    return Audit(lost, doubled)
