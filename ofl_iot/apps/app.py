"""What a user writes: one value that names a model, a loss and where samples come from."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from ofl_iot.apps.metrics import as_metrics
from ofl_iot.errors import ConfigError

Reader: TypeAlias = Callable[[str], Any]
"""From `--data` to samples: arrays or tensors `(x, y)`, `x` alone to rebuild it, a map-style Dataset or a Source."""
Measure: TypeAlias = Callable[[Any, Any], Any]
"""From outputs and targets to a number."""
Optimiser: TypeAlias = Literal["sgd", "adam"]
Network: TypeAlias = Literal["dense", "logistic", "linear"]

_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


@dataclass(frozen=True)
class TorchApp:
    """A PyTorch model, its loss and its data; sampling, clipping, noise and optimiser steps are the library's.

    `model` is a factory of modules or a module; `loss(outputs, targets)` may return a mean or one number a record.
    `samples(where)` reads a device's own data, `judge(where)` the coordinator's held-out data; None: no such data.
    """

    name: str
    model: Any
    loss: Measure
    samples: Reader
    judge: Reader | None = None
    metrics: Mapping[str, Measure] = field(default_factory=dict)
    personal: Sequence[str] = ()
    """Patterns of parameter names that stay on the device, such as `head.*`."""
    optimiser: Optimiser | Callable[..., Any] = "sgd"
    """Under privacy "sgd" (with `training.momentum`) or "adam"; without, also a function from parameters to any
    torch optimiser."""
    version: str = "1"
    """Version of the preprocessing and whatever the digest cannot see; change it when samples change their meaning."""
    schedule: Callable[..., Any] | None = None
    """Without privacy: from the torch optimiser to a scheduler, stepped after each step."""
    augment: Callable[..., Any] | None = None
    """Without privacy: from the inputs of a batch to changed ones."""
    loop: Callable[..., Any] | None = None
    """Without privacy: your own training, `loop(module, inputs, targets, job)`."""

    def __post_init__(self) -> None:
        _check_common(self, "TorchApp")
        if not callable(self.model):
            raise ConfigError(f"TorchApp {self.name}: model must be a module or a function that makes one")
        if not callable(self.loss):
            raise ConfigError(f"TorchApp {self.name}: loss must be a function of outputs and targets")
        if isinstance(self.personal, str):
            raise ConfigError(f'TorchApp {self.name}: personal takes a list of patterns, such as ["{self.personal}"]')
        if not callable(self.optimiser) and self.optimiser not in get_args(Optimiser):
            raise ConfigError(
                f"TorchApp {self.name}: optimiser {self.optimiser!r} is unknown: use one of "
                f"{', '.join(get_args(Optimiser))}, or a function from parameters to a torch optimiser"
            )


@dataclass(frozen=True)
class NumpyApp:
    """A network that needs no torch: "dense" (rectified hidden layers, softmax), "logistic" or "linear" regression.

    `inputs` is the length of a record once it is flat; `outputs` the classes, or the numbers that "linear" predicts.
    """

    name: str
    network: Network
    inputs: int
    outputs: int
    samples: Reader
    hidden: Sequence[int] = ()
    judge: Reader | None = None
    metrics: Mapping[str, Measure] = field(default_factory=dict)
    version: str = "1"

    def __post_init__(self) -> None:
        _check_common(self, "NumpyApp")
        if self.network not in get_args(Network):
            raise ConfigError(
                f"NumpyApp {self.name}: network {self.network!r} is unknown: use one of {', '.join(get_args(Network))}"
            )
        widths = (self.inputs, *self.hidden, self.outputs)
        if any(not isinstance(width, int) or width < 1 for width in widths):
            raise ConfigError(f"NumpyApp {self.name}: inputs, hidden and outputs must be at least 1, not {widths}")
        if (self.network == "dense") != bool(self.hidden):
            raise ConfigError(
                f'NumpyApp {self.name}: "dense" has hidden layers (hidden=[64]), "logistic" and "linear" have none'
            )
        if self.network != "linear" and self.outputs < 2:
            raise ConfigError(f"NumpyApp {self.name}: {self.network} needs at least 2 classes, not {self.outputs}")


App: TypeAlias = TorchApp | NumpyApp


def _check_common(app: Any, kind: str) -> None:
    if not isinstance(app.name, str) or not _NAME.fullmatch(app.name):
        raise ConfigError(f"{kind}: name {app.name!r} must be lower-case letters, digits and single hyphens between")
    if not callable(app.samples):
        raise ConfigError(f"{kind} {app.name}: samples must be a function of where the data are")
    if app.judge is not None and not callable(app.judge):
        raise ConfigError(f"{kind} {app.name}: judge must be a function of where the held-out data are, or None")
    if not isinstance(app.version, str):
        raise ConfigError(f"{kind} {app.name}: version must be a text, not {app.version!r}")
    as_metrics(app.metrics)
