"""Three ways to the same sum: Σ over records of their gradient, each scaled to a norm of at most `clip_norm`.

| engine | independence of records                            | works for               | cost                         |
| ------ | -------------------------------------------------- | ----------------------- | ---------------------------- |
| layers | by the rule of each function, and probed           | what `rules` knows      | one forward and one backward |
| vmap   | by construction: each record is a batch of its own | what torch.func batches | whole gradients in memory    |
| loop   | by construction                                    | whatever autograd can   | a forward and backward each  |
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from ofl_iot.torch_training.flat import FlatModel
from ofl_iot.torch_training.gradients import LARGE_BYTES, Direct, Gradient, joined, squared_norms
from ofl_iot.torch_training.losses import Loss, RecordLosses
from ofl_iot.torch_training.rules import tapping, unrolling
from ofl_iot.torch_training.taps import Layout, Taps, UnsupportedError

Inputs = tuple[Tensor, ...]
Way = tuple[tuple[str, tuple[str | None, ...]], ...]
"""The uses of one forward pass in order: their kinds and parameters."""

MICRO_BATCH = 64
"""Most records of one pass."""
_MICRO_BYTES = 64 << 20
"""Most bytes of the gradients of a micro-batch under vmap."""
_MARGIN = 1 + 2.0**-18
"""A norm counts this much more, so that rounding makes no clipped gradient longer than allowed."""


@dataclass(frozen=True)
class Clipped:
    """What an engine reports of each record: squared norm of its gradient (infinite if it was left out) and loss."""

    squares: Tensor
    losses: Tensor


def scales(squares: Tensor, clip_norm: float) -> Tensor:
    """Return by what to scale each gradient so that its norm is at most `clip_norm`, which may be infinite."""
    if math.isinf(clip_norm):
        return torch.ones_like(squares)
    return clip_norm / (squares.sqrt() * _MARGIN).clamp(min=clip_norm)


class Engine:
    """Computes clipped sums of a model's gradients on micro-batches."""

    name = ""
    micro_batch = MICRO_BATCH

    def __init__(self, model: FlatModel, loss: Loss) -> None:
        self.model = model
        self.losses = RecordLosses(loss)

    def add_clipped(self, total: Tensor, inputs: Inputs, targets: Tensor, clip_norm: float) -> Clipped:
        """Add the clipped sum of a micro-batch to the flat `total`; a gradient that is not finite adds nothing.

        Raise UnsupportedError, before anything was added, if this engine cannot do it.
        """
        raise NotImplementedError

    def _without(self, bad: Tensor, total: Tensor, inputs: Inputs, targets: Tensor, clip_norm: float) -> Clipped:
        """Do it again without the records whose gradients are not finite: nothing of them may touch the sum."""
        good = ~bad
        squares = torch.full(bad.shape, math.inf, device=bad.device)
        losses = torch.full(bad.shape, math.nan, device=bad.device)
        if good.any():
            done = self.add_clipped(total, tuple(x[good] for x in inputs), targets[good], clip_norm)
            squares[good], losses[good] = done.squares, done.losses
        return Clipped(squares, losses)


class Layers(Engine):
    """Norms from each layer's inputs and errors, then weighted sums of the same: no second backward pass."""

    name = "layers"

    def __init__(self, model: FlatModel, loss: Loss, layouts: Mapping[Way, Sequence[Layout]]) -> None:
        super().__init__(model, loss)
        self.layouts = dict(layouts)

    def add_clipped(self, total: Tensor, inputs: Inputs, targets: Tensor, clip_norm: float) -> Clipped:
        """Add the clipped sum, from one forward and one backward pass."""
        taps, losses = tapped_pass(self.model, self.losses, inputs, targets)
        layouts = self.layouts.get(way_of(taps))
        if layouts is None:
            raise UnsupportedError("a way through the network that the probe did not meet")
        with torch.enable_grad():
            propagate(losses.sum(), taps)
        with torch.no_grad():
            for use, layout in zip(taps.uses, layouts, strict=True):
                use.layout = layout
            gradients = _gather(taps, len(targets))
            squares = torch.zeros(len(targets), device=losses.device)
            for gradient in gradients.values():
                squares += gradient.squares()
            bad = ~squares.isfinite()
            if bad.any():
                taps.uses.clear()
                return self._without(bad, total, inputs, targets, clip_norm)
            scale = scales(squares, clip_norm)
            views = self.model.views(total)
            for name, gradient in gradients.items():
                origin = taps.origin(name)
                _add(gradient, origin.of(views[origin.root]), scale)
        return Clipped(squares, losses.detach())


def tapped_pass(model: FlatModel, losses: RecordLosses, inputs: Inputs, targets: Tensor) -> tuple[Taps, Tensor]:
    """Run a forward pass under taps; return them and each record's loss."""
    taps = tapping(model.params)
    with torch.enable_grad():
        with taps:
            outputs = model.module(*inputs)
        if not isinstance(outputs, Tensor) or outputs.dim() == 0 or outputs.shape[0] != targets.shape[0]:
            raise UnsupportedError("the network does not answer with one row a record")
        return taps, losses.each(outputs, targets)


