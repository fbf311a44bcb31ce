"""Rules for nn.LSTM, nn.GRU and nn.RNN: unrolled, so that the error at each gate is seen and vmap can run them.

The input's product is computed for all times at once and tapped once a layer and direction: the error at the input's
gates is the error at the recurrent gates, too (for a GRU's candidate times its reset gate).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - everybody's name for it
from torch import Tensor

from ofl_iot.torch_training.gradients import Direct, Gradient, Outer
from ofl_iot.torch_training.tap_dense import Function
from ofl_iot.torch_training.taps import Taps, UnsupportedError, Use


class RecurrentUse(Use):
    """One direction of one layer: W of inputs, W of states, and their biases; tensors are (time, records, …)."""

    def __init__(self, names: Sequence[str | None], inputs: Tensor) -> None:
        super().__init__(names, inputs)
        self.states: Tensor | None = None
        """The state before each time."""
        self.resets: Tensor | None = None
        """A GRU's reset gates."""

    def parts(self, error: Tensor, count: int) -> Sequence[Gradient | None]:
        """Return Σ over times of error ⊗ input, error ⊗ state, and of both errors."""
        if self.layout != "second" or self.states is None:
            raise UnsupportedError(f"{self.name}: records are not where a recurrent layer has them")
        again = error
        if self.resets is not None:
            gates = 2 * self.resets.shape[-1]
            again = torch.cat([error[..., :gates], error[..., gates:] * self.resets], -1)
        errors, again = self.records_first(error, count), self.records_first(again, count)
        inputs, states = self.records_first(self.inputs, count), self.records_first(self.states, count)
        return Outer(inputs, errors), Outer(states, again), Direct(errors.sum(1)), Direct(again.sum(1))


@dataclass(frozen=True)
class Cell:
    """How one time follows another: (input's gates, recurrent gates, states) -> (new states, reset gate or None)."""

    states: int
    step: Callable[[Tensor, Tensor, list[Tensor]], tuple[list[Tensor], Tensor | None]]


def _lstm_step(gates: Tensor, again: Tensor, states: list[Tensor]) -> tuple[list[Tensor], None]:
    keep, forget, candidate, out = (gates + again).chunk(4, -1)
    c = forget.sigmoid() * states[1] + keep.sigmoid() * candidate.tanh()
    return [out.sigmoid() * c.tanh(), c], None


def _gru_step(gates: Tensor, again: Tensor, states: list[Tensor]) -> tuple[list[Tensor], Tensor]:
    both = 2 * states[0].shape[-1]
    reset, update = (gates[..., :both] + again[..., :both]).sigmoid().chunk(2, -1)
    candidate = (gates[..., both:] + reset * again[..., both:]).tanh()
    return [candidate + update * (states[0] - candidate)], reset


def _tanh_step(gates: Tensor, again: Tensor, states: list[Tensor]) -> tuple[list[Tensor], None]:  # noqa: ARG001
    return [(gates + again).tanh()], None


def _relu_step(gates: Tensor, again: Tensor, states: list[Tensor]) -> tuple[list[Tensor], None]:  # noqa: ARG001
    return [(gates + again).relu()], None


_VF = torch._VF  # noqa: SLF001 - what nn.LSTM and its kin call; there is no public name
CELLS = {
    _VF.lstm: Cell(2, _lstm_step),
    _VF.gru: Cell(1, _gru_step),
    _VF.rnn_tanh: Cell(1, _tanh_step),
    _VF.rnn_relu: Cell(1, _relu_step),
}


def recurrent(taps: Taps, func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:  # noqa: ARG001
    """The function behind nn.LSTM, nn.GRU and nn.RNN, layer by layer."""
    if len(args) != 9 or not isinstance(args[8], bool) or args[0].dim() != 3:
        raise UnsupportedError("a recurrent layer with packed sequences or without a batch")
    x, start, weights, biased, layers, dropout, training, both_ways, batch_first = args
    cell = CELLS[func]
    first = list(start) if cell.states == 2 else [start]
    if cell.states == 2 and weights[0].shape[0] != 4 * weights[1].shape[1]:
        raise UnsupportedError("a recurrent layer with projections")
    x = x.transpose(0, 1) if batch_first else x
    each, directions = (4 if biased else 2), (2 if both_ways else 1)
    ends: list[list[Tensor]] = []
    for layer in range(layers):
        outputs = []
        for backwards in range(directions):
            place = layer * directions + backwards
            parameters = [*weights[place * each : (place + 1) * each], None, None][:4]
            seen = x.flip(0) if backwards else x
            made, end = _run(taps, cell, seen, parameters, [state[place] for state in first])
            outputs.append(made.flip(0) if backwards else made)
            ends.append(end)
        x = torch.cat(outputs, 2) if both_ways else outputs[0]
        if dropout and training and layer < layers - 1:
            x = F.dropout(x, dropout)
    x = x.transpose(0, 1) if batch_first else x
    return (x, *(torch.stack([end[state] for end in ends]) for state in range(cell.states)))


def _run(taps: Taps, cell: Cell, x: Tensor, parameters: list[Any], states: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Run one layer in one direction over (time, records, inputs); return outputs of all times and the last states."""
    names = [taps.name(p) for p in parameters]
    w_input, w_state, b_input, b_state = map(taps.constant, parameters) if taps.tapped else parameters
    before, use = F.linear(x, w_input, b_input), None
    if taps.tapped and any(names):
        use = RecurrentUse(names, x)
        before = taps.tap(use, before)
    outputs, seen, resets = [], [], []
    turned = w_state.t()
    for gates in before.unbind(0):
        seen.append(states[0].detach())
        again = states[0] @ turned if b_state is None else torch.addmm(b_state, states[0], turned)
        states, reset = cell.step(gates, again, states)
        outputs.append(states[0])
        if reset is not None:
            resets.append(reset.detach())
    if use is not None:
        use.states = torch.stack(seen)
        use.resets = torch.stack(resets) if resets else None
    return torch.stack(outputs), states


RULES: dict[Any, Any] = dict.fromkeys(CELLS, recurrent)
