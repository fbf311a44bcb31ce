"""The counting federation of `ofl chaos` in a world that checks the laws of all machines after every event."""

from __future__ import annotations

from dataclasses import dataclass

from ofl_agents.chaos import tally
from ofl_agents.chaos.counting import FEDERATION, TallyToolbox
from ofl_agents.chaos.tally import DEFAULTS, AuditedStore, EvenPace
from ofl_iot.runtime.virtual import VirtualWorld
from tests.roles.laws import LawfulWorld

__all__ = ["DEFAULTS", "FEDERATION", "AuditedStore", "EvenPace", "TallyToolbox", "TallyWorld"]


@dataclass
class TallyWorld(tally.TallyWorld):
    """Devices, leaders and a coordinator under faults, each step lawful."""

    def make_world(self) -> VirtualWorld:
        return LawfulWorld(FEDERATION, self.faults, self.seed, self.listener)
