"""Does a network treat each record alone? Each check raises ConfigError that names the layer and what to use instead.

Messages carry names of layers, never values: what a record does to a network may tell of the record.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ofl_iot.errors import ConfigError
from ofl_iot.torch_training.data import Records
from ofl_iot.torch_training.losses import Loss
from ofl_iot.torch_training.session import seeded
from ofl_iot.torch_training.taps import tensors_in
from ofl_iot.torch_training.tracing import blamed_for_company, blamed_for_poison

_NORMS = "use GroupNorm or LayerNorm instead, or call .eval() on it and freeze it (requires_grad=False)"
_ALONE = (
    "Compute every record alone: no mean, maximum or softmax over the first dimension, and batch_first=True where a "
    "layer has it"
)
_NEITHER = (
    "the loss of several records is neither the mean nor the sum of theirs, and under privacy their sum is minimised: "
    "class weights with reduction='mean' vanish for one record (use 'sum'), comparisons between records are lost"
)


def check_layers(module: nn.Module) -> None:
    """Refuse layers that are known to mix or to keep records; the module is in training mode."""
    for name, layer in module.named_modules():
        told = f"{name or 'the model'} ({type(layer).__name__})"
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and (layer.training or layer.running_mean is None):  # noqa: SLF001 - the base of all kinds
            raise ConfigError(f"{told} mixes the records of a batch: {_NORMS}")
        kept = isinstance(layer, nn.modules.instancenorm._InstanceNorm) and layer.track_running_stats  # noqa: SLF001 - same
        if kept and layer.training:
            raise ConfigError(f"{told} keeps statistics of records: set track_running_stats=False")


def check_state(module: nn.Module, records: Records) -> bool:
    """Refuse what a pass leaves behind, which no noise covers; return whether the network draws random numbers."""
    before = {name: value.clone() for name, value in module.state_dict().items()}
    alone, others = records.take(slice(0, 1)).inputs, records.take(slice(1, None)).inputs
    with torch.no_grad():
        first, second = module(*alone), module(*alone)
        with seeded(np.random.default_rng(1), alone[0].device):
            once = module(*alone)
        module(*others)
        with seeded(np.random.default_rng(1), alone[0].device):
            again = module(*alone)
    for name, value in module.state_dict().items():
        if not torch.equal(value, before[name]):
            module.load_state_dict(before)
            raise ConfigError(
                f"{name} changes when records pass through: it would carry them on without noise. Keep nothing of "
                f"records in buffers or weights; where it is a normalisation, {_NORMS}"
            )
    if not isinstance(first, Tensor) or first.dim() == 0:
        raise ConfigError(f"the model returns {type(first).__name__}: return one tensor with a row for each record")
    if not torch.equal(once, again):
        raise ConfigError(
            "the same record gives another output the second time: the model keeps something of earlier records (a "
            "hidden state?), or draws random numbers otherwise than from torch; keep nothing between calls"
        )
    return not torch.equal(first, second)


def check_company(module: nn.Module, records: Records, crowd: Records) -> None:
    """Refuse a network whose output for a record differs alone, among a few and in a batch as large as in training."""
    count = len(records)
    with torch.no_grad():
        few = module(*records.inputs)
        many = module(*crowd.inputs)[:count] if len(crowd) > count else few
        if few.shape[0] != count or many.shape[0] != count:
            raise ConfigError("the model does not return a row for each record: put records first (batch_first=True?)")
        for place in range(count):
            one = records.take(slice(place, place + 1)).inputs
            alone = module(*one)[0]
            if alone.shape == few[place].shape and _same(few[place], alone) and _same(many[place], alone):
                continue
            company = records if not _same(few[place], alone) else crowd
            culprit = blamed_for_company(module, company.inputs, place, one, _same)
            raise ConfigError(
                f"{culprit} mixes the records of a batch: its output for a record is another one in other company. "
                f"{_ALONE}"
            )


def _same(here: Tensor, there: Tensor) -> bool:
    if here.shape != there.shape:
        return False
    room = 1e-4 * float(here.abs().max()) + 1e-7 if here.numel() else 0.0
    return bool(torch.allclose(here, there, rtol=1e-3, atol=room, equal_nan=True))


def check_poison(module: nn.Module, records: Records) -> bool:
    """Refuse a network in which a record that is not a number spoils others: also where no derivative flows.

    An infinite record passes every threshold that a branch may have. Return False if the network itself rejects such
    records, so that nothing was seen.
    """
    count = len(records)
    for record, value in ((0, math.nan), (1, math.nan), (0, math.inf)):
        poison = Poison(records.inputs, record, value)
        try:
            with torch.no_grad(), poison:
                outputs = module(*poison.inputs)
        except (ValueError, RuntimeError, FloatingPointError, AssertionError):
            return False
        if any(place != record and not bool(outputs[place].isfinite().all()) for place in range(count)):
            with torch.no_grad():
                fresh = Poison(records.inputs, record, value)
                culprit = blamed_for_poison(module, fresh, fresh.inputs, record, count)
            raise ConfigError(
                f"{culprit} mixes the records of a batch: a record that is not a number spoils others. {_ALONE}"
            )
    return True


class Poison(TorchFunctionMode):  # type: ignore[misc]  # torch is not typed here
    """Makes one record not a number: in floating-point inputs, and where whole numbers become floating-point ones."""

    def __init__(self, inputs: Sequence[Tensor], record: int, value: float) -> None:
        super().__init__()
        self._record, self._value, self._count = record, value, len(inputs[0])
        self.inputs = tuple(self._spoiled(x, 0) if x.is_floating_point() else x.clone() for x in inputs)
        self._whole = {id(x): x for x in self.inputs if not x.is_floating_point()}

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run one torch function; spoil the floating-point tensors that come of whole numbers of the records."""
        made = func(*args, **(kwargs or {}))
        if not self._whole or not isinstance(made, Tensor):
            return made
        if not any(id(value) in self._whole for value in tensors_in((args, kwargs or {}))):
            return made
        if not made.is_floating_point():
            self._whole[id(made)] = made  # kept, so that no other tensor gets its identity
            return made
        place = next((dim for dim in range(min(2, made.dim())) if made.shape[dim] == self._count), None)
        return made if place is None else self._spoiled(made, place)

    def _spoiled(self, value: Tensor, dim: int) -> Tensor:
        value = value.clone()
        value.select(dim, self._record).fill_(self._value)
        return value


