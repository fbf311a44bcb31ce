"""Where a device's telemetry comes from: psutil anywhere, jetson-stats on a Jetson, a simulation elsewhere.

A source fills in the hardware's part of a report. Link, data and model state are the agent's to add, with
`msgspec.structs.replace`.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import msgspec
import numpy as np

from ofl_iot.errors import ConfigError
from ofl_iot.fleet.devices import DeviceType
from ofl_iot.protocol.telemetry import MAX_TEXT_LENGTH, Telemetry

log = logging.getLogger(__name__)

MIB = 1 << 20
FALLBACK_GHZ = 1.0
"""Where the kernel does not tell the clock, as in many containers."""

_SEEN_C = (-40.0, 150.0)
"""Sensors that are not connected report -256 or the like; believe only what lies between."""


class TelemetrySource(Protocol):
    """Reads this device's hardware; cheap enough to be called every few seconds."""

    def read(self) -> Telemetry: ...
    def close(self) -> None: ...


class PsutilSource:
    """Any machine psutil knows. The first reading's load counts from when the source was made."""

    def __init__(self, device_type: str = "") -> None:
        import psutil

        self._psutil = psutil
        self._device_type = device_type
        psutil.cpu_percent(interval=None)

    def read(self) -> Telemetry:
        psutil = self._psutil
        memory = psutil.virtual_memory()
        sensors = _first_working(getattr(psutil, "sensors_temperatures", None)) or {}
        return Telemetry(
            device_type=self._device_type,
            cpu_count=psutil.cpu_count() or 1,
            cpu_ghz=self._ghz(),
            cpu_load=_share(psutil.cpu_percent(interval=None) / 100),
            memory_total_mib=memory.total // MIB,
            memory_free_mib=memory.available // MIB,
            battery=_battery(psutil),
            temperature_c=_hottest(entry.current for group in sensors.values() for entry in group),
        )

    def _ghz(self) -> float:
        frequency = _first_working(self._psutil.cpu_freq)
        mhz = 0.0 if frequency is None else frequency.max or frequency.current
        return mhz / 1000 if mhz > 0 else FALLBACK_GHZ

    def close(self) -> None:
        """Nothing is held open."""


class JetsonSource:
    """A Jetson through jetson-stats' service; close it when done."""

    def __init__(self, device_type: str = "", *, jetson_stats: Any = None) -> None:
        """`jetson_stats` is the package `jtop`, imported unless it is given."""
        self._device_type = device_type
        package = jetson_stats or _import_jtop()
        try:
            self._jtop = package.jtop()
            self._jtop.start()
        except package.JtopException as error:
            raise ConfigError(f"jetson-stats does not answer, start its service 'jtop': {error}") from error

    def close(self) -> None:
        self._jtop.close()

    def read(self) -> Telemetry:
        import psutil

        jtop = self._jtop
        known = parse_jtop(jtop.stats, jtop.cpu, jtop.memory, self._device_type)
        return msgspec.structs.replace(known, battery=_battery(psutil))  # jetson-stats tells nothing of one


def parse_jtop(
    stats: Mapping[str, Any], cpu: Mapping[str, Any], memory: Mapping[str, Any], device_type: str = ""
) -> Telemetry:
    """Read the dictionaries of a `jtop` object: `stats`, `cpu` and `memory` of jetson-stats 4.

    Loads are percent or 'OFF', frequencies kHz, memory KB, power mW, temperatures degrees Celsius. Cores that
    the power mode switched off do not count.
    """
    cores = [core for core in cpu["cpu"] if core.get("online")]
    loads = [stats[name] for name in stats if _is_core(name) and stats[name] != "OFF"]
    khz = [core["freq"]["max"] for core in cores if core.get("freq")]
    ram = memory["RAM"]
    reclaimable = ram.get("buffers", 0) + ram.get("cached", 0)
    gpu, power_mw = stats.get("GPU"), stats.get("Power TOT")
    temperatures = (float(value) for name, value in stats.items() if name.startswith("Temp "))
    return Telemetry(
        device_type=device_type,
        power_mode=str(stats.get("nvp model", ""))[:MAX_TEXT_LENGTH],
        cpu_count=max(len(cores), 1),
        cpu_ghz=max(khz) / 1e6 if khz else FALLBACK_GHZ,
        cpu_load=_share(sum(loads) / (100 * len(loads))) if loads else 0.0,
        memory_total_mib=ram["tot"] // 1024,
        memory_free_mib=min(ram["free"] + reclaimable, ram["tot"]) // 1024,
        gpu_load=None if gpu is None else _share(float(gpu) / 100),
        power_w=None if power_mw is None else power_mw / 1000,
        temperature_c=_hottest(temperatures),
    )


