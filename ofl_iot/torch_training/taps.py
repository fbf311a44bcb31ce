"""Watching a forward pass: which calls trainable parameters enter, and the errors at what comes out.

A `TorchFunctionMode` sees every torch *function*, not modules. So modules that are called twice, tied weights and
`F.linear(x, self.fc.weight)` need no care, and a use that no rule knows is noticed, not missed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ofl_iot.torch_training.gradients import Gradient

Layout = Literal["first", "second", "blocks", "mixed"]
"""Where records lie in a tensor: in its first or second dimension, or folded with others into the first dimension,
each record's places together ("blocks") or each place's records together ("mixed")."""
LAYOUTS: tuple[Layout, ...] = ("first", "second", "blocks", "mixed")


class UnsupportedError(Exception):
    """An engine cannot train this network; the text says why, with names and never with values."""


class Use:
    """One call that parameters entered: its inputs, and after the backward pass the error at its outputs."""

    def __init__(self, names: Sequence[str | None], inputs: Tensor | None) -> None:
        self.names = tuple(names)
        self.inputs: Any = None if inputs is None else inputs.detach()
        """None where only the error counts."""
        self.error: Tensor | None = None
        self.layout: Layout = "first"
        self._version = _version_of(inputs)

    @property
    def name(self) -> str:
        """The first parameter that entered."""
        return next(name for name in self.names if name)

    def keep_error(self, error: Tensor) -> None:
        """Note the error: a hook of the outputs."""
        self.error = error.detach()

    def gradients(self, count: int) -> Iterator[tuple[str, Gradient]]:
        """Give what this use adds to the gradient of each of its parameters, for each of `count` records."""
        if self.error is None:
            return  # nothing of the loss depends on it
        if _version_of(self.inputs) != self._version:
            raise UnsupportedError(f"the input of {self.name} was changed in place after its use")
        for name, gradient in zip(self.names, self.parts(self.error, count), strict=True):
            if name and gradient is not None:
                yield name, gradient

    def parts(self, error: Tensor, count: int) -> Sequence[Gradient | None]:
        """Return the gradient of each parameter in the order of `names`; None for one that is not trained."""
        raise NotImplementedError

    def records_first(self, value: Tensor, count: int) -> Tensor:
        """Return (records, places, …), whatever way the network laid its records out."""
        return records_first(value, self.layout, count)


def _version_of(value: Tensor | None) -> int | None:
    """How often a tensor was changed in place: autograd looks at the same number."""
    return None if value is None else value._version  # noqa: SLF001 - there is no public name


def records_first(value: Tensor, layout: Layout, count: int) -> Tensor:
    """Return (records, places, …) from a tensor of a layout, or UnsupportedError if it does not fit."""
    if layout == "second":
        if value.dim() < 2 or value.shape[1] != count:
            raise UnsupportedError("records are not where the probe saw them")
        return value.transpose(0, 1)
    if layout == "first":
        if value.shape[0] != count:
            raise UnsupportedError("records are not where the probe saw them")
        return value.unsqueeze(1) if value.dim() < 3 else value
    if value.shape[0] % count:
        raise UnsupportedError("records are not where the probe saw them")
    if layout == "blocks":
        return value.reshape(count, -1, *value.shape[1:])
    return value.reshape(-1, count, *value.shape[1:]).transpose(0, 1)


class _Anchor(torch.autograd.Function):  # type: ignore[misc]  # torch is not typed here
    """Makes outputs part of the graph of derivatives, without a copy and without a derivative by their inputs."""

    @staticmethod
    def forward(ctx: Any, outputs: Tensor, anchor: Tensor) -> Tensor:  # noqa: ARG004 - the graph needs it
        ctx.mark_dirty(outputs)
        return outputs

    @staticmethod
    def backward(ctx: Any, error: Tensor) -> tuple[None, None]:  # noqa: ARG004 - autograd's signature
        return None, None


@dataclass(frozen=True)
class View:
    """A parameter, or a view of it."""

    root: str
    of: Callable[[Tensor], Tensor]
    """Takes the same view of another tensor of the parameter's shape."""
    kept: Tensor | None
    """The view itself: while it lives, no other tensor has its identity."""


Rule = Callable[["Taps", Callable[..., Any], Sequence[Any], Mapping[str, Any]], Any]
"""Runs a function with parameters and taps it; NotImplemented if no trainable parameter enters."""


class Taps(TorchFunctionMode):  # type: ignore[misc]  # torch is not typed here
    """Collects `uses` while it is active. With `tapped=False` it only unrolls what vmap cannot run."""

    def __init__(self, params: Mapping[str, Tensor], rules: Mapping[Any, Rule], *, tapped: bool = True) -> None:
        super().__init__()
        self.tapped = tapped
        self.uses: list[Use] = []
        self.anchor = torch.zeros((), requires_grad=True)
        self._params, self._rules = params, rules
        self._names = {id(value): name for name, value in params.items()}
        self._views: dict[str, View] = {}

    def name(self, value: Any) -> str | None:
        """Return the name of a trainable parameter or of a view of one, None for anything else."""
        return self._names.get(id(value))

    def note_view(self, name: str, made: Tensor, of: Callable[[Tensor], Tensor]) -> None:
        """Give a view of a parameter, or of a view, a name of its own."""
        source = self.origin(name)
        own = f"{source.root}, view {len(self._views)}"
        self._names[id(made)] = own
        self._views[own] = View(source.root, lambda value: of(source.of(value)), made)

    def origin(self, name: str) -> View:
        """Return of which parameter a name is which view."""
        return self._views.get(name) or View(name, lambda value: value, None)

    def shape_of(self, name: str) -> torch.Size:
        """Return the shape of the parameter behind a name."""
        return self._params[self.origin(name).root].shape

    def constant(self, value: Any) -> Any:
        """Return a parameter as a constant: what is wanted are errors at outputs, not derivatives by weights."""
        return value.detach() if isinstance(value, Tensor) and (value.is_leaf or id(value) in self._names) else value

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run one torch function: by its rule, or as it is if no trainable parameter enters."""
        kwargs = kwargs or {}
        if self.tapped and func in _READS:
            raise UnsupportedError(
                f"Python reads a value of the batch ({func.__name__}): the way taken may depend on several records"
            )
        rule = self._rules.get(func)
        if rule is not None:
            made = rule(self, func, args, kwargs)
            if made is not NotImplemented:
                return made
        made = func(*args, **kwargs)
        if self.tapped:
            self._refuse_unknown(func, made, args, kwargs)
        return made

    def tap(self, use: Use, outputs: Tensor) -> Tensor:
        """Note a use; its outputs are in the graph of derivatives from here on."""
        if not outputs.requires_grad:
            outputs = _Anchor.apply(outputs, self.anchor)
        outputs.register_hook(use.keep_error)
        self.uses.append(use)
        return outputs

    def _refuse_unknown(self, func: Any, made: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        for value in tensors_in((args, kwargs)):
            name = self.name(value)
            if name and any(out.requires_grad for out in tensors_in(made)):
                raise UnsupportedError(f"{name} enters {getattr(func, '__name__', func)}, which has no rule")


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Find the tensors in nested lists, tuples and dictionaries."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors_in(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from tensors_in(part)


_READS = {
    getattr(Tensor, name)
    for name in (
        "__bool__", "__float__", "__int__", "__index__", "__complex__", "__array__", "__contains__",
        "item", "tolist", "numpy", "nonzero", "equal", "allclose", "is_nonzero",
    )
} | {torch.nonzero, torch.equal, torch.allclose, torch.is_nonzero}  # fmt: skip
"""Functions that tell Python a value: a branch on it could mix records."""
