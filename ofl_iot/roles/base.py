"""What all role machines share: the shape of a step, and how a message that must be dropped is reported."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from ofl_iot.errors import EncodeError, LateError, ProtocolError
from ofl_iot.roles.commands import Command
from ofl_iot.roles.events import Arrived, Event
from ofl_iot.roles.reports.base import LateMessageDropped, MessageDropped, MessageNotMade


class Machine(Protocol):
    """Events in, commands out; `now` is the time in seconds, of any clock that does not go back."""

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take an event, decide, and say what to do."""
        ...


def collect(decisions: Iterator[Command], event: Event) -> list[Command]:
    """Run one step; a message that turns out not to belong here ends it with a report that names the sender."""
    commands: list[Command] = []
    try:
        commands.extend(decisions)
    except ProtocolError as error:
        if not isinstance(event, Arrived):
            if not isinstance(error, EncodeError):
                raise
            commands.append(MessageNotMade(str(error)))
            return commands
        topic = event.topic
        dropped = LateMessageDropped if isinstance(error, LateError) else MessageDropped
        commands.append(dropped(topic.sender, topic.kind.name, str(error)))
    return commands
