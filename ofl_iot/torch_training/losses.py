"""The loss of each record, computed from its own output and target alone."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - everybody's name for it
from torch import Tensor, nn
from torch.func import vmap

Loss = Callable[[Any, Any], Any]
"""loss(outputs, targets): a mean or a sum over records, or one value a record."""

_KNOWN: set[Any] = {
    F.cross_entropy, F.nll_loss, F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss,
    F.binary_cross_entropy_with_logits, F.binary_cross_entropy, F.poisson_nll_loss,
}  # fmt: skip
"""Functions that give one loss a record with reduction="none": faster than vmap."""
_HARMLESS = {"label_smoothing", "beta", "delta", "log_input", "full", "eps"}
"""Their options that mean the same for one record as for many."""
_MODULES: dict[Any, Any] = {
    nn.CrossEntropyLoss: F.cross_entropy,
    nn.MSELoss: F.mse_loss,
    nn.L1Loss: F.l1_loss,
    nn.BCEWithLogitsLoss: F.binary_cross_entropy_with_logits,
}


class RecordLosses:
    """Losses of single records: each as a batch of one, so means, sums and vectors are all the same."""

    def __init__(self, loss: Loss) -> None:
        self.loss = loss
        self._known = _reduced_by_none(loss)
        self._batched = vmap(self._of_one, randomness="different")
        self._by_vmap = True

    def alone(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of a batch of one record."""
        return self.loss(outputs, targets).sum()

    def each(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each record."""
        simple = (targets.dim() == 1 and outputs.dim() == 2) or targets.shape == outputs.shape
        if self._known is not None and simple:
            losses = self._known(outputs, targets)
            return losses if losses.dim() == 1 else losses.flatten(1).mean(1)
        if self._by_vmap:
            try:
                return self._batched(outputs, targets)
            except Exception:  # noqa: BLE001 - whatever a loss does under vmap; alone it may work, or raise what it must
                self._by_vmap = False
        pairs = zip(outputs.split(1), targets.split(1), strict=True)
        return torch.stack([self.alone(*pair) for pair in pairs])

    def _of_one(self, outputs: Tensor, target: Tensor) -> Tensor:
        return self.alone(outputs.unsqueeze(0), target.unsqueeze(0))


def _reduced_by_none(loss: Any) -> Callable[[Tensor, Tensor], Tensor] | None:
    """The same loss with one value a record, where that is known to mean the same."""
    if isinstance(loss, nn.Module):
        options = vars(loss)
        usual = options.get("reduction") == "mean" and not list(loss.buffers())
        special = options.get("label_smoothing") or options.get("ignore_index", -100) != -100
        known = _MODULES.get(type(loss)) if usual and not special else None
        return None if known is None else functools.partial(known, reduction="none")
    if isinstance(loss, functools.partial):
        if loss.func in _KNOWN and not loss.args and set(loss.keywords) <= _HARMLESS:
            return functools.partial(loss, reduction="none")
        return None
    known = loss if loss in _KNOWN else None
    return None if known is None else functools.partial(known, reduction="none")
