"""Rules for functions whose parameters belong to channels: convolutions, normalisations and PReLU."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - everybody's name for it
from torch import Tensor

from ofl_iot.torch_training.gradients import Direct, Gradient, Outer, Unfolded
from ofl_iot.torch_training.tap_dense import Function, arguments
from ofl_iot.torch_training.taps import Taps, UnsupportedError, Use


@dataclass(frozen=True)
class Window:
    """How a kernel moves over one or two dimensions."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    def places(self, value: Tensor) -> Tensor:
        """Return what the kernel sees at each place: (records, channels · kernel, places)."""
        if value.dim() == 4:
            return F.unfold(value, self.kernel, self.dilation, self.padding, self.stride)
        kernel, stride, dilation = ((1, part[0]) for part in (self.kernel, self.stride, self.dilation))
        return F.unfold(value.unsqueeze(2), kernel, dilation, (0, self.padding[0]), stride)


class ConvUse(Use):
    """A convolution over one or two dimensions: a dense layer at each place of its kernel."""

    def __init__(self, names: Sequence[str | None], inputs: Tensor, window: Window, groups: int) -> None:
        super().__init__(names, inputs)
        self._window, self._groups = window, groups

    def parts(self, error: Tensor, count: int) -> Sequence[Gradient | None]:
        """Return Σ over places of error ⊗ what the kernel saw, and of the error."""
        _require_first(self, error, count)
        errors = error.flatten(2)
        bias = Direct(errors.sum(2))
        if self.names[0] is None:
            return None, bias
        x, window = self.inputs, self._window
        if self._groups == 1:
            width = x.shape[1] * math.prod(window.kernel)
            unfolded = Unfolded(lambda rows: window.places(x[rows]).transpose(1, 2), width, errors.transpose(1, 2))
            return unfolded, bias
        places = window.places(x)
        seen = places.view(count, self._groups, -1, places.shape[2])
        return Direct(errors.view(count, self._groups, -1, errors.shape[2]) @ seen.transpose(2, 3)), bias


class TransposedConvUse(Use):
    """A transposed convolution: as a convolution with inputs and errors exchanged."""

    def __init__(self, names: Sequence[str | None], inputs: Tensor, window: Window) -> None:
        super().__init__(names, inputs)
        self._window = window

    def parts(self, error: Tensor, count: int) -> Sequence[Gradient | None]:
        """Return Σ over places of input ⊗ the errors that its kernel reached, and of the error."""
        _require_first(self, error, count)
        bias = Direct(error.flatten(2).sum(2))
        if self.names[0] is None:
            return None, bias
        reached, inputs = self._window.places(error), self.inputs.flatten(2)
        if reached.shape[2] != inputs.shape[2]:
            raise UnsupportedError(f"{self.name}: a transposed convolution padded beyond its stride")
        return Outer(reached.transpose(1, 2), inputs.transpose(1, 2)), bias


