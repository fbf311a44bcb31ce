"""How a device follows its leader's changes: applied one after the other, and pulled again when one is missing.

    out of step ─▶ pull all that is stale ─▶ in step at a version ─▶ change, change, … ─▶ a gap: out of step

A device whose plan (Eq. 4) has no room for the changes stays unsubscribed and pulls the stalest blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ofl_iot.crypto.cluster_seal import ClusterSeal, Place
from ofl_iot.errors import CryptoError, LateError, RefusedError
from ofl_iot.ids import DeviceId
from ofl_iot.protocol.chunks import BYTES_PER_PARAMETER, Chunk
from ofl_iot.protocol.codec import decode
from ofl_iot.protocol.messages import Blocks, ClusterChange, Follower
from ofl_iot.protocol.topics import Kind
from ofl_iot.protocol.values import BYTES_PER_VALUE
from ofl_iot.roles.commands import Command, Subscribe, Unsubscribe
from ofl_iot.roles.device.local_model import LocalModel
from ofl_iot.roles.settings import LeaderRules

MOST_AHEAD = 8
"""Parts of changes kept while a pull is answered."""
_HYSTERESIS = 2.0
"""Times the room that is needed, for a device that begins to follow."""


class Following:
    """One device's place in its leader's changes."""

    def __init__(self, me: DeviceId, rules: LeaderRules, model: LocalModel, gamma_down: Callable[[], float]) -> None:
        """`gamma_down` returns the share of the model that the next contact allows."""
        self._me, self._rules, self._model, self._gamma_down = me, rules, model, gamma_down
        self._leader: DeviceId | None = None
        self._subscribed: DeviceId | None = None
        self.in_step = False
        """Whether every change up to `version` is in the model."""
        self.version = 0
        self._seal = ClusterSeal(b"")
        self._parts: set[int] = set()
        """Parts of the next change that are in the model already."""
        self._ahead: list[ClusterChange] = []
        self._number = 0
        self._received = np.zeros(model.layout.count, bool)
        """Blocks that came in answer to the last pull."""

    @property
    def on(self) -> bool:
        """Whether leaders publish changes."""
        return self._rules.publish == "beat"

    @property
    def wait_s(self) -> float:
        """Seconds that a device waits for the next change before it trains on from its own work."""
        return 0.5 * self._rules.beat_s

    @property
    def wanted(self) -> bool:
        """Whether the plan has room for the changes: as many bytes as a beat takes, or a whole contact's share."""
        needed = self._rules.beat_gamma * BYTES_PER_PARAMETER[self._rules.beat_values]
        room = self._gamma_down() * BYTES_PER_VALUE[self._rules.values]
        return self.on and (room >= needed * (1.0 if self.follows else _HYSTERESIS) or self._gamma_down() >= 1.0)

    @property
    def follows(self) -> bool:
        """Whether this device hears changes."""
        return self._leader is not None and self._subscribed == self._leader

    def share(self, most: float) -> float:
        """Share of the blocks that a pull asks for: at most `most` and what the plan allows, all for a follower."""
        return 1.0 if self.follows else min(most, self._gamma_down())

    # --- whom to hear

    def new_leader(self, leader: DeviceId) -> Iterator[Command]:
        """Another term: nothing of its changes is known."""
        self._leader = leader
        self._lose_step()
        self.version, self._seal = 0, ClusterSeal(b"")
        yield from self.tend()

    def tend(self) -> Iterator[Command]:
        """Subscribe or take it back, as the plan allows; what a leader tells its own device needs no subscription."""
        wanted = self._leader if self.wanted else None
        if wanted == self._subscribed:
            return
        if self._subscribed and self._subscribed != self._me:
            yield Unsubscribe(Kind.CLUSTER_CHANGE, sender=self._subscribed)
        if wanted and wanted != self._me:
            yield Subscribe(Kind.CLUSTER_CHANGE, sender=wanted)
        self._subscribed = wanted
        self._lose_step()

    # --- pulls

    def begin_pull(self) -> Follower | None:
        """What a pull says of this device; None where leaders publish no changes."""
        if not self.on:
            return None
        self._number += 1
        self._received[:] = False
        return Follower(self.version, self._number)

    def report(self) -> Follower:
        """What a device says that has sent what it had and waits for the next change."""
        return Follower(self.version, self._number)

    def takes(self, message: Blocks) -> bool:
        """Whether blocks of an answer may be written over the model; what is older than its changes may not."""
        standing = message.standing
        if standing is None or not self.follows:
            return True
        if standing.version < self.version:
            return False
        if self.in_step and (standing.number != self._number or standing.version == self.version):
            return False
        self._lose_step(keep_ahead=True)
        return True

    def blocks(self, message: Blocks) -> None:
        """Note blocks of an answer; with all of them a follower is in step, and takes what came meanwhile."""
        standing = message.standing
        if not self.on or standing is None:
            return
        if standing.number == self._number:
            for batch in message.read_batches():
                self._received[batch.read_index()] = True
        if not message.last:
            return
        self.version, self._seal = standing.version, ClusterSeal(standing.key)
        complete = standing.number == self._number and self._received.sum() == standing.count
        self.in_step = self.follows and self._model.complete and bool(complete)
        self._parts.clear()
        ahead, self._ahead = self._ahead, []
        for change in sorted(ahead, key=lambda each: (each.version, each.part)):
            if self.in_step and change.version > self.version:
                self._take(change)

    # --- changes

    def change(self, change: ClusterChange, term: int) -> bool:
        """Take a part of a change; return whether the device now holds all of it. Out of step it is kept for later."""
        if change.term != term:
            raise LateError(f"a change of term {change.term}, this device is in {term}")
        if not self.follows:
            raise LateError("a change that this device does not follow")
        if not self.in_step:
            self._ahead = [*self._ahead, change][-MOST_AHEAD:]
            return False
        if change.version <= self.version or (change.version == self.version + 1 and change.part in self._parts):
            raise LateError(f"change {change.version} came before")
        return self._take(change)

    def _take(self, change: ClusterChange) -> bool:
        if change.version != self.version + 1:
            self._lose_step()
            self._ahead = [change]
            return False
        chunk = self._open(change)
        if chunk is not None:
            self._model.changed(chunk)
        self._parts.add(change.part)
        if len(self._parts) < change.parts:
            return False
        self.version = change.version
        self._model.settle_on_synced(change.round_no)
        self._parts.clear()
        return True

    def _open(self, change: ClusterChange) -> Chunk | None:
        """The chunk in a part; None in a change that says only its number and round."""
        try:
            body = self._seal.open(change.body, Place(change.version, change.part, change.parts, change.round_no))
        except CryptoError as error:
            raise RefusedError(str(error)) from error
        if not body:
            return None
        chunk = decode(Kind.UPDATE, body)
        if not isinstance(chunk, Chunk) or (chunk.model, chunk.size) != (self._model.digest, self._model.layout.size):
            raise RefusedError("a change of another model", "wrong-model")
        return chunk

    def _lose_step(self, *, keep_ahead: bool = False) -> None:
        self.in_step = False
        self._parts.clear()
        if not keep_ahead:
            self._ahead.clear()
