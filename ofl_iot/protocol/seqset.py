"""A set of sequence numbers that is nearly contiguous: all up to a watermark, and a few beyond.

Sequence numbers start at 1. The set only grows; a number that is in it was handled once and for all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import msgspec

Seq = Annotated[int, msgspec.Meta(ge=1, lt=2**62)]


class SeqSet(msgspec.Struct, frozen=True, array_like=True):
    """Every number from 1 to `upto`, and each of `beyond` (ascending, all greater than `upto` + 1)."""

    upto: Annotated[int, msgspec.Meta(ge=0, lt=2**62)] = 0
    beyond: tuple[Seq, ...] = ()

    def __post_init__(self) -> None:
        floor = self.upto + 1
        for number in self.beyond:
            if number <= floor:
                raise ValueError("numbers beyond the watermark must ascend and leave a gap")
            floor = number

    def __contains__(self, seq: int) -> bool:
        return 1 <= seq <= self.upto or seq in self.beyond

    def __len__(self) -> int:
        return self.upto + len(self.beyond)

    def union(self, seqs: Iterable[int]) -> SeqSet:
        """This set and `seqs`."""
        beyond = {*self.beyond, *(seq for seq in seqs if not 1 <= seq <= self.upto)}
        if beyond and min(beyond) < 1:
            raise ValueError("sequence numbers start at 1")
        upto = self.upto
        while upto + 1 in beyond:
            upto += 1
            beyond.remove(upto)
        return SeqSet(upto, tuple(sorted(beyond)))

    def merged(self, other: SeqSet) -> SeqSet:
        """The union of two sets."""
        low, high = sorted((self, other), key=lambda each: each.upto)
        return high.union(low.beyond)
