"""The agent on a device: the device machine, the leader machine that an assignment switches on, the holder of its keys.

What a leader's own device says to it, and it to its device, goes straight across and not through the broker.
"""

from __future__ import annotations

from collections import deque

from ofl_iot.protocol.codec import decode
from ofl_iot.protocol.messages import Assignment, PartReceipt
from ofl_iot.protocol.topics import Kind
from ofl_iot.roles.base import Machine
from ofl_iot.roles.commands import Command, Publish, SetTimer
from ofl_iot.roles.device.machine import DeviceMachine
from ofl_iot.roles.events import (
    Arrived,
    Event,
    JobFailed,
    LeanAnswered,
    LinkDown,
    LinkUp,
    Measured,
    SealingKeyMade,
    Started,
    Stopping,
    TimerFired,
)
from ofl_iot.roles.job_kinds.base import Role, every_job
from ofl_iot.roles.keys.holder import KeyHolder
from ofl_iot.roles.leader.contribution import CONTRIBUTE
from ofl_iot.roles.leader.machine import LeaderMachine

_FOR_LEADER = {Kind.UPDATE, Kind.PULL, Kind.MANIFEST, Kind.GLOBAL_PART}
_FOR_KEEPER = {Kind.KEYS, Kind.DECRYPT, Kind.SERVERDEC}
_OWNER_OF_RESULT = {job.result: job.owner for job in every_job()}


class AgentMachine:
    """All roles of one device, as one machine."""

    def __init__(self, device: DeviceMachine, leader: LeaderMachine, key_holder: KeyHolder) -> None:
        self.device = device
        self.leader = leader
        self.key_holder = key_holder
        key_holder.bodies = leader
        self._machines: dict[Role, Machine] = {Role.DEVICE: device, Role.LEADER: leader, Role.KEYS: key_holder}
        self._timer_owners: dict[str, Machine] = {}

    def handle(self, event: Event, now: float) -> list[Command]:
        """Give the event to the roles it concerns; carry messages between them."""
        commands: list[Command] = []
        waiting = deque([(machine, event) for machine in self._concerned(event)])
        while waiting:
            machine, each = waiting.popleft()
            for command in machine.handle(each, now):
                if isinstance(command, SetTimer):
                    self._timer_owners[command.name] = machine
                local = self._across(command)
                if local is None:
                    commands.append(command)
                else:
                    waiting.extend((other, local) for other in self._concerned(local))
        if isinstance(event, Started):
            presence = self.device.presence
            presence.sealing_key, presence.certificate = self.key_holder.sealing_public, self.key_holder.certificate
        return commands

    def _across(self, command: Command) -> Arrived | None:
        """The arrival of a message from this device to itself."""
        if not isinstance(command, Publish) or command.topic.receiver != command.topic.sender:
            return None
        message = command.message
        return Arrived(command.topic, decode(command.topic.kind, message) if isinstance(message, bytes) else message)

    def _concerned(self, event: Event) -> list[Machine]:
        if isinstance(event, Started | LinkUp | LinkDown):
            return [self.device, self.leader, self.key_holder]
        if isinstance(event, SealingKeyMade):
            return [self.key_holder, self.device]
        if isinstance(event, LeanAnswered):
            return [self.leader, self.key_holder]  # what is signed for is pinned before the signature leaves
        if isinstance(event, Arrived):
            return self._reached_by(event)
        return [self._owner_of(event)]

    def _owner_of(self, event: Event) -> Machine:
        """The one role that a timer or the result of a job belongs to."""
        if isinstance(event, TimerFired):
            return self._timer_owners[event.name]
        if isinstance(event, Measured | Stopping):
            return self.device
        return self._machines[event.job.owner if isinstance(event, JobFailed) else _OWNER_OF_RESULT[type(event)]]

    def _reached_by(self, event: Arrived) -> list[Machine]:
        message, kind = event.message, event.topic.kind
        if isinstance(message, Assignment):
            return [
                self.leader,
                self.device,
                self.key_holder,
            ]  # a new leader must be ready for its own device's first pull
        if kind == Kind.ROUND_OPEN:
            return [self.key_holder, self.leader]  # the share of the round's key comes into use first
        if kind in _FOR_KEEPER or (isinstance(message, PartReceipt) and message.stage != CONTRIBUTE):
            return [self.key_holder]
        return [self.leader] if kind in _FOR_LEADER or isinstance(message, PartReceipt) else [self.device]
