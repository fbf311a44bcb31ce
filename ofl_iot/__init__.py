"""OFL-IoT: opportunistic federated learning over MQTT."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from ofl_agents.embedded.agent import Agent
    from ofl_agents.embedded.simulate import simulate
    from ofl_iot.apps.app import NumpyApp, TorchApp
    from ofl_iot.apps.keep import newest, reservoir
    from ofl_iot.apps.metrics import Metric, accuracy, auc, mae, metric, mse, r2
    from ofl_iot.apps.sources import Folder, Readings
    from ofl_iot.workloads.wavelets import Wavelets

_HOMES = {
    "Agent": "ofl_agents.embedded.agent",
    "simulate": "ofl_agents.embedded.simulate",
    "TorchApp": "ofl_iot.apps.app",
    "NumpyApp": "ofl_iot.apps.app",
    "Folder": "ofl_iot.apps.sources",
    "Readings": "ofl_iot.apps.sources",
    "Wavelets": "ofl_iot.workloads.wavelets",
    "newest": "ofl_iot.apps.keep",
    "reservoir": "ofl_iot.apps.keep",
    "Metric": "ofl_iot.apps.metrics",
    "metric": "ofl_iot.apps.metrics",
    "accuracy": "ofl_iot.apps.metrics",
    "auc": "ofl_iot.apps.metrics",
    "mae": "ofl_iot.apps.metrics",
    "mse": "ofl_iot.apps.metrics",
    "r2": "ofl_iot.apps.metrics",
}
"""Where each public name lives: it is imported when it is first used.

`Agent` and `simulate` are programs: they live above the library, which does not import them. This table is the one
place that names them.
"""

__all__ = [
    "Agent",
    "Folder",
    "Metric",
    "NumpyApp",
    "Readings",
    "TorchApp",
    "Wavelets",
    "__version__",
    "accuracy",
    "auc",
    "mae",
    "metric",
    "mse",
    "newest",
    "r2",
    "reservoir",
    "simulate",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ofl_iot' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
