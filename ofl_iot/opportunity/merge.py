"""The leader's side of Algorithm 2 (lines 15 to 19): merge what arrives, when it arrives.

The paper adds raw parameters; this merges updates: theta[indices] += eta_i · delta. A device's weight is its share
of the cluster's data, divided by how much it is heard,

    eta_i = min(1, |D_i| / |D| · mean rate / rate_i),   rate_i in training steps a second,

so that over time the model follows each device by its data, not by its speed: a slow device that alone knows a
class is not drowned, and what it releases in small pieces counts as much as what others release in large ones. Late
updates count in full up to an optional bound.

What a device fetches is ordered by *cumulative change*: each block of the model counts how far its parameters
travelled, and the blocks that travelled farthest since the device saw them come first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ofl_iot.errors import ConfigError, RefusedError
from ofl_iot.ids import DeviceId
from ofl_iot.opportunity.blocks import Vector

CumulativeChange = npt.NDArray[np.float64]
"""Per block of the model, the cumulated absolute change of its parameters."""

BLOCK_SIZE = 4096
"""Parameters in one block of a download."""

MIN_GAP_S = 1e-3
"""Updates closer than this count as so far apart: a rate stays finite whatever the clock does."""


@dataclass(frozen=True)
class Arrivals:
    """What is remembered of one device: when it was last heard and how long it takes for a step."""

    last_s: float
    step_s: float | None = None
    """Smoothed seconds between updates over the training steps behind them; unknown after the first."""


@dataclass
class ArrivalRates:
    """How much training of each device arrives; the same observations always give the same rates.

    `observe` once an update, not once a chunk.
    """

    smoothing: float = 0.3
    """Weight of the newest gap."""
    devices: dict[DeviceId, Arrivals] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 < self.smoothing <= 1:
            raise ConfigError(f"the smoothing of arrival rates is {self.smoothing}: choose it in (0, 1]")
        self._rates = {name: 1 / a.step_s for name, a in self.devices.items() if a.step_s is not None}
        """Steps a second of the devices of which that is known."""

    def observe(self, device: DeviceId, now: float, steps: float = 1.0) -> ArrivalRates:
        """Take in an update of `steps` at `now` (seconds on a clock that does not run backwards)."""
        known = self.devices.get(device)
        if known is None:
            self.devices[device] = Arrivals(now)
            return self
        gap_s = max(MIN_GAP_S, now - known.last_s) / steps
        old = gap_s if known.step_s is None else known.step_s
        step_s = (1 - self.smoothing) * old + self.smoothing * gap_s
        self.devices[device] = Arrivals(max(now, known.last_s), step_s)
        self._rates[device] = 1 / step_s
        return self

    def forget(self, device: DeviceId) -> ArrivalRates:
        """Leave out a device that left the cluster."""
        self.devices.pop(device, None)
        self._rates.pop(device, None)
        return self

    def compensation(self, device: DeviceId, most: float = math.inf) -> float:
        """Return mean rate / rate of the device, at most `most`; 1 while too little is known to tell."""
        if device not in self._rates:
            return min(1.0, most)
        mean_rate = math.fsum(self._rates.values()) / len(self._rates)
        return min(mean_rate * (self.devices[device].step_s or 1.0), most)

    def to_plain(self) -> list[object]:
        """Plain numbers and strings, to be stored."""
        return [self.smoothing, [[name, a.last_s, a.step_s] for name, a in sorted(self.devices.items())]]

    @staticmethod
    def from_plain(plain: list[object]) -> ArrivalRates:
        """What `to_plain` gave."""
        match plain:
            case [float(smoothing), list(rows)]:
                return ArrivalRates(smoothing, {name: Arrivals(last, step_s) for name, last, step_s in rows})
        raise ConfigError("stored arrival rates cannot be read: start with empty ones")


@dataclass(frozen=True)
class MergeSettings:
    """How a leader weighs what arrives."""

    max_weight: float = 1.0
    """Bound on eta_i: no update moves the model farther than to where its device stands."""
    staleness_bound: float | None = None
    """Rounds an update may lag behind before it is discounted; None: late updates count in full."""
    staleness_exponent: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.max_weight <= 1:
            raise ConfigError(f"max_weight is {self.max_weight}: choose it in (0, 1]")


def merge_weight(
    examples: float, cluster_examples: float, compensation: float, lag: float, settings: MergeSettings
) -> float:
    """eta_i = min(max_weight, |D_i| / |D| · compensation) · discount.

    discount = (1 + lag - bound)^(-exponent) for a lag (in rounds) beyond the bound, else 1.
    """
    if not 0 < examples <= cluster_examples < math.inf:
        raise RefusedError(f"an update claims {examples} of the cluster's {cluster_examples} examples")
    weight = min(settings.max_weight, examples / cluster_examples * compensation)
    if settings.staleness_bound is None or lag <= settings.staleness_bound:
        return weight
    return weight * float((1 + lag - settings.staleness_bound) ** -settings.staleness_exponent)


def new_cumulative_change(parameters: int, block_size: int = BLOCK_SIZE) -> CumulativeChange:
    """The cumulative change of a model that was not merged into yet."""
    return np.zeros(-(-parameters // block_size))


def merge_update(
    model: Vector,
    cumulative_change: CumulativeChange,
    indices: npt.NDArray[np.integer],
    values: Vector,
    weight: float,
    *,
    block_size: int = BLOCK_SIZE,
) -> None:
    """model[indices] += weight · values, in place, and count the way in `cumulative_change`; indices must ascend."""
    if not len(indices):
        return
    if len(indices) != len(values) or indices[0] < 0 or indices[-1] >= len(model):
        raise RefusedError(f"an update of {len(values)} values does not fit a model of {len(model)} parameters")
    step = values * np.float32(weight)
    way = np.abs(step)
    if not math.isfinite(float(way.max())):
        raise RefusedError("an update holds a value that is not finite")
    model[indices] += step
    first, last = int(indices[0]) // block_size, int(indices[-1]) // block_size
    starts = np.searchsorted(indices, np.arange(first, last + 1) * block_size)
    filled = np.flatnonzero(np.diff(starts, append=len(indices)))
    cumulative_change[first + filled] += np.add.reduceat(way, starts[filled], dtype=np.float64)


def count_change(
    cumulative_change: CumulativeChange, places: npt.NDArray[np.int64], values: Vector, *, block_size: int = BLOCK_SIZE
) -> None:
    """Count the way of a change at ascending places, the same to the last bit wherever it is counted.

    Each block's sum runs in the order of the values: another order would round differently.
    """
    if len(places):
        first = int(places[0]) // block_size
        way = np.bincount(places // block_size - first, weights=np.abs(values).astype(np.float64))
        cumulative_change[first : first + len(way)] += way


def replace_model(
    model: Vector, cumulative_change: CumulativeChange, new_model: Vector, *, block_size: int = BLOCK_SIZE
) -> None:
    """model ← new_model (a new global model), in place, and count the way in `cumulative_change`."""
    if len(new_model) != len(model):
        raise RefusedError(f"a model of {len(new_model)} parameters cannot replace one of {len(model)}")
    way = np.abs(new_model - model)
    cumulative_change += np.add.reduceat(way, np.arange(0, len(model), block_size), dtype=np.float64)
    model[:] = new_model


def stalest_blocks(cumulative_change: CumulativeChange, seen: CumulativeChange, count: int) -> npt.NDArray[np.int64]:
    """At most `count` blocks by lag (change - seen), the largest first, equals by number; none without a lag."""
    if len(cumulative_change) != len(seen):
        raise RefusedError(f"versions of {len(seen)} blocks, but the model has {len(cumulative_change)}")
    lag = cumulative_change - seen
    order = np.argsort(-lag, kind="stable")[: max(0, count)]
    return order[lag[order] > 0]
