"""Refusals that a device was told: each cause is reported once."""

from __future__ import annotations

from collections.abc import Iterator

from ofl_iot.errors import LateError
from ofl_iot.ids import COORDINATOR, DeviceId
from ofl_iot.protocol.fleet_notes import Refusal
from ofl_iot.protocol.messages import Assignment
from ofl_iot.roles.commands import Command
from ofl_iot.roles.reports.device import MessagesRefused


class RefusalsHeard:
    """The last cause for which the coordinator, or the present leader, did not accept this device's messages."""

    def __init__(self) -> None:
        self._codes: dict[DeviceId, str] = {}

    def heard(self, sender: DeviceId, refusal: Refusal, assignment: Assignment | None) -> Iterator[Command]:
        """Report a refusal, unless its sender refused for the same cause before."""
        if sender != COORDINATOR and (assignment is None or sender != assignment.leader):
            raise LateError(f"{sender} is not this device's leader")
        if self._codes.get(sender) != refusal.code:
            kept = {name: code for name, code in self._codes.items() if name == COORDINATOR}
            self._codes = {**kept, sender: refusal.code}
            yield MessagesRefused(by=sender, code=refusal.code, reason=refusal.reason)
