"""What tells the lives of a device apart: which store it writes to, and how far its privacy ledger has come.

A store that is lost and made anew numbers its chunks from 1 again; its identity keeps the numbers of both apart. A
store that is brought back in an older state is known by its ledger: others have seen a later one.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

StoreId = Annotated[bytes, msgspec.Meta(max_length=16)]
"""Drawn when a store is made; empty for stores of the version before."""
_Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]


class Account(msgspec.Struct, frozen=True, array_like=True):
    """How far a device's privacy ledger has come; both numbers only grow."""

    version: _Count = 0
    """Payments entered."""
    paid_steps: _Count = 0
    """Training steps paid for."""

    def latest(self, other: Account) -> Account:
        """Return the later of both numbers."""
        return Account(max(self.version, other.version), max(self.paid_steps, other.paid_steps))

    def behind(self, other: Account) -> bool:
        """Return whether the other has seen something that this one has not."""
        return self.version < other.version or self.paid_steps < other.paid_steps
