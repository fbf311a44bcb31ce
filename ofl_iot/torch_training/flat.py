"""A module's trainable parameters as one flat float32 vector, and what must be equal for two vectors to mix."""

from __future__ import annotations

import fnmatch
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ofl_iot.errors import ConfigError
from ofl_iot.torch_training.device import resolve_device

Vector = npt.NDArray[np.float32]

_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


@dataclass(frozen=True)
class Slot:
    """Where a tensor lies in the vector."""

    name: str
    shape: tuple[int, ...]
    start: int
    size: int
    personal: bool

    @property
    def stop(self) -> int:
        """Where the next tensor begins."""
        return self.start + self.size


@dataclass(frozen=True)
class ModelCard:
    """What two models must share for their travelling vectors to mean the same."""

    names: tuple[str, ...]
    """Travelling tensors in the order of the vector."""
    shapes: tuple[tuple[int, ...], ...]
    frozen: str
    """Hash (hex) of the weights and buffers that are not trained, without statistics that stay on the device."""


class FlatModel:
    """A module whose trainable parameters are views into one vector: writing the vector is loading the model.

    The order is that of registration (`named_parameters()`), tied weights once under their first name. Parameters
    that match a pattern of `personal` are trained but stay on the device; they lie behind those that travel.
    Submodules in eval mode inside a module in training mode stay in eval mode (a frozen BatchNorm).
    """

    def __init__(self, module: nn.Module, personal: Sequence[str] = (), device: str = "auto") -> None:
        self.module = module.to(resolve_device(device))
        self.slots = _slots_of(module, personal)
        self.travelling_slots = tuple(slot for slot in self.slots if not slot.personal)
        self.size = sum(slot.size for slot in self.travelling_slots)
        self.full_size = self.slots[-1].stop
        """Travelling and personal parameters together."""
        self.tied = _tied_names(module)
        """Names under which parameters of the vector occur once more."""
        self._still = [m for m in module.modules() if not m.training] if module.training else []
        self._frozen_hash = _hash_of_frozen(module)
        named = dict(module.named_parameters())
        self.params: dict[str, nn.Parameter] = {slot.name: named[slot.name] for slot in self.slots}
        self.flat: Tensor = torch.empty(self.full_size, device=next(iter(self.params.values())).device)
        """The vector as a tensor."""
        self.rebind()

    @property
    def vector(self) -> Vector:
        """All trainable parameters, travelling ones first: a view on a CPU, a copy of what a GPU holds."""
        values: Vector = self.flat.detach().cpu().numpy()
        return values

    @property
    def travelling(self) -> Vector:
        """The first `size` values of `vector`."""
        return self.vector[: self.size]

    def load(self, vector: Vector) -> None:
        """Copy values into the model: the travelling ones, or those of the whole vector."""
        if vector.dtype != np.float32 or vector.shape not in {(self.size,), (self.full_size,)}:
            raise ConfigError(
                f"the model has {self.size} float32 parameters that travel, not {vector.dtype} of shape "
                f"{vector.shape}: all parties of a federation must use the same model"
            )
        if not np.isfinite(vector).all():
            raise ConfigError("the parameters given are not all finite: start from another model")
        with torch.no_grad():
            self.flat[: len(vector)].copy_(torch.from_numpy(np.array(vector)))

    def bind(self, memory: Vector) -> None:
        """Let the parameters live in `memory` (writable, `full_size` values, as shared memory), whose values count."""
        if self.flat.device.type != "cpu":
            raise ConfigError(f"parameters on {self.flat.device} cannot live in shared memory: use load() and vector")
        if memory.dtype != np.float32 or memory.shape != (self.full_size,) or not memory.flags.writeable:
            raise ConfigError(f"give writable memory for {self.full_size} float32 values")
        self.flat = torch.from_numpy(memory)
        for name, view in self.views(self.flat).items():
            self.params[name].data = view

    def rebind(self) -> None:
        """Take the module's values and make its parameters views again, as after `load_state_dict(assign=True)`."""
        named = dict(self.module.named_parameters())
        changed = [s.name for s in self.slots if s.name not in named or tuple(named[s.name].shape) != s.shape]
        if changed:
            raise ConfigError(f"{', '.join(changed)} changed shape: a model keeps its shapes while it is trained")
        with torch.no_grad():
            for name, view in self.views(self.flat).items():
                view.copy_(named[name].data)
                named[name].data = view
        self.params = {slot.name: named[slot.name] for slot in self.slots}

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        """Return each tensor as a part of a vector like this model's."""
        return {slot.name: vector[slot.start : slot.stop].view(slot.shape) for slot in self.slots}

    def set_training(self) -> None:
        """Switch to training mode, except what was in eval mode from the start."""
        self.module.train()
        for module in self._still:
            module.training = False

    def card(self) -> ModelCard:
        """Return names, shapes and the hash of frozen weights, as they were when this model was made."""
        return ModelCard(
            names=tuple(slot.name for slot in self.travelling_slots),
            shapes=tuple(slot.shape for slot in self.travelling_slots),
            frozen=self._frozen_hash,
        )


