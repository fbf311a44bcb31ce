"""What every part of a fleet view is made of."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

Value: TypeAlias = str | int | float | None
Values: TypeAlias = dict[str, Value]


class Base(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the view: frozen, built by keyword, an object in JSON."""