class SimulatedSource:
    """A device of one of the paper's types; its load wanders, its battery drains and is recharged.

    load' = load + 0.3 (0.4 - load) + noise;  power = P (0.3 + 0.7 load);  temperature = 35 + 40 load.
    The same rng state and clock give the same readings.
    """

    def __init__(
        self,
        kind: DeviceType,
        rng: np.random.Generator,
        clock: Callable[[], float],
        *,
        battery_wh: float | None = None,
        network_mbps: float = 20.0,
        step_s: float = 0.05,
        availability: float = 1.0,
    ) -> None:
        """`step_s` is the seconds per training step of type D; slower types take longer in proportion."""
        self._kind, self._rng, self._clock = kind, rng, clock
        self._battery_wh = battery_wh
        self._network_mbps, self._availability = network_mbps, availability
        self._step_s = step_s / kind.relative_speed
        self._load = float(rng.uniform(0.2, 0.6))
        self._charge, self._charging = float(rng.uniform(0.5, 1.0)), False
        self._read_at = clock()

    def read(self) -> Telemetry:
        kind = self._kind
        self._load = _share(self._load + 0.3 * (0.4 - self._load) + float(self._rng.normal(0, 0.05)))
        power_w = kind.power_w * (0.3 + 0.7 * self._load)
        self._pass_time(power_w)
        total_mib = 8192
        return Telemetry(
            device_type=kind.name,
            power_mode=f"{kind.power_w:g}W {kind.cpu_cores} cores",
            cpu_count=kind.cpu_cores,
            cpu_ghz=kind.cpu_ghz,
            cpu_load=self._load,
            memory_total_mib=total_mib,
            memory_free_mib=int(total_mib * (0.8 - 0.5 * self._load)),
            gpu_load=self._load,
            battery=None if self._battery_wh is None else self._charge,
            power_w=power_w,
            temperature_c=35 + 40 * self._load,
            network_mbps=self._network_mbps * math.exp(float(self._rng.normal(0, 0.1))),
            round_trip_s=0.02 * math.exp(float(self._rng.normal(0, 0.2))),
            availability=self._availability,
            step_s=self._step_s * math.exp(float(self._rng.normal(0, 0.03))),
        )

    def close(self) -> None:
        """Nothing is held open."""

    def _pass_time(self, power_w: float) -> None:
        """Drain to a tenth, then charge to the full at four times the power of the type."""
        now = self._clock()
        hours, self._read_at = (now - self._read_at) / 3600, now
        if self._battery_wh is None:
            return
        watts = 4 * self._kind.power_w if self._charging else -power_w
        self._charge = _share(self._charge + watts * hours / self._battery_wh)
        self._charging = self._charge < (1.0 if self._charging else 0.1)


def best_source(device_type: str = "") -> TelemetrySource:
    """The source for this machine: jetson-stats where it is installed and running, else psutil."""
    try:
        return JetsonSource(device_type)
    except ConfigError as reason:
        log.debug("telemetry without jetson-stats reason=%s", reason)
        return PsutilSource(device_type)


def _import_jtop() -> Any:
    try:
        return importlib.import_module("jtop")
    except ImportError as error:
        raise ConfigError("jetson-stats is not installed: pip install '.[jetson]' in a checkout") from error


def _first_working(read: Callable[[], Any] | None) -> Any:
    """A sensor's value, or None where the platform has no such sensor."""
    if read is not None:
        # psutil answers a missing or unreadable file below /sys in several ways, depending on the platform.
        with contextlib.suppress(OSError, NotImplementedError, RuntimeError, ValueError):
            return read()
    return None


def _battery(psutil: Any) -> float | None:
    """Share of the charge left; None on mains, or where the kernel knows of no battery."""
    battery = _first_working(getattr(psutil, "sensors_battery", None))
    return None if battery is None or battery.power_plugged else _share(battery.percent / 100)


def _is_core(name: str) -> bool:
    return name.startswith("CPU") and name[3:].isdigit()


def _hottest(temperatures: Iterable[float]) -> float | None:
    low, high = _SEEN_C
    return max((t for t in temperatures if low <= t <= high), default=None)


def _share(value: float) -> float:
    return min(max(value, 0.0), 1.0)