def _slots_of(module: nn.Module, personal: Sequence[str]) -> tuple[Slot, ...]:
    """The slots of all trainable parameters, those that travel first, or ConfigError."""
    lazy = [name for name, p in module.named_parameters() if isinstance(p, nn.parameter.UninitializedParameter)]
    if lazy:
        raise ConfigError(f"{lazy[0]} has no shape yet: run the module once on an example before it is handed over")
    named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    wrong = [f"{name} ({p.dtype})" for name, p in named if p.dtype != torch.float32 or p.is_sparse]
    if wrong:
        raise ConfigError(f"parameters that are trained must be dense float32: {', '.join(wrong)}")
    unused = [pattern for pattern in personal if not any(fnmatch.fnmatchcase(name, pattern) for name, _ in named)]
    if unused:
        raise ConfigError(f"personal={unused[0]!r} matches no trainable parameter of {', '.join(n for n, _ in named)}")
    own = {name for name, _ in named if any(fnmatch.fnmatchcase(name, pattern) for pattern in personal)}
    if len(own) == len(named):
        raise ConfigError("no parameter is left to travel: set requires_grad, or make fewer of them personal")
    named.sort(key=lambda pair: pair[0] in own)
    slots: list[Slot] = []
    for name, p in named:
        slots.append(Slot(name, tuple(p.shape), slots[-1].stop if slots else 0, p.numel(), name in own))
    return tuple(slots)


def _tied_names(module: nn.Module) -> tuple[str, ...]:
    first = {name for name, _ in module.named_parameters()}
    return tuple(name for name, _ in module.named_parameters(remove_duplicate=False) if name not in first)


def _hash_of_frozen(module: nn.Module) -> str:
    """Hash names, shapes, types and bytes of everything that is not trained but gives the model its meaning."""
    digest = hashlib.blake2b(digest_size=16)
    for name, value in _frozen(module):
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}\0".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _frozen(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from ((name, p) for name, p in module.named_parameters() if not p.requires_grad)
    kept = set(module.state_dict())
    for name, value in module.named_buffers():
        home, _, leaf = name.rpartition(".")
        if name in kept and not (leaf in _STATISTICS and _is_local(module.get_submodule(home))):
            yield name, value


def local_statistics(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Return the running statistics that stay on the device, by name."""
    return [
        (name, value)
        for name, value in module.named_buffers()
        if name.rpartition(".")[2] in _STATISTICS and _is_local(module.get_submodule(name.rpartition(".")[0]))
    ]


def _is_local(layer: nn.Module) -> bool:
    """Whether a layer's running statistics stay on the device: unless its weights are frozen, as in a backbone."""
    weights = list(layer.parameters(recurse=False))
    return not weights or any(p.requires_grad for p in weights)
