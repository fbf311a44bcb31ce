"""Where the rounds stand: their numbers, what was found about leaders so far, and how busy the federation is."""

from __future__ import annotations

import msgspec

from ofl_iot.crypto.lean.quantiser import blocks, first_bounds
from ofl_iot.roles.backoff import backoff_s
from ofl_iot.roles.settings import RoundRules
from ofl_iot.roles.storage import Put, Stored, StoreOp

TABLE = "coordinator.rounds"
_IDLE_BEFORE_SLOWER = 2
"""Rounds in a row without enough to merge that are still taken for chance."""


class RoundCounter(msgspec.Struct, frozen=True, array_like=True):
    """Where the rounds stand."""

    closed: int = 0
    """Number of the last closed round: the version of the global model."""
    opened: int = 0
    """Number of the last opened round."""
    attempt: int = 0
    """Grows when an open round's contributions were lost with the process."""
    completed: int = 0
    """Rounds closed, abandoned ones not counted."""
    since_reclustering: int = 0


class RoundProgress:
    """What outlives a round; `stored` makes a change durable."""

    def __init__(self, rules: RoundRules) -> None:
        self._rules = rules
        self.counter = RoundCounter()
        self.evidence: dict[str, float] = {}
        """The leaders' suspicion accounts."""
        self._bounds = b""
        """Quantisation bounds of the next lean round."""
        self._idle = 0
        """Rounds in a row in which too few clusters had merged anything."""

    def restore(self, stored: Stored) -> None:
        """Take up what an earlier process left."""
        rows = stored.get(TABLE, {})
        if "counter" in rows:
            self.counter = msgspec.msgpack.decode(rows["counter"], type=RoundCounter)
            self.evidence = msgspec.msgpack.decode(rows["evidence"], type=dict[str, float])
            self._bounds = rows.get("bounds", b"")

    def stored(self) -> tuple[StoreOp, ...]:
        """What must survive a restart."""
        return (
            Put(TABLE, "counter", msgspec.msgpack.encode(self.counter)),
            Put(TABLE, "evidence", msgspec.msgpack.encode(self.evidence)),
            Put(TABLE, "bounds", self._bounds),
        )

    def bounds_for(self, size: int) -> bytes:
        """Quantisation bounds of a lean round: those that the last one left, or the first ones."""
        return self._bounds if len(self._bounds) == blocks(size) else first_bounds(size)

    # --- numbers

    @property
    def interrupted(self) -> bool:
        """Whether an earlier process ended while a round was open."""
        return self.counter.opened > self.counter.closed

    def open_next(self) -> None:
        """Another round; numbers of abandoned ones are not used again."""
        opened = max(self.counter.opened, self.counter.closed) + 1
        self.counter = msgspec.structs.replace(self.counter, opened=opened, attempt=0)

    def open_again(self) -> None:
        """The round that was open, whose contributions are lost."""
        self.counter = msgspec.structs.replace(self.counter, attempt=self.counter.attempt + 1)

    def close(self, round_no: int, evidence: dict[str, float], bounds: bytes = b"") -> None:
        """A round made a model."""
        self._idle = 0
        self._bounds = bounds or self._bounds
        self.evidence = evidence
        self.counter = RoundCounter(
            closed=round_no,
            opened=round_no,
            completed=self.counter.completed + 1,
            since_reclustering=self.counter.since_reclustering + 1,
        )

    def inherit(self, round_no: int, completed: int) -> None:
        """Count on from where another coordinator stood."""
        self.counter = RoundCounter(closed=round_no, opened=round_no, completed=completed)

    # --- clustering

    def reclustered(self) -> None:
        """Rounds are counted from this clustering on."""
        self.counter = msgspec.structs.replace(self.counter, since_reclustering=0)

    def recluster_soon(self) -> None:
        """Cluster anew after this round, whatever the interval."""
        self.counter = msgspec.structs.replace(self.counter, since_reclustering=self._rules.recluster_every or 1)

    # --- pace

    def rested(self) -> None:
        """A round found too little to merge."""
        self._idle += 1

    @property
    def idle(self) -> bool:
        """Whether rounds have found too little to merge more often than by chance."""
        return self._idle > _IDLE_BEFORE_SLOWER

    @property
    def interval_s(self) -> float:
        """From now to the opening of the next round: while nobody has work to merge, rounds become rarer.

        interval · 2^(idle - 2), at most `idle_interval_s`
        """
        longest_s = max(self._rules.interval_s, self._rules.idle_interval_s)
        return backoff_s(self._rules.interval_s, self._idle - _IDLE_BEFORE_SLOWER, longest_s)
