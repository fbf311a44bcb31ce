"""What a joint key was used for, as long as it lives: durable, so that no restart lets it be used again.

A ciphertext is answered for one request only, in whatever round it comes back. Models and numbers that were decrypted
are counted; beyond the budget (`ofl_iot.crypto.lean.budget`) the key answers nothing, and another one must be made.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ofl_iot.crypto.lean.budget import SCALAR_BUDGET, exposure, model_requests
from ofl_iot.errors import RefusedError
from ofl_iot.roles.job_kinds.keys import KeyMaterial
from ofl_iot.roles.storage import DeleteTable, Put, Stored, StoreOp

TABLE = "keeper.usage"
_CIPHERTEXT = "c."


class Signed(msgspec.Struct, frozen=True, array_like=True):
    """The one vector that was signed for a body."""

    header: bytes
    statement: bytes


class Spent(msgspec.Struct, frozen=True, array_like=True):
    """What was decrypted under a key."""

    models: int = 0
    scalars: int = 0


class KeyUsage:
    """The record of one key."""

    def __init__(self) -> None:
        self._key_id = b""
        self._ciphertexts: set[str] = set()
        self._spent = Spent()
        self._signed: Signed | None = None

    def restore(self, stored: Stored) -> None:
        """Take up what an earlier process left."""
        rows = stored.get(TABLE, {})
        self._key_id = rows.get("key", b"")
        self._ciphertexts = {str(name)[len(_CIPHERTEXT) :] for name in rows if str(name).startswith(_CIPHERTEXT)}
        self._spent = msgspec.msgpack.decode(rows["spent"], type=Spent) if "spent" in rows else Spent()
        self._signed = msgspec.msgpack.decode(rows["signed"], type=Signed) if "signed" in rows else None

    def answered(self, key: KeyMaterial, ciphertext: str) -> bool:
        """Whether this ciphertext was answered under the key before."""
        return key.key_id == self._key_id and ciphertext in self._ciphertexts

    def check_models(self, key: KeyMaterial, rows: int) -> None:
        """Refuse to decrypt a model of so many ciphertexts beyond the budget."""
        if not self.may_decrypt(key, rows):
            raise RefusedError(
                f"the key of term {key.opened.term} has decrypted {self._spent.models} models: make another one"
            )

    def check_scores(self, key: KeyMaterial) -> None:
        """Refuse scores of a lean round beyond the budget."""
        if not self.may_score(key):
            raise RefusedError(
                f"the key of term {key.opened.term} has shown {self._spent.scalars} numbers: make another one"
            )

    def may_decrypt(self, key: KeyMaterial, rows: int) -> bool:
        """Whether a model of so many ciphertexts is within what is left; asked again before an answer leaves."""
        return key.key_id != self._key_id or self._spent.models < model_requests(rows)

    def may_score(self, key: KeyMaterial) -> bool:
        """Whether the scores of a lean round are within what is left; asked again before an answer leaves."""
        shown = self._spent.scalars if key.key_id == self._key_id else 0
        return shown + exposure(len(key.opened.members), key.opened.threshold) <= SCALAR_BUDGET

    def model_answered(self, key: KeyMaterial, ciphertext: str, rows: int) -> Iterator[StoreOp]:
        """Note a decrypted model, or scores under the set `main`, which have no rows."""
        yield from self._begin(key)
        self._spent = msgspec.structs.replace(self._spent, models=self._spent.models + bool(rows))
        yield from self._answered(ciphertext)

    def scores_answered(self, key: KeyMaterial, ciphertext: str) -> Iterator[StoreOp]:
        """Note the numbers of a lean round."""
        yield from self._begin(key)
        shown = exposure(len(key.opened.members), key.opened.threshold)
        self._spent = msgspec.structs.replace(self._spent, scalars=self._spent.scalars + shown)
        yield from self._answered(ciphertext)

    def may_sign(self, key: KeyMaterial, header: bytes, statement: bytes) -> bool:
        """Whether no other vector was signed for this body."""
        held = self._signed if key.key_id == self._key_id else None
        return held is None or held.header != header or held.statement == statement

    def has_signed(self, key: KeyMaterial, header: bytes, statement: bytes) -> bool:
        """Whether this very vector was signed for this body."""
        return key.key_id == self._key_id and self._signed == Signed(header, statement)

    def vector_signed(self, key: KeyMaterial, header: bytes, statement: bytes) -> Iterator[StoreOp]:
        """Note the vector that is signed for a body."""
        yield from self._begin(key)
        self._signed = Signed(header, statement)
        yield Put(TABLE, "signed", msgspec.msgpack.encode(self._signed))

    def _begin(self, key: KeyMaterial) -> Iterator[StoreOp]:
        """Another key begins another record."""
        if key.key_id != self._key_id:
            self._key_id, self._ciphertexts, self._spent, self._signed = key.key_id, set(), Spent(), None
            yield DeleteTable(TABLE)
            yield Put(TABLE, "key", key.key_id)

    def _answered(self, ciphertext: str) -> Iterator[StoreOp]:
        self._ciphertexts.add(ciphertext)
        yield Put(TABLE, _CIPHERTEXT + ciphertext, b"")
        yield Put(TABLE, "spent", msgspec.msgpack.encode(self._spent))
