"""What a leader knows of its members' stores and ledgers, and tells them back, so that a loss is noticed."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ofl_iot.errors import LateError
from ofl_iot.protocol.chunks import Chunk
from ofl_iot.protocol.lives import Account
from ofl_iot.protocol.messages import Member, Settlement


class MemberLives:
    """The present store and the furthest ledger of each member."""

    def __init__(self) -> None:
        self._stores: dict[str, bytes] = {}
        """As the coordinator says; from one of the version before, as the device's last chunk says."""
        self._said: dict[str, bytes] = {}
        self._accounts: dict[str, Account] = {}

    def admit(self, members: Iterable[Member]) -> None:
        """Take up what the coordinator says of the members."""
        for member in members:
            self._stores[member.device] = member.store
            self._accounts[member.device] = self.account_of(member.device).latest(member.account)

    def check(self, device: str, chunk: Chunk) -> None:
        """Raise LateError for a chunk of another store than the coordinator knows of: its books are elsewhere."""
        known = self._stores.get(device, b"")
        if known and chunk.store != known:
            raise LateError(f"a chunk of another store of {device} than the coordinator knows of")

    def heard(self, device: str, chunk: Chunk) -> None:
        """Note how far the device's ledger had come when it released a chunk."""
        self._said[device] = chunk.store
        self._accounts[device] = self.account_of(device).latest(chunk.account)

    def store_of(self, device: str) -> bytes:
        """The device's present store."""
        return self._stores.get(device, b"") or self._said.get(device, b"")

    def account_of(self, device: str) -> Account:
        """The furthest that the device's ledger was seen."""
        return self._accounts.get(device, Account())

    def accounted(self, settlement: Settlement) -> Settlement:
        """A settlement with the device's account, for the coordinator's books."""
        return msgspec.structs.replace(settlement, account=self.account_of(settlement.device))

    def snapshot(self) -> bytes:
        """What must survive a restart."""
        return msgspec.msgpack.encode((self._accounts, self._said))

    def restore(self, stored: bytes | None) -> None:
        """Take a snapshot up; the version before stored none."""
        if stored is not None:
            accounts, self._said = msgspec.msgpack.decode(stored, type=tuple[dict[str, Account], dict[str, bytes]])
            for device, account in accounts.items():
                self._accounts[device] = self.account_of(device).latest(account)
