"""What a federation learns, and the rules that its coordinator goes by."""

from __future__ import annotations

from dataclasses import dataclass, field

from ofl_iot.fleet.assignment import FleetSettings
from ofl_iot.roles.events import Vector
from ofl_iot.roles.settings import FleetRules, ProtectionRules, RoundRules, TrainingRules


@dataclass(frozen=True)
class ModelProfile:
    """Which model the federation learns, and from where it starts."""

    model: bytes
    initial: Vector
    card: bytes = b""
    """What the model is, published so that devices can tell how theirs differs; empty: it is not published."""
    version: str = ""
    """Version of the software, as observers are told it."""


@dataclass(frozen=True)
class CoordinatorRules:
    """The sections of the settings that concern the coordinator."""

    rounds: RoundRules
    fleet: FleetRules
    protection: ProtectionRules
    planning: FleetSettings
    training: TrainingRules = field(default_factory=TrainingRules)
    """What devices are told to do; their pace is judged by it."""
