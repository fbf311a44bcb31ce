"""Gradients of single records in the form in which a layer gives them: squared norms and weighted sums, seldom whole.

All tensors begin with the dimension of records. Norms may be too large by rounding, never too small by more than a
few units in the last place: what is computed from Gram matrices ("ghost norms") subtracts large numbers, so a bound of
its rounding error is added.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

LARGE_BYTES = 30 << 20
"""Most bytes for what is made of one layer at a time: whole gradients, Gram matrices, unfolded inputs."""
BLOCK_BYTES = 8 << 20
"""Most bytes of unfolded inputs at a time: they stay in the cache, and their memory is used again."""

_ROUNDING = 2.0**-22
"""Bound of the relative error of a float32 product of two dot products: four units in the last place."""


def squared_norms(values: Tensor) -> Tensor:
    """Return the squared norm of each record's part of (records, …), row by row: no copy, little rounding."""
    rows = torch.linalg.vector_norm(values, dim=-1)
    return rows.flatten(1).square().sum(1) if rows.dim() > 1 else rows.square()


class Gradient(Protocol):
    """The gradient of one parameter for each record."""

    def whole(self) -> Tensor:
        """Return every record's gradient: (records, …)."""
        ...

    def squares(self) -> Tensor:
        """Return every record's squared norm."""
        ...

    def add_to(self, total: Tensor, scale: Tensor) -> None:
        """Add Σ scaleᵢ · gradientᵢ to `total`, which has the parameter's shape."""
        ...


