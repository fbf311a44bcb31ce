"""Which engine trains a network: where records lie in each layer, whether an engine is right, and how fast it is."""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor

from ofl_iot.errors import ConfigError
from ofl_iot.torch_training.data import Records
from ofl_iot.torch_training.engines import Engine, Layers, Loop, Vmap, Way, propagate, tapped_pass, way_of
from ofl_iot.torch_training.flat import FlatModel
from ofl_iot.torch_training.job import EngineName
from ofl_iot.torch_training.losses import Loss, RecordLosses
from ofl_iot.torch_training.taps import LAYOUTS, Layout, UnsupportedError, records_first

_CLOSE = {"cpu": 1e-3}
"""Largest relative difference between an engine's result and that of one record after the other, by device."""
_CLOSE_ELSEWHERE = 1e-2
"""The same on a GPU, whose convolutions round to ten bits by default."""


def reference(model: FlatModel, loss: Loss, records: Records) -> tuple[Tensor, list[str]]:
    """Return each record's squared gradient norm by ordinary autograd, and parameters that get no gradient."""
    total = torch.zeros_like(model.flat)
    try:
        squares = Loop(model, loss).add_clipped(total, records.inputs, records.targets, math.inf).squares
    except RuntimeError as error:
        raise ConfigError(
            "the model cannot be differentiated for one record: its output or its loss does not depend on any "
            "trainable parameter, or autograd failed"
        ) from error
    if not bool(squares.isfinite().all()):
        raise ConfigError("the gradient of one record is not finite: check the loss and the range of inputs")
    return squares, [name for name, view in model.views(total).items() if not bool(view.any())]


def chosen(
    model: FlatModel, loss: Loss, records: Records, squares: Tensor, *, wanted: EngineName, random: bool
) -> tuple[Engine, list[str]]:
    """Return "layers" if it is right, else the faster of those that are; and notes why not others."""
    fitting: list[tuple[float, Engine]] = []
    notes: list[str] = []
    kinds: tuple[type[Engine], ...] = (Layers, Vmap, Loop)
    for kind in kinds:
        if wanted not in ("auto", kind.name):
            continue
        try:
            engine = _made(kind, model, loss, records, random=random)
            fitting.append((_seconds_if_right(engine, records, squares, compared=not random), engine))
        except UnsupportedError as error:
            notes.append(f"not {kind.name}: {error}")
        except Exception as error:  # noqa: BLE001 - whatever user code does under vmap; its text may carry values
            notes.append(f"not {kind.name}: {type(error).__name__}")
        if kind is Layers and fitting:
            break
    if not fitting:
        hint = "" if wanted == "auto" else f" with training.engine = {wanted!r} (try 'auto')"
        raise ConfigError(f"the model cannot be trained with privacy{hint}: {'; '.join(notes)}")
    return min(fitting, key=lambda pair: pair[0])[1], notes


def _made(kind: type[Engine], model: FlatModel, loss: Loss, records: Records, *, random: bool) -> Engine:
    if not issubclass(kind, Layers):
        return kind(model, loss)
    if random:
        raise UnsupportedError("the model draws random numbers")
    return Layers(model, loss, layouts_of(model, loss, records))


def _seconds_if_right(engine: Engine, records: Records, squares: Tensor, *, compared: bool) -> float:
    """Return the engine's CPU seconds a record if it gives what one record after the other gives."""
    model, loss = engine.model, engine.losses.loss
    clip_norm = float(squares.sqrt().median())
    clip_norm = clip_norm if clip_norm > 0 else 1.0
    total, wanted = torch.zeros_like(model.flat), torch.zeros_like(model.flat)
    done = engine.add_clipped(total, records.inputs, records.targets, clip_norm)
    if compared and not isinstance(engine, Loop):
        Loop(model, loss).add_clipped(wanted, records.inputs, records.targets, clip_norm)
        gap = float((total - wanted).norm()) / max(float(wanted.norm()), 1e-12)
        norms, known = done.squares.sqrt(), squares.sqrt()
        worst = float(((norms - known).abs() / known.clamp(min=1e-6 * float(known.max()) + 1e-12)).max())
        close = _CLOSE.get(model.flat.device.type, _CLOSE_ELSEWHERE)
        if not (gap < close and worst < close):
            raise UnsupportedError("its clipped sum is not that of one record after the other")
    if isinstance(engine, Layers):
        return 0.0
    times = 1 if isinstance(engine, Loop) else max(1, engine.micro_batch // len(records))
    rows = torch.arange(len(records)).repeat(times)
    many = records.take(rows)
    began = time.process_time()
    engine.add_clipped(torch.zeros_like(model.flat), many.inputs, many.targets, clip_norm)
    return (time.process_time() - began) / len(many)


def layouts_of(model: FlatModel, loss: Loss, records: Records) -> dict[Way, list[Layout]]:
    """Return where each record lies in the tensors of each use, from the errors of one record's loss alone.

    An error anywhere else means that this record's loss depends on another record: UnsupportedError.
    """
    count = len(records)
    taps, losses = tapped_pass(model, RecordLosses(loss), records.inputs, records.targets)
    possible: list[list[Layout]] = [list(LAYOUTS) for _ in taps.uses]
    reached: set[int] = set()
    for record in range(count):
        for use in taps.uses:
            use.error = None
        propagate(losses[record], taps, again=True)
        for place, use in enumerate(taps.uses):
            if use.error is None or not bool(use.error.any()):
                continue
            reached.add(place)
            error = use.error
            possible[place] = [each for each in possible[place] if _is_alone(error, each, count, record)]
            if not possible[place]:
                raise UnsupportedError(f"records cannot be told apart in the output of {use.name}")
    for place, use in enumerate(taps.uses):
        if place not in reached:
            raise UnsupportedError(f"no error reached the output of {use.name}, so where its records lie is unknown")
    return {way_of(taps): [layouts[0] for layouts in possible]}


def _is_alone(error: Tensor, layout: Layout, count: int, record: int) -> bool:
    """Whether an error lies only where a layout has this record."""
    if layout == "second" and error.dim() < 3:
        return False
    if layout in ("blocks", "mixed") and error.shape[0] == count:
        return False
    try:
        rows = records_first(error, layout, count)
    except UnsupportedError:
        return False
    others = torch.ones(count, dtype=torch.bool, device=error.device)
    others[record] = False
    return not bool(rows[others].any())
