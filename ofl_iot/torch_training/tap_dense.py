"""Rules for functions that multiply by, look up or add a parameter: dense layers, embeddings, offsets and scales."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - everybody's name for it
from torch import Tensor

from ofl_iot.torch_training.gradients import Direct, Gradient, Outer, Rows
from ofl_iot.torch_training.taps import Taps, UnsupportedError, Use

Function = Callable[..., Any]


def arguments(args: Sequence[Any], kwargs: Mapping[str, Any], **defaults: Any) -> list[Any]:
    """Return positional and keyword arguments in the order of `defaults`."""
    return [
        args[place] if place < len(args) else kwargs.get(name, default)
        for place, (name, default) in enumerate(defaults.items())
    ]


class LinearUse(Use):
    """x·Wᵀ + b, or one part of a larger W and b: its rows from `start` on, of `width` altogether."""

    def __init__(self, names: Sequence[str | None], inputs: Tensor, start: int = 0, width: int | None = None) -> None:
        super().__init__(names, inputs)
        self._start, self._width = start, width

    def parts(self, error: Tensor, count: int) -> Sequence[Gradient | None]:
        """Return Σ over places of error ⊗ input, and of the error."""
        errors = self.records_first(error, count).reshape(count, -1, error.shape[-1])
        if self._width is not None:
            errors = F.pad(errors, (self._start, self._width - self._start - errors.shape[2]))
        inputs = self.records_first(self.inputs, count).reshape(count, -1, self.inputs.shape[-1])
        return Outer(inputs, errors), Direct(errors.sum(1))


def linear(taps: Taps, func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """F.linear(input, weight, bias)."""
    x, w, b = arguments(args, kwargs, input=None, weight=None, bias=None)
    names = taps.name(w), taps.name(b)
    if not any(names) or taps.name(x) or not taps.tapped:
        return NotImplemented
    return taps.tap(LinearUse(names, x), func(x, taps.constant(w), taps.constant(b)))


class MatmulUse(Use):
    """x @ W."""

    def parts(self, error: Tensor, count: int) -> Sequence[Gradient | None]:
        """Return Σ over places of input ⊗ error."""
        errors = self.records_first(error, count).reshape(count, -1, error.shape[-1])
        inputs = self.records_first(self.inputs, count).reshape(count, -1, self.inputs.shape[-1])
        return (Outer(errors, inputs),)


def matmul(taps: Taps, func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """x @ W with a matrix W."""
    if len(args) != 2 or kwargs or not taps.tapped:
        return NotImplemented
    x, w = args
    if not taps.name(w) or taps.name(x) or w.dim() != 2 or x.dim() < 2:
        return NotImplemented
    return taps.tap(MatmulUse((taps.name(w),), x), func(x, taps.constant(w)))


class EmbeddingUse(Use):
    """Rows looked up in a table."""

    def __init__(self, name: str, rows: Tensor, table_rows: int, padding: int | None) -> None:
        super().__init__((name,), rows)
        self._count = table_rows
        self._padding = None if padding is None else padding % table_rows

    def parts(self, error: Tensor, count: int) -> Sequence[Gradient | None]:
        """Return the errors by row; the row of padding learns nothing."""
        rows = self.records_first(self.inputs, count).reshape(count, -1)
        errors = self.records_first(error, count).reshape(count, -1, error.shape[-1])
        if self._padding is not None:
            errors = errors * (rows != self._padding)[:, :, None]
        return (Rows(rows, errors, self._count),)


def embedding(taps: Taps, func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:  # noqa: ARG001
    """F.embedding(input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)."""
    rows, w, padding, max_norm, _, by_count = arguments(
        args, kwargs, input=None, weight=None, padding_idx=None, max_norm=None, norm_type=2.0, scale_grad_by_freq=False
    )
    name = taps.name(w)
    if name is None or not taps.tapped:
        return NotImplemented
    if max_norm is not None or by_count:
        raise UnsupportedError(f"{name}: max_norm changes weights in place, scale_grad_by_freq mixes records")
    return taps.tap(EmbeddingUse(name, rows, w.shape[0], padding), F.embedding(rows, taps.constant(w)))


class BroadcastUse(Use):
    """x + p or x · p, where p is the same for all records: learned positions, class tokens, layer scales."""

    def __init__(self, name: str, inputs: Tensor | None, shape: Sequence[int]) -> None:
        super().__init__((name,), inputs)
        self._shape = tuple(shape)

    def parts(self, error: Tensor, count: int) -> Sequence[Gradient | None]:
        """Return the error (times the input), summed over what p was repeated over."""
        place = {"first": 0, "second": 1}.get(self.layout)
        shape = (1,) * (error.dim() - len(self._shape)) + self._shape
        if place is None or len(shape) > error.dim() or shape[place] != 1 or error.shape[place] != count:
            raise UnsupportedError(f"{self.name} differs between records")
        value = error if self.inputs is None else error * self.inputs
        over = [dim for dim, size in enumerate(shape) if size == 1 and dim != place]
        value = value.sum(over, keepdim=True) if over else value
        return (Direct(value.transpose(0, place)),)


def broadcast(taps: Taps, func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """x + p, p + x, x · p and p · x."""
    if len(args) != 2 or kwargs or not taps.tapped:
        return NotImplemented
    x, p = args if not taps.name(args[0]) else args[::-1]
    name = taps.name(p)
    if name is None or not isinstance(x, Tensor) or taps.name(x):
        return NotImplemented
    product = "mul" in func.__name__
    outputs = x * taps.constant(p) if product else x + taps.constant(p)
    return taps.tap(BroadcastUse(name, x if product else None, p.shape), outputs)


def expand(taps: Taps, func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """p.expand(records, …): a class token, a learned first state."""
    name = taps.name(args[0]) if args else None
    if name is None or kwargs or not taps.tapped:
        return NotImplemented
    repeated = func(taps.constant(args[0]), *args[1:]).clone()
    return taps.tap(BroadcastUse(name, None, args[0].shape), repeated)


RULES: dict[Any, Any] = {
    F.linear: linear,
    F.embedding: embedding,
    Tensor.expand: expand,
    **dict.fromkeys((torch.matmul, torch.mm, Tensor.matmul, Tensor.__matmul__, Tensor.mm), matmul),
    **dict.fromkeys((torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__), broadcast),
    **dict.fromkeys((torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__), broadcast),
}