def propagate(loss: Tensor, taps: Taps, *, again: bool = False) -> None:
    """Run the backward pass, whose hooks leave an error in each use; parameters get no `.grad`."""
    if not loss.requires_grad:
        raise UnsupportedError("the loss does not depend on any parameter")
    torch.autograd.grad(loss, [taps.anchor], allow_unused=True, retain_graph=again)


def way_of(taps: Taps) -> Way:
    """Return which uses a pass met: layouts were seen for this sequence, and no other."""
    return tuple((type(use).__name__, use.names) for use in taps.uses)


def _add(gradient: Gradient, target: Tensor, scale: Tensor) -> None:
    """Add a weighted sum to a part of the total, which may lie scattered."""
    if target.is_contiguous():
        gradient.add_to(target, scale)
        return
    part = torch.zeros(target.shape, device=target.device)
    gradient.add_to(part, scale)
    target.add_(part)


def _gather(taps: Taps, count: int) -> dict[str, Gradient]:
    """The gradient of each parameter, or of its only view, from all uses."""
    found: dict[str, Gradient] = {}
    for use in taps.uses:
        for name, gradient in use.gradients(count):
            found[name] = joined(found[name], gradient) if name in found else gradient
    by_root: dict[str, list[str]] = {}
    for name in found:
        by_root.setdefault(taps.origin(name).root, []).append(name)
    for root, names in by_root.items():
        if len(names) > 1:
            found[root] = _united(taps, {name: found.pop(name) for name in names}, count)
    return found


def _united(taps: Taps, parts: dict[str, Gradient], count: int) -> Gradient:
    """The whole gradient of a parameter of which several views are used, which may overlap."""
    shape = taps.shape_of(next(iter(parts)))
    if 4 * count * shape.numel() > LARGE_BYTES:
        raise UnsupportedError(f"{taps.origin(next(iter(parts))).root} is large and several views of it are used")
    first = next(iter(parts.values())).whole()
    total = torch.zeros((count, *shape), device=first.device)
    for name, gradient in parts.items():
        whole, origin = gradient.whole(), taps.origin(name)
        for place in range(count):
            target = origin.of(total[place])
            target.add_(whole[place].reshape(target.shape))
    return Direct(total)


class Vmap(Engine):
    """torch.func: the whole gradient of each record, as many at a time as fit."""

    name = "vmap"

    def __init__(self, model: FlatModel, loss: Loss) -> None:
        super().__init__(model, loss)
        self.micro_batch = max(1, min(MICRO_BATCH, _MICRO_BYTES // (4 * model.full_size)))

        def loss_of_one(params: dict[str, Tensor], inputs: Inputs, target: Tensor) -> Tensor:
            with unrolling():
                outputs = functional_call(model.module, params, tuple(x.unsqueeze(0) for x in inputs))
            return self.losses.alone(outputs, target.unsqueeze(0))

        self._each = vmap(grad_and_value(loss_of_one), in_dims=(None, 0, 0), randomness="different")

    def add_clipped(self, total: Tensor, inputs: Inputs, targets: Tensor, clip_norm: float) -> Clipped:
        """Add the clipped sum of whole gradients."""
        params = {name: p.detach() for name, p in self.model.params.items()}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop")  # the probe measures it
            gradients, losses = self._each(params, inputs, targets)
        squares = torch.zeros(len(targets), device=total.device)
        for gradient in gradients.values():
            squares += squared_norms(gradient)
        bad = ~squares.isfinite()
        if bad.any():
            return self._without(bad, total, inputs, targets, clip_norm)
        scale = scales(squares, clip_norm)
        for name, view in self.model.views(total).items():
            view.view(-1).addmv_(gradients[name].flatten(1).t(), scale)
        return Clipped(squares, losses.detach())


class Loop(Engine):
    """Ordinary autograd, one record after the other: slow, and right for whatever runs at all."""

    name = "loop"

    def add_clipped(self, total: Tensor, inputs: Inputs, targets: Tensor, clip_norm: float) -> Clipped:
        """Add one record's clipped gradient after the other."""
        params, views = list(self.model.params.values()), list(self.model.views(total).values())
        squares = torch.full((len(targets),), math.inf, device=total.device)
        losses = torch.full((len(targets),), math.nan, device=total.device)
        for place in range(len(targets)):
            one = slice(place, place + 1)
            with torch.enable_grad():
                loss = self.losses.alone(self.model.module(*(x[one] for x in inputs)), targets[one])
            gradients = torch.autograd.grad(loss, params, allow_unused=True)
            square = sum((g.square().sum() for g in gradients if g is not None), torch.zeros((), device=total.device))
            if not square.isfinite():
                continue
            scale = float(scales(square, clip_norm))
            for gradient, view in zip(gradients, views, strict=True):
                if gradient is not None:
                    view.add_(gradient, alpha=scale)
            squares[place], losses[place] = square, loss.detach()
        return Clipped(squares, losses)
