"""The paper's device types (Table 2, "Four types of heterogeneous devices")."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ofl_iot.errors import ConfigError


@dataclass(frozen=True)
class DeviceType:
    """A Jetson Xavier NX restricted to a power mode."""

    name: str
    power_w: float
    cpu_cores: int
    cpu_ghz: float
    gpu_mhz: float
    emc_mhz: float
    """Clock of the external memory controller."""

    @property
    def relative_speed(self) -> float:
        """Training speed in proportion to type D.

        The geometric mean of CPU throughput (cores x GHz), GPU clock and memory clock, each relative to D:
        training waits for all three in turn. A 0.60, B 0.70, C 0.83, D 1.00.
        """
        reference = DEVICE_TYPES["D"]
        cpu = self.cpu_cores * self.cpu_ghz / (reference.cpu_cores * reference.cpu_ghz)
        product = cpu * (self.gpu_mhz / reference.gpu_mhz) * (self.emc_mhz / reference.emc_mhz)
        return float(product ** (1 / 3))


DEVICE_TYPES: Mapping[str, DeviceType] = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            DeviceType("A", power_w=10, cpu_cores=2, cpu_ghz=1.497, gpu_mhz=803.25, emc_mhz=1600),
            DeviceType("B", power_w=10, cpu_cores=4, cpu_ghz=1.190, gpu_mhz=803.25, emc_mhz=1600),
            DeviceType("C", power_w=15, cpu_cores=4, cpu_ghz=1.420, gpu_mhz=1109.25, emc_mhz=1600),
            DeviceType("D", power_w=20, cpu_cores=6, cpu_ghz=1.420, gpu_mhz=1109.25, emc_mhz=1866),
        )
    }
)

LINK_MBPS: Mapping[str, float] = MappingProxyType({"A": 5.0, "B": 10.0, "C": 15.0, "D": 20.0})
"""Mbit/s of each type's link in simulations that give links a rate. The paper states none: these are ours."""


def deal_types(count: int, types: str = "ABCD") -> tuple[DeviceType, ...]:
    """The types A, B, C, D, A, ... of `count` devices, dealt round robin; `types` names others in their order."""
    if count < 0:
        raise ConfigError(f"cannot deal device types to {count} devices: the number must not be negative")
    if not types or not set(types) <= set(DEVICE_TYPES):
        raise ConfigError(f"device types {types!r}: name some of {''.join(DEVICE_TYPES)}")
    kinds = tuple(DEVICE_TYPES[name] for name in types)
    return tuple(kinds[i % len(kinds)] for i in range(count))
