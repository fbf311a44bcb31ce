"""Answers to devices whose messages are not accepted: seldom, bounded, and readable for an observer too."""

from __future__ import annotations

from dataclasses import dataclass, field

from ofl_iot.ids import DeviceId
from ofl_iot.protocol.fleet_notes import Refusal
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.roles.commands import Publish

REPEAT_S = 30.0
MAX_REASON = 200
MAX_REMEMBERED = 4096
"""Devices that are counted; beyond that the oldest is forgotten, so that invented names fill nothing."""


@dataclass
class _Told:
    dropped: int = 0
    at: float | None = None
    code: str = ""


@dataclass
class Refusals:
    """Counts what one party drops of each device and says so at most once in `REPEAT_S` for the same reason."""

    me: DeviceId
    _told: dict[DeviceId, _Told] = field(default_factory=dict)

    def refuse(self, device: DeviceId, code: str, reason: str, now: float) -> Publish | None:
        """Count one dropped message; return the answer to it, if one is due."""
        told = self._told.pop(device, None) or _Told()
        while len(self._told) >= MAX_REMEMBERED:
            del self._told[next(iter(self._told))]
        self._told[device] = told
        told.dropped += 1
        if told.at is not None and told.code == code and 0 <= now - told.at < REPEAT_S:
            return None
        told.at, told.code = now, code
        refusal = Refusal(code, reason[:MAX_REASON], told.dropped)
        return Publish(Topic(Kind.REFUSAL, self.me, device), refusal)
