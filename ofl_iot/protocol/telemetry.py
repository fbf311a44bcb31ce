"""What a device tells about its resources and its model, and when telling it is worth the bytes.

One report is a flat array of about 150 bytes. A source (`ofl_iot.runtime.telemetry`) fills in the hardware;
the device machine adds what only it knows with `msgspec.structs.replace(report, samples=..., staleness=...)`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import msgspec

from ofl_iot.errors import DecodeError

MAX_TEXT_LENGTH = 32


class Telemetry(msgspec.Struct, frozen=True, array_like=True, tag="telemetry", kw_only=True):
    """One report of a device; `None` means that the device cannot measure it."""

    device_type: str = ""
    power_mode: str = ""
    cpu_count: int
    cpu_ghz: float
    cpu_load: float
    """Share of all cores in use, 0 to 1."""
    memory_total_mib: int
    memory_free_mib: int
    gpu_load: float | None = None
    battery: float | None = None
    """Share of the charge left, 0 to 1; None on mains."""
    power_w: float | None = None
    temperature_c: float | None = None
    """Temperature of the hottest sensor."""
    network_mbps: float | None = None
    """Upload rate of the last transfers in megabit per second."""
    round_trip_s: float | None = None
    availability: float = 1.0
    """Share of the last day with a link, 0 to 1."""
    samples: int = 0
    budget_left: float = 1.0
    """Share of the privacy budget left, 0 to 1."""
    staleness: int = 0
    """Rounds since the local model was last synchronised."""
    model_distance: float = 0.0
    """||local - cluster model|| / ||cluster model||."""
    step_s: float | None = None
    """Seconds per training step."""
    binding: str = ""
    """The resource that limits what the device sends and fetches (Eq. 4)."""


BOUNDS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "cpu_count": (1, 4096),
        "cpu_ghz": (0.01, 20),
        "cpu_load": (0, 1),
        "memory_total_mib": (1, 2**26),
        "memory_free_mib": (0, 2**26),
        "gpu_load": (0, 1),
        "battery": (0, 1),
        "power_w": (0, 100_000),
        "temperature_c": (-90, 200),
        "network_mbps": (1e-6, 1_000_000),
        "round_trip_s": (0, 86_400),
        "availability": (0, 1),
        "samples": (0, 10**12),
        "budget_left": (0, 1),
        "staleness": (0, 10**9),
        "model_distance": (0, 1e9),
        "step_s": (1e-9, 1e6),
    }
)
"""The least and the greatest value of each number that any device of this decade can mean seriously."""


def check(telemetry: Telemetry) -> Telemetry:
    """Return the report unchanged, or raise DecodeError for non-finite or absurd values."""
    for name, (low, high) in BOUNDS.items():
        value = getattr(telemetry, name)
        # Written so that NaN, for which every comparison is false, is refused too.
        if value is not None and not low <= value <= high:
            raise DecodeError(f"telemetry: {name} is {value!r}, must lie in [{low:g}, {high:g}]")
    if telemetry.memory_free_mib > telemetry.memory_total_mib:
        raise DecodeError(
            f"telemetry: {telemetry.memory_free_mib} MiB free of {telemetry.memory_total_mib} MiB in total"
        )
    for name in ("device_type", "power_mode", "binding"):
        text = getattr(telemetry, name)
        if len(text) > MAX_TEXT_LENGTH or not text.isprintable():
            raise DecodeError(f"telemetry: {name} must be at most {MAX_TEXT_LENGTH} printable characters")
    return telemetry


class Threshold(msgspec.Struct, frozen=True):
    """A change counts when it exceeds `absolute` and also `relative` times the value last sent."""

    absolute: float
    relative: float = 0.0

    def exceeded(self, sent: float, current: float) -> bool:
        return abs(current - sent) > max(self.absolute, self.relative * abs(sent))


_SHARE = Threshold(0.1)
_RATE = Threshold(0.0, 0.25)

THRESHOLDS: Mapping[str, Threshold] = MappingProxyType(
    {
        "cpu_count": Threshold(0.5),
        "cpu_ghz": _RATE,
        "cpu_load": Threshold(0.2),
        "memory_total_mib": _RATE,
        "memory_free_mib": Threshold(256, 0.25),
        "gpu_load": Threshold(0.3),
        "battery": Threshold(0.05),
        "power_w": Threshold(2.0, 0.25),
        "temperature_c": Threshold(5.0),
        "network_mbps": Threshold(0.1, 0.5),
        "round_trip_s": Threshold(0.05, 0.5),
        "availability": _SHARE,
        "samples": Threshold(0.5, 0.1),
        "budget_left": Threshold(0.05),
        "staleness": Threshold(1.5, 0.5),
        "model_distance": Threshold(0.05, 0.25),
        "step_s": _RATE,
    }
)


@dataclass(frozen=True)
class SentReport:
    """The last report and when it left, in the caller's seconds."""

    telemetry: Telemetry
    at_s: float


@dataclass(frozen=True)
class ReportGate:
    """Says when a report is worth sending: after a real change, never too often, and now and then anyway."""

    min_interval_s: float = 10.0
    heartbeat_s: float = 900.0
    thresholds: Mapping[str, Threshold] = field(default_factory=lambda: THRESHOLDS)

    def is_due(self, last_sent: SentReport | None, current: Telemetry, now: float) -> bool:
        """Whether `current` should be sent at `now`; the first report always should."""
        if last_sent is None:
            return True
        # A clock set back must not silence the device: a negative age counts as due.
        age_s = now - last_sent.at_s
        if age_s < 0 or age_s >= self.heartbeat_s:
            return True
        return age_s >= self.min_interval_s and self.changed(last_sent.telemetry, current)

    def changed(self, sent: Telemetry, current: Telemetry) -> bool:
        """Whether any field moved beyond its threshold, appeared or vanished."""
        texts = ("device_type", "power_mode", "binding")
        if any(getattr(sent, name) != getattr(current, name) for name in texts):
            return True
        if (sent.budget_left > 0) != (current.budget_left > 0):
            return True
        return any(
            _moved(getattr(sent, name), getattr(current, name), threshold)
            for name, threshold in self.thresholds.items()
        )


def _moved(sent: float | None, current: float | None, threshold: Threshold) -> bool:
    if sent is None or current is None:
        return sent is not current
    return threshold.exceeded(sent, current) or not math.isfinite(current)
