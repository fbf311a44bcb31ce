"""The coordinator's books on one device: which chunks of which of its stores the global model holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from ofl_iot.ids import DeviceId
from ofl_iot.protocol.lives import Account, StoreId
from ofl_iot.protocol.messages import Books
from ofl_iot.protocol.seqset import SeqSet
from ofl_iot.roles.storage import Put, Stored

LIVES = "coordinator.lives"
SETTLED = "coordinator.settled"
"""Where the version before kept which chunks are settled."""
_MOST_FORMER = 4
"""Former stores that are remembered: leaders may still hold chunks of them."""


class SettledRecord(msgspec.Struct, frozen=True, array_like=True):
    """A value; every change gives new books."""

    store: StoreId = b""
    """The store that the device announced last."""
    settled: SeqSet = SeqSet()
    """The chunks of that store that the global model holds."""
    account: Account = Account()
    """The furthest that anybody has seen the device's ledger."""
    former: tuple[tuple[bytes, SeqSet], ...] = ()
    """The same for stores it had before, the last one first."""

    def with_store(self, store: bytes) -> SettledRecord:
        """Return the books after the device announced a store.

        One that lost a store of which chunks are settled has a past, even if nobody saw its ledger.
        """
        if not store or store == self.store:
            return self
        others = dict(self.former)
        settled = others.pop(store, SeqSet())
        account = self.account
        if self.settled != SeqSet() or self.store:
            others = {self.store: self.settled, **others}
            if self.settled != SeqSet():
                account = account.latest(Account(version=1))
        return SettledRecord(store, settled, account, tuple(others.items())[:_MOST_FORMER])

    def settled_of(self, store: bytes) -> SeqSet:
        """Return what is settled of a store; of the present one if a leader of the version before names none."""
        if store in (b"", self.store):
            return self.settled
        return dict(self.former).get(store, SeqSet())

    def settle(self, seqs: Iterable[int], store: bytes = b"", account: Account | None = None) -> SettledRecord:
        """Return the books after more chunks became part of the global model."""
        known = self.account.latest(account or Account())
        settled = self.settled_of(store).union(seqs).closing_gaps()
        if store in (b"", self.store):
            return msgspec.structs.replace(self, settled=settled, account=known)
        former = {**dict(self.former), store: settled}
        return msgspec.structs.replace(self, former=tuple(former.items())[:_MOST_FORMER], account=known)


def books_message(completed: int, books: Mapping[str, SettledRecord]) -> Books:
    """Return what is published about the books, for a coordinator that takes over."""
    return Books(
        completed,
        {device: each.settled for device, each in books.items() if each.settled != SeqSet()},
        {device: each.store for device, each in books.items() if each.store},
        {device: each.account for device, each in books.items() if each.account != Account()},
    )


def records_from(message: Books) -> dict[str, SettledRecord]:
    """Return the books that `books_message` told of."""
    devices = message.settled.keys() | message.stores.keys() | message.accounts.keys()
    return {
        device: SettledRecord(
            message.stores.get(device, b""),
            message.settled.get(device, SeqSet()),
            message.accounts.get(device, Account()),
        )
        for device in sorted(devices)
    }


def stored_record(device: str, books: SettledRecord) -> Put:
    """Return what makes the books on a device durable."""
    return Put(LIVES, device, msgspec.msgpack.encode(books))


def restored(stored: Stored) -> dict[DeviceId, SettledRecord]:
    """Return the books of an earlier process, of this version or the one before."""
    books = {
        DeviceId(str(device)): SettledRecord(settled=msgspec.msgpack.decode(row, type=SeqSet))
        for device, row in stored.get(SETTLED, {}).items()
    }
    for device, row in stored.get(LIVES, {}).items():
        books[DeviceId(str(device))] = msgspec.msgpack.decode(row, type=SettledRecord)
    return books
