"""Which store a party writes to: drawn when the store is made, kept in it, so that a lost one is never taken for it."""

from __future__ import annotations

from ofl_iot.roles.storage import Put, Stored, StoreOp

TABLE = "store"


class StoreIdentity:
    """The identity of one party's store, shared by its roles."""

    def __init__(self, drawn: bytes = b"") -> None:
        """`drawn` becomes the identity of a store that is empty."""
        self._drawn = drawn
        self.id = b""
        """Empty before the start, and for a store of the version before."""

    def restore(self, stored: Stored) -> list[StoreOp]:
        """Read the identity; for an empty store, return what makes the drawn one durable."""
        rows = stored.get(TABLE, {})
        if "id" in rows:
            self.id = rows["id"]
        elif self._drawn and not any(stored.values()):
            self.id = self._drawn
            return [Put(TABLE, "id", self.id)]
        return []

    def is_ours(self, store: bytes) -> bool:
        """Return whether a message is about this store; the version before names none."""
        return store in (b"", self.id)
