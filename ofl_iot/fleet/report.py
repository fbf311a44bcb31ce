"""What the fleet reads of a device's report; the wire message `Telemetry` has all of it.

A structural type, so that this package depends on no message format. Units are in the names, shares go from 0
to 1, and None means that the device cannot tell.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


class Report(Protocol):
    """One device's specifics, resource status and model state."""

    @property
    def cpu_count(self) -> int: ...
    @property
    def cpu_ghz(self) -> float: ...
    @property
    def cpu_load(self) -> float: ...
    @property
    def memory_total_mib(self) -> int: ...
    @property
    def memory_free_mib(self) -> int: ...
    @property
    def battery(self) -> float | None: ...
    @property
    def temperature_c(self) -> float | None: ...
    @property
    def network_mbps(self) -> float | None: ...
    @property
    def round_trip_s(self) -> float | None: ...
    @property
    def availability(self) -> float: ...
    @property
    def samples(self) -> int: ...
    @property
    def budget_left(self) -> float: ...
    @property
    def staleness(self) -> int: ...
    @property
    def model_distance(self) -> float: ...
    @property
    def step_s(self) -> float | None: ...
