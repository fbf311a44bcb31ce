"""A model as named tensors, and a party's copy of one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from ofl_iot.errors import ConfigError
from ofl_iot.protocol.model_card import ModelCard

Array: TypeAlias = npt.NDArray[Any]
Vector: TypeAlias = npt.NDArray[np.float32]

FLAT = "parameters"
"""The one tensor of a model whose card is not known."""


class AppPlace(msgspec.Struct, frozen=True):
    """Where a party's app and data are, so that its model can be exported without being told again."""

    app: str
    data: str = ""
    held_out: bool = False
    """Whether the data are read with `judge` instead of `samples`."""
    folder: str = ""
    """From which relative paths and modules are meant."""


@dataclass(frozen=True)
class NamedTensors:
    """What a model file holds."""

    tensors: Mapping[str, Array]
    about: Mapping[str, str] = field(default_factory=dict)
    """From where it comes: app, round, party, digest."""

    @property
    def size(self) -> int:
        """Number of values."""
        return sum(tensor.size for tensor in self.tensors.values())


@dataclass(frozen=True)
class ModelCopy:
    """A party's model as it was at one moment."""

    party: str
    role: str
    which: str
    """ "federation" or, of a device, "own", which holds its unreleased training too."""
    round_no: int
    model: bytes
    """Digest of the model's card."""
    values: Vector
    card: ModelCard | None = None
    final: bool = False
    app: AppPlace | None = None

    def __post_init__(self) -> None:
        if self.card is not None and self.card.size != len(self.values):
            raise ConfigError(
                f"{self.party} has {len(self.values)} parameters and a card of {self.card.size}: the store is damaged, "
                "or was written by another version"
            )

    def named(self) -> NamedTensors:
        """Return the tensors that travel, by name; all in one if there is no card."""
        return NamedTensors(tensors_of(self.values, self.card), self.about())

    def about(self) -> dict[str, str]:
        """Return from where the model comes, as texts."""
        about = {
            "party": self.party,
            "which": self.which,
            "round": str(self.round_no),
            "final": str(self.final).lower(),
            "model": self.model.hex(),
            "parameters": str(len(self.values)),
        }
        return {"app": self.card.app, "version": self.card.version, **about} if self.card else about


def tensors_of(values: Vector, card: ModelCard | None) -> dict[str, Vector]:
    """Cut a vector into its tensors."""
    if card is None:
        return {FLAT: values}
    bounds = card.bounds()
    return {
        tensor.name: values[start:stop].reshape(tensor.shape)
        for tensor, start, stop in zip(card.tensors, bounds, bounds[1:], strict=False)
    }


def vector_of(named: NamedTensors, card: ModelCard | None, size: int, what: str) -> Vector:
    """Return the vector that a federation's model would have with these tensors; ConfigError says what does not fit.

    Tensors beyond those that travel (frozen weights, buffers) are left aside: a state dict may be given as it is.
    """
    wanted = {tensor.name: tensor.shape for tensor in card.tensors} if card else {FLAT: (size,)}
    parts = [_part(named, name, shape, what) for name, shape in wanted.items()]
    values: Vector = np.concatenate(parts) if parts else np.zeros(0, np.float32)
    if not np.isfinite(values).all():
        raise ConfigError(f"{what} holds values that are not finite: it cannot be learnt from")
    return values


def _part(named: NamedTensors, name: str, shape: tuple[int, ...], what: str) -> Vector:
    if name not in named.tensors:
        there = ", ".join(list(named.tensors)[:5]) or "nothing"
        raise ConfigError(f"{what} has no tensor {name}: it holds {there}{'' if len(named.tensors) <= 5 else ', …'}")
    tensor = named.tensors[name]
    if tensor.shape != shape:
        raise ConfigError(f"{name} is {_shape(tensor.shape)} in {what}, {_shape(shape)} in the app's model")
    if tensor.dtype.kind not in "fiu":
        raise ConfigError(f"{name} in {what} is of type {tensor.dtype}, not numbers")
    return np.ascontiguousarray(tensor, dtype=np.float32).reshape(-1)


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "a single number"
