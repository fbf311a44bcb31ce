"""Gradients of single records in the form in which a layer gives them: squared norms and weighted sums, seldom whole.

All tensors begin with the dimension of records. Norms may be too large by rounding, never too small by more than a
few units in the last place: what is computed from Gram matrices ("ghost norms") subtracts large numbers, so a bound of
its rounding error is added.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

LARGE_BYTES = 64 << 20
"""Most bytes for the whole gradients of one layer; beyond them norms are computed without."""

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
    sum needs anyway: Gram matrices pay if T²·(d + p) <= 4·d·p, and where the gradients would be too large.
    """

    def __init__(self, inputs: Tensor, errors: Tensor) -> None:
        self.inputs, self.errors = inputs, errors
        self._whole: Tensor | None = None

    def joined(self, other: Outer) -> Outer:
        """Return the sum with another use of the same parameter."""
        return Outer(torch.cat([self.inputs, other.inputs], 1), torch.cat([self.errors, other.errors], 1))

    def whole(self) -> Tensor:
        """Return every record's gradient: (records, outputs, inputs)."""
        if self._whole is None:
            self._whole = self.errors.transpose(1, 2) @ self.inputs
        return self._whole

    def squares(self) -> Tensor:
        """Return every record's squared norm, by the cheapest of three ways."""
        a, g = self.inputs, self.errors
        if a.shape[1] == 1:
            return squared_norms(a) * squared_norms(g)
        gram = a.shape[1] ** 2 * (a.shape[2] + g.shape[2])
        size = a.shape[2] * g.shape[2]
        if gram > 4 * size and 4 * len(a) * size <= LARGE_BYTES:
            return squared_norms(self.whole())
        products = ((a @ a.transpose(1, 2)) * (g @ g.transpose(1, 2))).sum((1, 2))
        bound = (torch.linalg.vector_norm(a, dim=2) * torch.linalg.vector_norm(g, dim=2)).sum(1).square()
        return products.clamp(min=0) + _ROUNDING * bound

    def add_to(self, total: Tensor, scale: Tensor) -> None:
        """Add the weighted sum, from whole gradients only if they are there already."""
        if self._whole is not None:
            total.view(-1).addmv_(self._whole.flatten(1).t(), scale)
            return
        errors = (self.errors * scale[:, None, None]).flatten(0, 1)
        total.view(errors.shape[1], -1).addmm_(errors.t(), self.inputs.flatten(0, 1))


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