class Outer:
    """Σ over places of error ⊗ input: dense and convolutional layers.

    With T places, d inputs and p outputs the Gram matrices cost T²·(d + p) a record and the gradient T·d·p, which the
    sum needs anyway: Gram matrices pay if T²·(d + p) <= 4·d·p. Gradients that would be too large together are made
    for a few records at a time, and the sum is computed without them.
    """

    def __init__(self, inputs: Tensor, errors: Tensor) -> None:
        self.errors = errors
        self._inputs = inputs
        self._whole: Tensor | None = None

    @property
    def width(self) -> int:
        """Number of inputs at a place."""
        return int(self._inputs.shape[2])

    def inputs_of(self, rows: slice) -> Tensor:
        """Return the inputs of some records: (records, places, inputs)."""
        return self._inputs[rows]

    def joined(self, other: Outer) -> Outer:
        """Return the sum with another use of the same parameter."""
        inputs = [each.inputs_of(slice(None)) for each in (self, other)]
        return Outer(torch.cat(inputs, 1), torch.cat([self.errors, other.errors], 1))

    def whole(self) -> Tensor:
        """Return every record's gradient: (records, outputs, inputs)."""
        if self._whole is None:
            self._whole = self._whole_of(slice(None))
        return self._whole

    def _whole_of(self, rows: slice) -> Tensor:
        return self.errors[rows].transpose(1, 2) @ self.inputs_of(rows)

    def squares(self) -> Tensor:
        """Return every record's squared norm, by the cheapest of three ways."""
        count, places, outputs = self.errors.shape
        if places == 1:
            return squared_norms(self.inputs_of(slice(None))) * squared_norms(self.errors)
        size, gram = self.width * outputs, places * (self.width + outputs)
        if places * gram > 4 * size and 4 * count * size <= LARGE_BYTES:
            return squared_norms(self.whole())
        if gram <= size:
            return torch.cat([self._squares_by_gram(rows) for rows in self._chunks(2 * places * places)])
        return torch.cat([squared_norms(self._whole_of(rows)) for rows in self._chunks(size)])

    def _squares_by_gram(self, rows: slice) -> Tensor:
        a, g = self.inputs_of(rows), self.errors[rows]
        products = ((a @ a.transpose(1, 2)) * (g @ g.transpose(1, 2))).sum((1, 2))
        bound = (torch.linalg.vector_norm(a, dim=2) * torch.linalg.vector_norm(g, dim=2)).sum(1).square()
        return products.clamp(min=0) + _ROUNDING * bound

    def _chunks(self, floats: int) -> list[slice]:
        """As many records at a time as fit with so many floats each, and their inputs."""
        count, places, _ = self.errors.shape
        size = max(1, self._room // (4 * (floats + places * self.width)))
        return [slice(start, start + size) for start in range(0, count, size)]

    @property
    def _room(self) -> int:
        return LARGE_BYTES

    def add_to(self, total: Tensor, scale: Tensor) -> None:
        """Add the weighted sum, from whole gradients only if they are there already."""
        if self._whole is not None:
            total.view(-1).addmv_(self._whole.flatten(1).t(), scale)
            return
        for rows in self._chunks(0):
            errors = (self.errors[rows] * scale[rows, None, None]).flatten(0, 1)
            total.view(errors.shape[1], -1).addmm_(errors.t(), self.inputs_of(rows).flatten(0, 1))


class Unfolded(Outer):
    """As `Outer`, with inputs that are made when they are needed: what a kernel sees is larger than the image."""

    def __init__(self, unfold: Callable[[slice], Tensor], width: int, errors: Tensor) -> None:
        super().__init__(None, errors)
        self._unfold, self._width = unfold, width

    @property
    def width(self) -> int:
        """Number of inputs at a place."""
        return self._width

    def inputs_of(self, rows: slice) -> Tensor:
        """Return what the kernel sees of some records: (records, places, inputs)."""
        return self._unfold(rows)

    def whole(self) -> Tensor:
        """Return every record's gradient: (records, outputs, inputs)."""
        if self._whole is None:
            self._whole = self.errors.new_empty(len(self.errors), self.errors.shape[2], self._width)
            for rows in self._chunks(0):
                torch.bmm(self.errors[rows].transpose(1, 2), self._unfold(rows), out=self._whole[rows])
        return self._whole

    @property
    def _room(self) -> int:
        return min(LARGE_BYTES, BLOCK_BYTES)


class Rows:
    """Errors in those rows of a table that a record looked up: embeddings."""

    def __init__(self, rows: Tensor, errors: Tensor, count: int) -> None:
        self.rows, self.errors, self.count = rows, errors, count

    def joined(self, other: Rows) -> Rows:
        """Return the sum with another use of the same table."""
        return Rows(torch.cat([self.rows, other.rows], 1), torch.cat([self.errors, other.errors], 1), self.count)

    def whole(self) -> Tensor:
        """Return every record's gradient: (records, rows, width)."""
        size = len(self.rows)
        table = self.errors.new_zeros(size * self.count, self.errors.shape[2])
        offsets = torch.arange(size, device=self.rows.device)[:, None] * self.count
        table.index_add_(0, (self.rows + offsets).flatten(), self.errors.flatten(0, 1))
        return table.view(size, self.count, -1)

    def squares(self) -> Tensor:
        """Return every record's squared norm: Σ over pairs of places that looked up the same row."""
        same = self.rows[:, :, None] == self.rows[:, None, :]
        lengths = torch.linalg.vector_norm(self.errors, dim=2)
        products = ((self.errors @ self.errors.transpose(1, 2)) * same).sum((1, 2))
        bound = (lengths[:, :, None] * lengths[:, None, :] * same).sum((1, 2))
        return products.clamp(min=0) + _ROUNDING * bound

    def add_to(self, total: Tensor, scale: Tensor) -> None:
        """Add the weighted errors to the rows."""
        total.index_add_(0, self.rows.flatten(), (self.errors * scale[:, None, None]).flatten(0, 1))


class Direct:
    """Every record's gradient as it is: biases, norms and other small parameters."""

    def __init__(self, whole: Tensor) -> None:
        self._whole = whole

    def joined(self, other: Gradient) -> Direct:
        """Return the sum with another use of the same parameter, in whatever form."""
        return Direct(self._whole + other.whole().reshape(self._whole.shape))

    def whole(self) -> Tensor:
        """Return every record's gradient."""
        return self._whole

    def squares(self) -> Tensor:
        """Return every record's squared norm."""
        return squared_norms(self._whole)

    def add_to(self, total: Tensor, scale: Tensor) -> None:
        """Add the weighted sum."""
        total.view(-1).addmv_(self._whole.flatten(1).t(), scale)


def joined(first: Gradient, second: Gradient) -> Gradient:
    """Return the sum of two uses of one parameter, in the cheapest form that both have."""
    if isinstance(first, Outer) and isinstance(second, Outer):
        return first.joined(second)
    if isinstance(first, Rows) and isinstance(second, Rows):
        return first.joined(second)
    return Direct(first.whole()).joined(second)
