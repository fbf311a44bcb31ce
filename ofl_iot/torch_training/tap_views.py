"""Rules for views of parameters: `self.place[:, :time]`, `weight.t()`, `qkv.chunk(3)`.

A view has each of its values from one place of the parameter, so the norm of its gradient is that of the parameter's,
and the same view of the flat sum is where the gradient belongs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ofl_iot.torch_training.tap_dense import Function
from ofl_iot.torch_training.taps import Taps, tensors_in


def view(taps: Taps, func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """A function that returns one view of its first argument, or several."""
    name = taps.name(args[0]) if args else None
    if name is None or not taps.tapped or any(tensors_in((args[1:], kwargs))):
        return NotImplemented
    made = func(*args, **kwargs)
    parts = list(made) if isinstance(made, list | tuple) else [made]
    if not all(isinstance(part, Tensor) and _share_memory(part, args[0]) for part in parts):
        return NotImplemented
    several = len(parts) > 1 or made is not parts[0]
    for place, part in enumerate(parts):
        taps.note_view(name, part, _again(func, args[1:], kwargs, place if several else None))
    return made


def _again(
    func: Function, rest: Sequence[Any], kwargs: Mapping[str, Any], place: int | None
) -> Callable[[Tensor], Tensor]:
    """Take the same view of another tensor."""

    def of(value: Tensor) -> Tensor:
        made = func(value, *rest, **kwargs)
        return made if place is None else made[place]

    return of


def _share_memory(here: Tensor, there: Tensor) -> bool:
    return bool(here.untyped_storage().data_ptr() == there.untyped_storage().data_ptr())


_METHODS = (
    "__getitem__", "t", "transpose", "permute", "view", "reshape", "unsqueeze", "squeeze", "flatten", "unflatten",
    "narrow", "select", "chunk", "split", "unbind",
)  # fmt: skip
_FUNCTIONS = (
    "t", "transpose", "permute", "reshape", "unsqueeze", "squeeze", "flatten", "narrow", "select", "chunk", "split",
    "unbind",
)  # fmt: skip

RULES: dict[Any, Any] = {
    **{getattr(Tensor, name): view for name in _METHODS},
    **{getattr(torch, name): view for name in _FUNCTIONS},
    Tensor.T.__get__: view,
    Tensor.mT.__get__: view,
}