def check_loss(module: nn.Module, loss: Loss, records: Records) -> list[str]:
    """Refuse a loss that has no meaning for one record; return notes on what it does with a batch beyond adding up."""
    count = len(records)
    with torch.no_grad():
        outputs = module(*records.inputs)
        single = _losses_alone(loss, outputs, records.targets)
        together = loss(outputs, records.targets)
        again = _losses_alone(loss, outputs, records.targets)
    if not torch.equal(single.nan_to_num(), again.nan_to_num()):
        raise ConfigError(
            "the loss of the same record is another one the second time: the loss keeps something of earlier records "
            "(a running mean?); keep nothing between calls"
        )
    if not bool(single.isfinite().all()):
        raise ConfigError("the loss of one record alone is not finite: check the loss and the range of inputs")
    if together.dim() == 0 and float(single.abs().max()) < 1e-7 < float(together.abs()):
        raise ConfigError("the loss of one record alone is 0: a loss that compares records has no meaning for one")
    if together.dim() == 0:
        sums = single.mean(), single.sum()
        fits = any(float((together - each).abs()) <= 1e-4 * float(each.abs()) + 1e-6 for each in sums)
    else:
        fits = together.shape[0] == count and bool(
            torch.allclose(together.reshape(count, -1).sum(1), single, rtol=1e-3, atol=1e-5)
        )
    return [] if fits else [_NEITHER]


def _losses_alone(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss of each record as a batch of one, with torch's randomness repeated."""
    try:
        with seeded(np.random.default_rng(2), outputs.device):
            pairs = zip(outputs.split(1), targets.split(1), strict=True)
            return torch.stack([loss(*pair).sum() for pair in pairs])
    except Exception as error:
        raise ConfigError(
            f"the loss of one record alone fails ({type(error).__name__}): a loss that compares records cannot be "
            "bounded for one of them; use one that is a mean or a sum over records"
        ) from error
