"""Before anything is paid: does the network treat each record alone, which engine fits it, and is that engine right?

The probe takes a few of the device's own records, trains nothing, sends nothing and leaves the model as it was. It is
a test, not a proof: a network that mixes records only on one rare value gets through. The engines "vmap" and "loop"
keep records apart by construction.

| check     | finds                                                                                             |
| --------- | ------------------------------------------------------------------------------------------------- |
| layers    | BatchNorm in training mode, InstanceNorm with statistics                                          |
| state     | buffers that change, hidden state in attributes                                                   |
| company   | batch means, softmax over records, batch_first forgotten, mixing in large batches only            |
| poison    | what numbers cannot show: a detached maximum of the batch, a branch beyond a threshold            |
| loss      | losses that compare records                                                                       |
| isolation | where records lie in each layer's tensors, from the backward pass of one record's loss            |
| gold      | whatever a rule gets wrong: the engine's clipped sum against that of one record after the other   |
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - everybody's name for it
from torch import nn
from torch.overrides import TorchFunctionMode

from ofl_iot.errors import ConfigError
from ofl_iot.torch_training.checks import check_company, check_layers, check_loss, check_poison, check_state
from ofl_iot.torch_training.choice import chosen, reference
from ofl_iot.torch_training.data import Records
from ofl_iot.torch_training.engines import MICRO_BATCH, Engine
from ofl_iot.torch_training.flat import FlatModel
from ofl_iot.torch_training.job import EngineName
from ofl_iot.torch_training.losses import Loss

_COUNTS = (5, 7, 11, 4, 3, 6, 2)
"""How many records are looked at closely: a number that is no other dimension of a record, if there is one."""
_NUDGE = 0.02
_LOOKED_FOR_COPIES = 4096


@dataclass(frozen=True)
class Findings:
    """What the probe found: the engine to use, and what the user should know; names, never values."""

    engine: str
    notes: tuple[str, ...]
    seconds: float


def probe(model: FlatModel, loss: Loss, records: Records, wanted: EngineName = "auto") -> tuple[Engine, Findings]:
    """Check that a model can be trained with privacy and choose its engine, or raise ConfigError."""
    began = time.perf_counter()
    notes = []
    if _has_copies(records):
        notes.append("some records are copies of others: each copy is protected as a record of its own")
    if model.tied:
        notes.append(f"tied weights travel once: {', '.join(model.tied)}")
    few, crowd = _samples_of(records, model.flat.device)
    with _prepared(model):
        engine, more = _examine(model, loss, few, crowd, wanted)
    return engine, Findings(engine.name, (*notes, *more), time.perf_counter() - began)


def _examine(
    model: FlatModel, loss: Loss, few: Records, crowd: Records, wanted: EngineName
) -> tuple[Engine, list[str]]:
    module, notes = model.module, []
    check_layers(module)
    with _without_dropout(module):
        random = check_state(module, few)
        if random:
            notes.append("the model draws random numbers: only engines that take each record alone are used")
        else:
            check_company(module, few, crowd)
        if not check_poison(module, few):
            notes.append("the model rejects values that are not finite, so that mixing was looked for without them")
        notes += check_loss(module, loss, few)
        squares, idle = reference(model, loss, few)
        if idle:
            notes.append(f"no gradient reaches {', '.join(idle)}: noise alone would move it; freeze it")
        engine, more = chosen(model, loss, few, squares, wanted=wanted, random=random)
    return engine, notes + more


def _samples_of(records: Records, device: torch.device) -> tuple[Records, Records]:
    """A few records for a close look, and as many as the largest pass in training has."""
    if len(records) < 2:
        raise ConfigError("one record alone cannot be probed: give this device at least two")
    dims = {size for value in (*records.inputs, records.targets) for size in value.shape[1:]}
    fitting = [count for count in _COUNTS if count <= len(records)]
    count = next((each for each in fitting if not any(size % each == 0 for size in dims)), fitting[0])
    return records.take(slice(0, count), device), records.take(slice(0, MICRO_BATCH), device)


def _has_copies(records: Records) -> bool:
    """Whether some records are the same: privacy is promised to one record, so to two copies only half as well."""
    some = records.take(slice(0, _LOOKED_FOR_COPIES))
    rows = [value.reshape(len(some), -1).numpy() for value in (*some.inputs, some.targets)]
    seen = {
        hashlib.blake2b(b"".join(part[place].tobytes() for part in rows), digest_size=16).digest()
        for place in range(len(some))
    }
    return len(seen) < len(some)


@contextlib.contextmanager
def _prepared(model: FlatModel) -> Iterator[None]:
    """Training mode and parameters a little off: branches that start at zero (LoRA) pass no error back otherwise."""
    modes = [(module, module.training) for module in model.module.modules()]
    kept = model.flat.clone()
    nudge = torch.randn(model.full_size, generator=torch.Generator().manual_seed(0)) * _NUDGE
    try:
        model.set_training()
        model.flat.add_(nudge.to(kept.device))
        yield
    finally:
        model.flat.copy_(kept)
        for module, training in modes:
            module.training = training


class _NoDropout(TorchFunctionMode):  # type: ignore[misc]  # torch is not typed here
    """Lets everything pass through functions of dropout."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run one torch function, or return the input of dropout."""
        kwargs = kwargs or {}
        if func in _DROPOUTS:
            return args[0] if args else kwargs["input"]
        if func is F.scaled_dot_product_attention:
            args, kwargs = (*args[:4], 0.0, *args[5:]) if len(args) > 4 else args, {**kwargs, **_no_rate(args)}
        return func(*args, **kwargs)


def _no_rate(args: Sequence[Any]) -> dict[str, float]:
    return {} if len(args) > 4 else {"dropout_p": 0.0}


_DROPOUTS = {
    F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout, torch.dropout,
}  # fmt: skip


@contextlib.contextmanager
def _without_dropout(module: nn.Module) -> Iterator[None]:
    """The same network without dropout, so that two passes can be compared."""
    kept = [
        (layer, name, getattr(layer, name))
        for layer in module.modules()
        for name in ("dropout", "dropout_p", "drop_prob", "drop_rate")
        if isinstance(getattr(layer, name, None), float)
    ]
    try:
        for layer, name, _ in kept:
            setattr(layer, name, 0.0)
        with _NoDropout():
            yield
    finally:
        for layer, name, value in kept:
            setattr(layer, name, value)
