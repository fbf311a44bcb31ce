"""A device and its leader wired back to back: what one says, the other hears."""

from __future__ import annotations

import numpy as np

from ofl_iot.ids import COORDINATOR
from ofl_iot.protocol.codec import decode, encode
from ofl_iot.protocol.messages import Receipt
from ofl_iot.protocol.seqset import SeqSet
from ofl_iot.protocol.topics import Kind
from ofl_iot.roles.commands import Command, Compute, Publish
from ofl_iot.roles.device.machine import DeviceMachine
from ofl_iot.roles.events import Arrived, Event, LinkUp, ReleasePrepared, Started, Trained
from ofl_iot.roles.job_kinds.device import PrepareRelease, TrainLocally
from ofl_iot.roles.leader.machine import LeaderMachine
from tests.roles.parties import (
    A,
    B,
    arrived,
    assigned,
    assignment,
    chunk_of,
    device_machine,
    global_model,
    leader_machine,
    office,
    pieces_of,
    published,
)


class Pair:
    """Device A and its leader B; messages arrive at once, jobs end at once, training adds 1 to parameter 0."""

    def __init__(self) -> None:
        self.device: DeviceMachine = device_machine(A)
        self.leader: LeaderMachine = leader_machine(B)
        self.trainings = 0
        for event in (Started(), LinkUp(), assigned(office(1, B, (A, B)), B)):
            self.leader.handle(event, 0.0)
        parts, manifest = global_model(0)
        for part in parts:
            self.leader.handle(arrived(Kind.GLOBAL_PART, COORDINATOR, part), 0.0)
        self.leader.handle(arrived(Kind.MANIFEST, COORDINATOR, manifest), 0.0)

    def start_device(self) -> None:
        """With an empty store; the retained assignment is the one of the term's beginning."""
        self.device = device_machine(A)
        for event in (Started(), LinkUp(), assigned(assignment(1, B))):
            self.run(self.device.handle(event, 0.0))

    def run(self, commands: list[Command]) -> None:
        waiting = list(commands)
        while waiting:
            command = waiting.pop(0)
            if isinstance(command, Publish) and command.topic.receiver:
                message = command.message
                kind = command.topic.kind
                message = decode(kind, message if isinstance(message, bytes) else encode(message))
                machine = self.leader if command.topic.receiver == B else self.device
                waiting += machine.handle(Arrived(command.topic, message), 0.0)
            elif isinstance(command, Compute) and self.trainings > 0:
                waiting += self.device.handle(self.result(command), 0.0)

    def result(self, command: Compute) -> Event:
        job = command.job
        if isinstance(job, TrainLocally):
            self.trainings -= 1
            params = job.params.copy()
            params[0] += 1
            return Trained(job.params, params, 0.0, 1, 0.01)
        assert isinstance(job, PrepareRelease)
        values = {int(place): float(job.update[place]) for place in np.flatnonzero(job.update)}
        return ReleasePrepared(tuple(pieces_of(values) if values else ()))


def test_what_the_device_trains_the_leader_merges() -> None:
    pair = Pair()
    pair.trainings = 6
    pair.start_device()
    assert pair.leader.cluster is not None
    assert pair.leader.cluster.model[0] + pair.device.model.unreleased[0] == 6.0
    assert pair.leader.cluster.model[0] >= 4.0


def test_a_device_that_lost_its_store_loses_no_new_work() -> None:
    pair = Pair()
    pair.trainings = 4
    pair.start_device()
    assert pair.leader.cluster is not None
    merged = float(pair.leader.cluster.model[0])
    assert merged >= 3.0
    pair.trainings = 4
    pair.start_device()
    work = 4.0 - pair.device.model.unreleased[0]
    assert pair.leader.cluster.model[0] == merged + work


def test_a_receipt_stays_small_though_some_numbers_never_come() -> None:
    pair = Pair()
    commands: list[Command] = []
    for seq in range(3, 1003):
        commands = pair.leader.handle(arrived(Kind.UPDATE, A, chunk_of(seq, {0: 1.0}), B), 0.0)
    (receipt,) = published(commands, Kind.RECEIPT)
    assert isinstance(receipt, Receipt)
    assert receipt.stored == (1002,)
    assert pair.leader.cluster is not None
    settled = SeqSet().union(pair.leader.cluster.unsettled()[A])
    assert len(encode(Receipt(1, (), settled, 8))) < 30
