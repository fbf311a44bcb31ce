"""Which layer is to blame: the outputs of all layers of a pass, compared with those of another pass."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ofl_iot.torch_training.taps import tensors_in


@dataclass(frozen=True)
class Call:
    """One call of a layer: its inputs and outputs, in the order in which calls end."""

    name: str
    layer: nn.Module
    inputs: list[Tensor]
    outputs: list[Tensor]


def blamed_for_company(
    module: nn.Module,
    together: Sequence[Tensor],
    place: int,
    alone: Sequence[Tensor],
    same: Callable[[Tensor, Tensor], bool],
) -> str:
    """Name the first layer whose output for the record at `place` differs in company although its inputs do not."""
    with _calls(module) as in_company:
        module(*together)
    with _calls(module) as single:
        module(*alone)
    count = len(together[0])

    def differs(many: list[Tensor], one: list[Tensor]) -> bool:
        pairs = [(a, b) for a, b in zip(many, one, strict=False) if a.dim() and b.dim() and a.shape[0] == count]
        return any(len(b) != 1 or not same(a[place], b[0]) for a, b in pairs if a.is_floating_point())

    for here, there in zip(in_company, single, strict=False):
        if here.name == there.name and differs(here.outputs, there.outputs):
            return _told(module, here, by_itself=not differs(here.inputs, there.inputs))
    return _told(module, None, by_itself=True)


def blamed_for_poison(
    module: nn.Module, mode: contextlib.AbstractContextManager[Any], inputs: Sequence[Tensor], record: int, count: int
) -> str:
    """Name the first layer whose output for others is not finite although its inputs are."""
    with mode, _calls(module) as calls:
        module(*inputs)

    def spoiled(values: list[Tensor]) -> bool:
        rows = [value for value in values if value.dim() and value.shape[0] == count and value.is_floating_point()]
        return any(not bool(row[place].isfinite().all()) for row in rows for place in range(count) if place != record)

    for call in calls:
        if spoiled(call.outputs):
            return _told(module, call, by_itself=not spoiled(call.inputs))
    return _told(module, None, by_itself=True)


def _told(module: nn.Module, call: Call | None, *, by_itself: bool) -> str:
    """The layer, or that whose forward() called it if its inputs were wrong already."""
    if call is None or (not by_itself and "." not in call.name):
        return f"the forward() of {type(module).__name__}"
    if by_itself:
        return (
            f"{call.name} ({type(call.layer).__name__})" if call.name else f"the forward() of {type(module).__name__}"
        )
    parent = call.name.rpartition(".")[0]
    return f"the forward() of {parent} ({type(module.get_submodule(parent)).__name__})"


@contextlib.contextmanager
def _calls(module: nn.Module) -> Iterator[list[Call]]:
    """Collect all calls of layers in the block."""
    calls: list[Call] = []

    def hook_of(name: str) -> Callable[..., None]:
        def hook(layer: nn.Module, args: Any, outputs: Any) -> None:
            calls.append(Call(name, layer, list(tensors_in(args)), list(tensors_in(outputs))))

        return hook

    handles = [layer.register_forward_hook(hook_of(name)) for name, layer in module.named_modules()]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()
