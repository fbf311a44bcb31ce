"""The agent on a device: the device machine, and the leader machine that an assignment switches on.

What a leader's own device says to it, and it to its device, goes straight across and not through the broker.
"""

from __future__ import annotations

from collections import deque

from ofl_iot.protocol.codec import decode
from ofl_iot.protocol.messages import Assignment, PartReceipt
from ofl_iot.protocol.topics import Kind
from ofl_iot.roles.commands import Command, ProtectContribution, Publish
from ofl_iot.roles.device import DeviceMachine
from ofl_iot.roles.events import (
    Arrived,
    ContributionProtected,
    Event,
    JobFailed,
    LinkDown,
    LinkUp,
    Started,
    TimerFired,
)
from ofl_iot.roles.leader import LeaderMachine
from ofl_iot.roles.machine import Machine

_FOR_LEADER = {Kind.UPDATE, Kind.PULL, Kind.ROUND_OPEN, Kind.MANIFEST, Kind.GLOBAL_PART, Kind.DECRYPT}


class AgentMachine:
    """Both roles of one device, as one machine."""

    def __init__(self, device: DeviceMachine, leader: LeaderMachine) -> None:
        self.device = device
        self.leader = leader

    def handle(self, event: Event, now: float) -> list[Command]:
        """Give the event to the role it concerns; carry messages between the two roles."""
        commands: list[Command] = []
        waiting = deque([(machine, event) for machine in self._concerned(event)])
        while waiting:
            machine, each = waiting.popleft()
            for command in machine.handle(each, now):
                local = self._across(command)
                if local is None:
                    commands.append(command)
                else:
                    waiting.extend((other, local) for other in self._concerned(local))
        return commands

    def _across(self, command: Command) -> Arrived | None:
        """The arrival of a message from this device to itself."""
        if not isinstance(command, Publish) or command.topic.receiver != command.topic.sender:
            return None
        message = command.message
        return Arrived(command.topic, decode(command.topic.kind, message) if isinstance(message, bytes) else message)

    def _concerned(self, event: Event) -> list[Machine]:
        if isinstance(event, Started | LinkUp | LinkDown):
            return [self.device, self.leader]
        if isinstance(event, Arrived):
            if isinstance(event.message, Assignment):
                return [
                    self.leader,
                    self.device,
                ]  # a new leader must be ready for its own device's first pull
            to_leader = event.topic.kind in _FOR_LEADER or isinstance(event.message, PartReceipt)
            return [self.leader] if to_leader else [self.device]
        if isinstance(event, TimerFired):
            return [self.leader] if event.name.startswith("leader.") else [self.device]
        if isinstance(event, JobFailed):
            return [self.leader] if event.job == ProtectContribution.__name__ else [self.device]
        return [self.leader] if isinstance(event, ContributionProtected) else [self.device]
