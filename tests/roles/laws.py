"""Laws that hold after every step of every machine."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ofl_iot.roles.agent import AgentMachine
from ofl_iot.roles.base import Machine
from ofl_iot.roles.commands import CancelTimer, Command, SetTimer
from ofl_iot.roles.coordinator.machine import CoordinatorMachine
from ofl_iot.roles.events import Event, LinkDown, LinkUp, TimerFired
from ofl_iot.runtime.virtual import Party, VirtualWorld

MOVES_A_COORDINATOR = {
    "coordinator.open", "coordinator.deadline", "coordinator.keys.deadline", "coordinator.gather",
    "coordinator.inherit", "coordinator.look",
}  # fmt: skip
"""Each of these leads to the next round, or to another of them."""


class PendingTimers:
    """The timers that a machine has set and that have neither fired nor been cancelled."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.linked = False

    def step(self, event: object, commands: Iterable[Command]) -> None:
        """Take in an event and what it led to."""
        self.linked = isinstance(event, LinkUp) or (self.linked and not isinstance(event, LinkDown))
        if isinstance(event, TimerFired):
            self.names.discard(event.name)
        for command in commands:
            if isinstance(command, SetTimer):
                self.names.add(command.name)
            elif isinstance(command, CancelTimer):
                self.names.discard(command.name)


def waits_for_ever(machine: Machine, pending: Collection[str]) -> str:
    """Whoever waits has a timer pending: return who waits for what without one, empty while nobody does.

    For a machine whose link is up.
    """
    if isinstance(machine, CoordinatorMachine):
        if machine._takeover and machine._takeover.waiting and "coordinator.inherit" not in pending:
            return "the coordinator waits for what another one left"
        begun = machine.roster.plan is not None and not machine.finished
        return "" if not begun or MOVES_A_COORDINATOR & set(pending) else "the coordinator waits for its next round"
    if isinstance(machine, AgentMachine):
        device, reader = machine.device, machine.leader._intake
        if device.activity.pulling and "device.pull" not in pending:
            return "the device waits for an answer to its pull"
        if device.activity.resting and "device.rest" not in pending:
            return "the device rests for ever"
        waiting = machine.leader.cluster is not None and (reader._fetching or reader._manifest is not None)
        if waiting and "leader.fetch" not in pending:
            return "the leader waits for the global model"
    return ""


class LawfulWorld(VirtualWorld):
    """A virtual world that checks the law after every event."""

    def _give(self, party: Party, event: Event) -> None:
        super()._give(party, event)
        if party.machine is not None and party.linked:
            stuck = waits_for_ever(party.machine, party.timers)
            assert not stuck, f"{party.name} at {self.now:.1f} s, after {type(event).__name__}: {stuck}"
