"""Answers what is asked over a party's local socket, from the machine as it stands between two events."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field

from ofl_iot.errors import OflError
from ofl_iot.local.messages import BackupReply, BackupRequest, ModelReply, Request, StatusReply, StatusRequest, Which
from ofl_iot.local.server import Answer
from ofl_iot.roles.agent import AgentMachine
from ofl_iot.roles.base import Machine
from ofl_iot.roles.coordinator.machine import CoordinatorMachine
from ofl_iot.runtime.live import LiveParty

Details = dict[str, int | float | bool | str | None]


class NoModelError(OflError):
    """The party has no model, or none yet."""


@dataclass
class PartyDesk:
    """Answers for one party."""

    party: LiveParty
    version: str = ""
    """Version of ofl-iot."""
    card: bytes = b""
    """The model's card and the place of its app, as they stand in the store."""
    app: bytes = b""
    _began: float = field(default_factory=time.monotonic)

    async def answer(self, request: Request) -> Answer:
        """Answer one request; a device's vectors change in place, so their copy is made here, between two events."""
        if isinstance(request, StatusRequest):
            return Answer(self.status())
        if isinstance(request, BackupRequest):
            return Answer(BackupReply(self.party.name), await self.party.copy_store())
        return self.model(request.which)

    def status(self) -> StatusReply:
        """Return how the party fares."""
        health, machine = self.party.health(), self.party.machine
        return StatusReply(
            party=self.party.name,
            role=role_of(machine),
            version=self.version,
            pid=os.getpid(),
            up_s=time.monotonic() - self._began,
            linked=health.linked,
            ready=health.ready,
            overdue=health.overdue,
            said=health.status,
            details={
                "store_failures": self.party.store_failures,
                "quarantined": sum(self.party.quarantined.values()),
                **_details(machine),
            },
        )

    def model(self, which: Which) -> Answer:
        """Return a copy of the party's model."""
        machine = self.party.machine
        if isinstance(machine, CoordinatorMachine):
            return self._coordinators(machine)
        if not isinstance(machine, AgentMachine):
            raise NoModelError(f"a {role_of(machine)} has no model: ask the coordinator or a device")
        model = machine.device.model
        if not model.complete:
            missing = int((~model.held).sum())
            raise NoModelError(f"{missing} of {model.layout.count} blocks have not arrived yet: ask again later")
        values = (model.base if which == "federation" else model.local).astype("<f4")
        reply = ModelReply(
            party=self.party.name,
            role="agent",
            which=which,
            round_no=model.round_no,
            model=model.digest,
            size=len(values),
            complete=True,
            final=False,
            card=self.card,
            app=self.app,
        )
        return Answer(reply, values.data)

    def _coordinators(self, machine: CoordinatorMachine) -> Answer:
        values = machine.model.astype("<f4", copy=False)  # a new version is a new array
        reply = ModelReply(
            party=self.party.name,
            role="coordinator",
            which="federation",
            round_no=machine.model_round,
            model=machine.model_digest,
            size=len(values),
            complete=True,
            final=machine.finished,
            card=self.card,
            app=self.app,
        )
        return Answer(reply, values.data)


def role_of(machine: Machine) -> str:
    """Return the role's name as the command line knows it."""
    if isinstance(machine, CoordinatorMachine):
        return "coordinator"
    return "agent" if isinstance(machine, AgentMachine) else "decryptor"


def _details(machine: Machine) -> Details:
    """Return what is worth knowing of a role."""
    if isinstance(machine, CoordinatorMachine):
        return {
            "completed": machine.counter.completed,
            "round_no": machine.model_round,
            "devices_online": len(machine.roster.online),
            "clusters": len(machine.roster.seats()),
            "parameters": len(machine.model),
            "finished": machine.finished,
        }
    if not isinstance(machine, AgentMachine):
        return {}
    device = machine.device
    assignment = device.assignment
    return {
        "leader": assignment.leader if assignment else None,
        "term": assignment.term if assignment else 0,
        "round_no": device.model.round_no,
        "parameters": device.profile.size,
        "model_complete": device.model.complete,
        "budget_left": device.guard.left,
        "outbox": len(device.outbox.unsettled),
    }
