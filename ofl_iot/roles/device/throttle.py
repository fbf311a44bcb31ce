"""When a device trains less: hot, it pauses until it has cooled down; on battery, it rests between trainings.

    pace = 0               when T > T_max, until T <= T_max - 5 °C                        reason "heat"
    pace = 0               when charge <= reserve, until charge > reserve + 5 %           reason "battery"
    pace = battery_pace    on battery otherwise                                           reason "battery"
    pace = 1               else

The pace is the share of time that training may take: after a training of t seconds the device rests
t (1 - pace) / pace seconds. The margins keep it from flapping. What was learnt already is still sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Protocol

import msgspec

from ofl_iot.protocol.telemetry import Telemetry

HEAT, BATTERY = "heat", "battery"
COOLING_C = 5.0
CHARGING = 0.05
Pace = Annotated[float, msgspec.Meta(gt=0, le=1)]


class ThrottleRules(Protocol):
    """What the rule goes by."""

    @property
    def max_temperature_c(self) -> float: ...
    @property
    def battery_reserve(self) -> float: ...
    @property
    def battery_pace(self) -> float: ...


@dataclass(frozen=True)
class Throttle:
    """How much a device may train, and what keeps it from training more."""

    pace: float = 1.0
    reason: str = ""

    @property
    def paused(self) -> bool:
        """Whether it must not train at all."""
        return self.pace <= 0

    def rest_s(self, trained_s: float) -> float:
        """Seconds to rest after a training; none when paused, because nothing is trained then."""
        return 0.0 if self.paused else trained_s * (1 - self.pace) / self.pace


def throttle(telemetry: Telemetry, rules: ThrottleRules, before: Throttle) -> Throttle:
    """The throttle that follows `before` when this is measured."""
    temperature, charge = telemetry.temperature_c, telemetry.battery
    was_hot = before.paused and before.reason == HEAT
    if temperature is not None and temperature > rules.max_temperature_c - (COOLING_C if was_hot else 0.0):
        return Throttle(0.0, HEAT)
    if charge is None:
        return Throttle()
    was_low = before.paused and before.reason == BATTERY
    if charge <= rules.battery_reserve + (CHARGING if was_low else 0.0):
        return Throttle(0.0, BATTERY)
    return Throttle(rules.battery_pace, BATTERY if rules.battery_pace < 1 else "")
