"""What a role asks to be remembered, as values; the runtime's store carries them out as durable transactions.

A store is a set of named tables, each a map from a key to bytes. A role decides what it stores under which
key; the store knows nothing of its meaning.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec

Key: TypeAlias = int | str
"""A whole number of 64 bits with sign (sequence, round, term) or a text (id, name)."""

Stored: TypeAlias = Mapping[str, Mapping[Key, bytes]]
"""All that is stored: table -> key -> value; tables by name, keys as `in_key_order`. No table is empty."""


class Put(msgspec.Struct, frozen=True, gc=False):
    """Store `value` under `key`, in place of what was there."""

    table: str
    key: Key
    value: bytes

    def __post_init__(self) -> None:
        _check_name(self.table, self.key)
        if type(self.value) is not bytes:
            raise TypeError(f"a stored value is bytes, not {type(self.value).__name__}")


class Delete(msgspec.Struct, frozen=True, gc=False):
    """Forget `key`; a key that is not there is no error."""

    table: str
    key: Key
    wipe: bool = False
    """Whether its value must not be readable in the store's files afterwards, as a key's must not."""

    def __post_init__(self) -> None:
        _check_name(self.table, self.key)


class DeleteTable(msgspec.Struct, frozen=True, gc=False):
    """Forget all keys of a table."""

    table: str

    def __post_init__(self) -> None:
        _check_name(self.table, 0)


StoreOp: TypeAlias = Put | Delete | DeleteTable
"""One step of a transaction; a store applies a sequence of them in order, all or none."""


ASIDE = "aside"
"""Rows that could not be read, as they were, under their table and key; nobody reads them again."""


def set_aside(table: str, rows: Mapping[Key, bytes]) -> tuple[StoreOp, ...]:
    """Move rows of a table out of the way, so that what cannot be read stops nobody at every start."""
    moves = ((Delete(table, key), Put(ASIDE, f"{table}/{key}", value)) for key, value in rows.items())
    return tuple(op for move in moves for op in move)


def in_key_order(keys: Iterable[Key]) -> list[Key]:
    """Sort keys as every store returns them: whole numbers ascending, then texts by code point."""
    return sorted(keys, key=lambda key: (isinstance(key, str), key))


def _check_name(table: str, key: Key) -> None:
    """Refuse what only some stores could hold, so that no transaction fails by its content."""
    if type(key) is int:
        if not -(1 << 63) <= key < 1 << 63:
            raise ValueError(f"the key {key} of table {table!r} has more than 64 bits")
    elif not isinstance(key, str):
        raise TypeError(f"a key of table {table!r} is an int or a str, not {type(key).__name__}")
    else:
        key.encode()
    table.encode()
