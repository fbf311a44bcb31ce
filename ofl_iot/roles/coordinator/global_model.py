"""The global model at the coordinator: its versions, what they settle, how they are published and stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import numpy as np

from ofl_iot.errors import ConfigError
from ofl_iot.ids import COORDINATOR
from ofl_iot.protocol.codec import encode_body
from ofl_iot.protocol.messages import Books, Inclusion, Manifest
from ofl_iot.protocol.parts import digest_of, split_body
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.roles.commands import Command, Publish
from ofl_iot.roles.coordinator.takeover import TakeoverState
from ofl_iot.roles.events import Vector
from ofl_iot.roles.storage import Put, Stored, StoreOp

TABLE = "coordinator.model"
_STAGE = "global"


class GlobalModel:
    """One vector, versioned by the round that made it."""

    def __init__(
        self,
        digest: bytes,
        initial: Vector,
        highest_term: Callable[[], int] = lambda: 0,
        books: Callable[[], Books] = lambda: Books(0, {}),
    ) -> None:
        self.digest = digest
        self.incarnation = b""
        """Incarnation of the coordinator; with it and the highest term it signs its manifests."""
        self._highest_term = highest_term
        self._claimed = 0
        """The highest term that a manifest has said."""
        self._books = books
        self.values: Vector = initial.astype(np.float32)
        self._manifest = self._describe(0, (), final=False)

    @property
    def final(self) -> bool:
        """Whether the last round is closed."""
        return self._manifest.final

    @property
    def round_no(self) -> int:
        """The round that made the present version; 0 for the initial model."""
        return self._manifest.round_no

    @property
    def manifest(self) -> Manifest:
        """What is published about the present version."""
        return self._signed(encode_body(self._books()))

    def restore(self, stored: Stored) -> bool:
        """Take up a stored version; False when there is none."""
        rows = stored.get(TABLE, {})
        if "manifest" not in rows:
            return False
        manifest = msgspec.msgpack.decode(rows["manifest"], type=Manifest)
        if (manifest.model, manifest.size) != (self.digest, len(self.values)):
            raise ConfigError(
                f"the stored global model has {manifest.size} parameters and is another one than is to be learnt now "
                f"({len(self.values)} parameters): choose another state folder, or the settings it was made with"
            )
        self._manifest = manifest
        self.values = np.frombuffer(rows["values"], np.float32).copy()
        return True

    def advance(
        self,
        values: Vector,
        round_no: int,
        included: tuple[Inclusion, ...],
        in_office: Callable[[str], bool],
        *,
        final: bool,
    ) -> None:
        """The next version. The manifest keeps the last inclusion of every leader in office."""
        self.values = values
        latest = {each.leader: each for each in (*self._manifest.included, *included)}
        kept = tuple(each for leader, each in sorted(latest.items()) if in_office(leader))
        self._manifest = self._describe(round_no, kept, final=final)

    def inherit(self, left: TakeoverState) -> tuple[StoreOp, ...]:
        """Go on from the model of a coordinator before this one; its leaders get new terms, so none is included."""
        self.values = left.values
        self._manifest = self._describe(left.manifest.round_no, (), final=left.manifest.final)
        return self.stored()

    def conclude(self) -> None:
        """There will be no other version."""
        self._manifest = msgspec.structs.replace(self._manifest, final=True)

    def publish(self) -> Iterator[Command]:
        """The parts first, the manifest last: who has read the manifest finds all parts."""
        for part in split_body(self._body(), 0, self._manifest.round_no, _STAGE):
            yield Publish(Topic(Kind.GLOBAL_PART, COORDINATOR, index=part.part), part, retain=True)
        books = encode_body(self._books())
        for part in split_body(books, 0, self._manifest.round_no, _STAGE):
            yield Publish(Topic(Kind.BOOKS, COORDINATOR, index=part.part), part, retain=True)
        yield self._say(self._signed(books))

    def claim_term(self) -> Iterator[Command]:
        """Say which term is the highest, if that is news: who takes over must begin above all that leaders heard of."""
        if self._highest_term() > self._claimed:
            yield self._say(self.manifest)

    def _say(self, manifest: Manifest) -> Publish:
        self._claimed = manifest.term
        return Publish(Topic(Kind.MANIFEST, COORDINATOR), manifest, retain=True)

    def stored(self) -> tuple[StoreOp, ...]:
        """What must survive a restart."""
        return (
            Put(TABLE, "values", self.values.tobytes()),
            Put(TABLE, "manifest", msgspec.msgpack.encode(self._manifest)),
        )

    def _signed(self, books: bytes) -> Manifest:
        return msgspec.structs.replace(
            self._manifest, term=self._highest_term(), incarnation=self.incarnation, books=digest_of(books)
        )

    def _describe(self, round_no: int, included: tuple[Inclusion, ...], *, final: bool) -> Manifest:
        return Manifest(
            round_no=round_no,
            model=self.digest,
            size=len(self.values),
            digest=digest_of(self._body()),
            included=included,
            final=final,
        )

    def _body(self) -> bytes:
        return self.values.astype("<f4").tobytes()