def conv(taps: Taps, func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """F.conv1d and F.conv2d."""
    x, w, b, stride, padding, dilation, groups = arguments(
        args, kwargs, input=None, weight=None, bias=None, stride=1, padding=0, dilation=1, groups=1
    )
    names = taps.name(w), taps.name(b)
    if not any(names) or taps.name(x) or not taps.tapped:
        return NotImplemented
    space = _space(x, w, names)
    dilation = _each(dilation, space)
    if padding == "same":
        beyond = [step * (size - 1) for step, size in zip(dilation, w.shape[2:], strict=True)]
        x = F.pad(x, [side for total in reversed(beyond) for side in (total // 2, total - total // 2)])
    padding = (0,) * space if isinstance(padding, str) else _each(padding, space)
    window = Window(tuple(w.shape[2:]), _each(stride, space), padding, dilation)
    outputs = func(x, taps.constant(w), taps.constant(b), window.stride, window.padding, window.dilation, groups)
    return taps.tap(ConvUse(names, x, window, groups), outputs)


def transposed_conv(taps: Taps, func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """F.conv_transpose1d and F.conv_transpose2d."""
    x, w, b, stride, padding, more, groups, dilation = arguments(
        args, kwargs, input=None, weight=None, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1
    )
    names = taps.name(w), taps.name(b)
    if not any(names) or taps.name(x) or not taps.tapped:
        return NotImplemented
    space = _space(x, w, names)
    if groups != 1:
        raise UnsupportedError(f"{names[0] or names[1]}: a transposed convolution in groups")
    window = Window(tuple(w.shape[2:]), _each(stride, space), _each(padding, space), _each(dilation, space))
    outputs = func(x, taps.constant(w), taps.constant(b), window.stride, window.padding, more, groups, window.dilation)
    return taps.tap(TransposedConvUse(names, x, window), outputs)


def _space(x: Tensor, w: Tensor, names: Sequence[str | None]) -> int:
    """How many dimensions a kernel moves over: one or two."""
    space: int = w.dim() - 2
    if x.dim() != w.dim():
        raise UnsupportedError(f"{names[0] or names[1]}: a convolution of one record without a batch")
    return space


def _each(value: Any, count: int) -> tuple[int, ...]:
    if isinstance(value, int):
        return (value,) * count
    return tuple(value) * (count if len(value) == 1 else 1)


def _require_first(use: Use, error: Tensor, count: int) -> None:
    if use.layout != "first" or error.shape[0] != count:
        raise UnsupportedError(f"{use.name}: records are not the first dimension of a function over channels")


class ScaleUse(Use):
    """even · w + b along the last dimensions, where even is x normalised: layer and RMS normalisation.

    What was normalised is computed again from x: cheaper than to keep scale and shift apart in the graph.
    """

    def __init__(
        self, names: Sequence[str | None], x: Tensor, normalise: Callable[[Tensor], Tensor], shape: Sequence[int]
    ) -> None:
        super().__init__(names, x)
        self._normalise, self._shape = normalise, tuple(shape)

    def parts(self, error: Tensor, count: int) -> Sequence[Gradient | None]:
        """Return Σ over places of error · even, and of the error."""
        return Direct(self._sum(error * self._normalise(self.inputs), count)), Direct(self._sum(error, count))

    def _sum(self, value: Tensor, count: int) -> Tensor:
        return self.records_first(value, count).reshape(count, -1, *self._shape).sum(1)


class ChannelScaleUse(Use):
    """even · w + b along channels, the second dimension: group normalisation, and PReLU's slope without b."""

    def __init__(
        self, names: Sequence[str | None], x: Tensor, normalise: Callable[[Tensor], Tensor], channels: int
    ) -> None:
        super().__init__(names, x)
        self._normalise, self._channels = normalise, channels

    def parts(self, error: Tensor, count: int) -> Sequence[Gradient | None]:
        """Return Σ over places of error · even, and of the error."""
        _require_first(self, error, count)
        gradients = Direct(self._sum(error * self._normalise(self.inputs))), Direct(self._sum(error))
        return gradients[: len(self.names)]

    def _sum(self, value: Tensor) -> Tensor:
        value = value.flatten(2).sum(2) if value.dim() > 2 else value
        return value if self._channels > 1 or value.shape[1] == 1 else value.sum(1, keepdim=True)


def layer_norm(taps: Taps, func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """F.layer_norm(input, normalized_shape, weight, bias, eps)."""
    x, shape, w, b, eps = arguments(args, kwargs, input=None, normalized_shape=None, weight=None, bias=None, eps=1e-5)
    names = taps.name(w), taps.name(b)
    if not any(names) or taps.name(x) or not taps.tapped:
        return NotImplemented
    use = ScaleUse(names, x, lambda value: func(value, shape, None, None, eps), shape)
    return taps.tap(use, func(x, shape, taps.constant(w), taps.constant(b), eps))


def rms_norm(taps: Taps, func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """F.rms_norm(input, normalized_shape, weight, eps)."""
    x, shape, w, eps = arguments(args, kwargs, input=None, normalized_shape=None, weight=None, eps=None)
    if taps.name(w) is None or taps.name(x) or not taps.tapped:
        return NotImplemented
    use = ScaleUse((taps.name(w), None), x, lambda value: func(value, shape, None, eps), shape)
    return taps.tap(use, func(x, shape, taps.constant(w), eps))


def group_norm(taps: Taps, func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """F.group_norm(input, num_groups, weight, bias, eps)."""
    x, groups, w, b, eps = arguments(args, kwargs, input=None, num_groups=None, weight=None, bias=None, eps=1e-5)
    names = taps.name(w), taps.name(b)
    if not any(names) or taps.name(x) or not taps.tapped:
        return NotImplemented
    use = ChannelScaleUse(names, x, lambda value: func(value, groups, None, None, eps), x.shape[1])
    return taps.tap(use, func(x, groups, taps.constant(w), taps.constant(b), eps))


def batch_norm(taps: Taps, func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """F.batch_norm with fixed statistics; in training mode the probe refuses it before."""
    x, mean, variance, w, b, training, _, eps = arguments(
        args, kwargs, input=None, running_mean=None, running_var=None, weight=None, bias=None, training=False,
        momentum=0.1, eps=1e-5,
    )  # fmt: skip
    names = taps.name(w), taps.name(b)
    if not any(names) or taps.name(x) or training or not taps.tapped:
        return NotImplemented
    use = ChannelScaleUse(names, x, lambda value: func(value, mean, variance, eps=eps), x.shape[1])
    return taps.tap(use, func(x, mean, variance, taps.constant(w), taps.constant(b), eps=eps))


def prelu(taps: Taps, func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """F.prelu(input, weight): the slope of what is negative."""
    x, w = arguments(args, kwargs, input=None, weight=None)
    name = taps.name(w)
    if name is None or taps.name(x) or x.dim() < 2 or not taps.tapped:
        return NotImplemented
    return taps.tap(ChannelScaleUse((name,), x, lambda value: value.clamp(max=0), w.numel()), func(x, taps.constant(w)))


RULES: dict[Any, Any] = {
    F.conv1d: conv,
    F.conv2d: conv,
    F.conv_transpose1d: transposed_conv,
    F.conv_transpose2d: transposed_conv,
    F.layer_norm: layer_norm,
    F.group_norm: group_norm,
    F.batch_norm: batch_norm,
    **({F.rms_norm: rms_norm} if hasattr(F, "rms_norm") else {}),
    F.prelu: prelu,
    torch.prelu: prelu,
}
