"""A set of sequence numbers that is nearly contiguous: all up to a watermark, and a few runs beyond.

Sequence numbers start at 1. The set only grows; a number that is in it was handled once and for all. It takes room by
its gaps, not by its numbers: one that never comes (its device lost its store) costs two words, not one a chunk.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Annotated, TypeAlias

import msgspec

Seq = Annotated[int, msgspec.Meta(ge=1, lt=2**62)]
MAX_STEP = 2**20
"""How far ahead of what is known of a device a chunk's number may be: more chunks than fit an outbox."""
MAX_RUNS = 64
"""Runs beyond the watermark that are kept of a device: in order but for a window, a lost store, or a hostile sender."""
_Run: TypeAlias = tuple[int, int]
"""First and last number of a run."""


class SeqSet(msgspec.Struct, frozen=True, array_like=True):
    """Every number from 1 to `upto`, and the runs of `beyond`; equal sets have one form."""

    upto: Annotated[int, msgspec.Meta(ge=0, lt=2**62)] = 0
    beyond: tuple[Seq, ...] = ()
    """First and last number of each run, flat and ascending, with a gap before each run."""

    def __post_init__(self) -> None:
        if len(self.beyond) % 2:
            raise ValueError("a run beyond the watermark has a first and a last number")
        floor = self.upto + 1
        for first, last in self._runs():
            if first <= floor or last < first:
                raise ValueError("runs beyond the watermark must ascend and leave a gap")
            floor = last + 1

    def __contains__(self, seq: int) -> bool:
        if seq <= self.upto:
            return seq >= 1
        bounds = bisect_right(self.beyond, seq)
        return bounds % 2 == 1 or (bounds > 0 and self.beyond[bounds - 1] == seq)

    def __len__(self) -> int:
        return self.upto + sum(last - first + 1 for first, last in self._runs())

    @property
    def highest(self) -> int:
        """The greatest number in it; 0 when it is empty."""
        return self.beyond[-1] if self.beyond else self.upto

    @property
    def runs(self) -> int:
        """How many runs there are beyond the watermark, each behind a gap."""
        return len(self.beyond) // 2

    def closing_gaps(self, most: int = MAX_RUNS) -> SeqSet:
        """This set with at most so many runs: the lowest gaps count as handled, whatever was meant to fill them."""
        extra = self.runs - most
        return SeqSet(self.beyond[2 * extra - 1], self.beyond[2 * extra :]) if extra > 0 else self

    def union(self, seqs: Iterable[int]) -> SeqSet:
        """This set and `seqs`."""
        return self._with((seq, seq) for seq in seqs)

    def merged(self, other: SeqSet) -> SeqSet:
        """The union of two sets."""
        return self._with([(1, other.upto), *other._runs()] if other.upto else other._runs())

    def _runs(self) -> Iterator[_Run]:
        return zip(self.beyond[::2], self.beyond[1::2], strict=True)

    def _with(self, runs: Iterable[_Run]) -> SeqSet:
        upto, beyond = self.upto, list[int]()
        for first, last in sorted([*self._runs(), *runs]):
            if first < 1:
                raise ValueError("sequence numbers start at 1")
            if first <= upto + 1:
                upto = max(upto, last)
            elif beyond and first <= beyond[-1] + 1:
                beyond[-1] = max(beyond[-1], last)
            else:
                beyond += (first, last)
        return SeqSet(upto, tuple(beyond))
