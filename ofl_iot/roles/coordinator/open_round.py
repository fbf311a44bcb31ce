"""One open round at the coordinator: who was asked, what has arrived, whether it may close.

collecting ──all came, or the deadline with a quorum──▶ aggregating ──▶ closed
     └──────the deadline without a quorum──▶ abandoned
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ofl_iot.errors import LateError, ProtocolError, RefusedError
from ofl_iot.protocol.codec import decode_body
from ofl_iot.protocol.messages import Contribution, Inclusion, Part, PartReceipt, RoundOpen, Settlement
from ofl_iot.protocol.parts import BodyJoiner
from ofl_iot.roles.coordinator.settled_record import SettledRecord
from ofl_iot.roles.job_kinds.rounds import Contributed


@dataclass
class OpenRound:
    """The state of a round between its opening and its end."""

    opened: RoundOpen
    deadline: float
    aggregating: bool = False
    _seats: dict[str, int] = field(default_factory=dict)
    _joiners: dict[str, BodyJoiner] = field(default_factory=dict)
    _contributions: dict[str, Contribution] = field(default_factory=dict)
    _digests: dict[str, bytes] = field(default_factory=dict)
    _parts: dict[str, int] = field(default_factory=dict)
    _refused: dict[str, bytes] = field(default_factory=dict)
    """Digest of the last contribution of each leader that was refused."""

    def __post_init__(self) -> None:
        self._seats = {seat.leader: seat.term for seat in self.opened.seats}

    @property
    def missing(self) -> set[str]:
        """Leaders whose contribution is not complete."""
        return self._seats.keys() - self._contributions.keys()

    @property
    def contributions(self) -> dict[str, Contribution]:
        """Complete contributions by leader."""
        return self._contributions

    def take(
        self,
        leader: str,
        part: Part,
        books: Mapping[str, SettledRecord],
        limit_of: Callable[[Settlement], int],
        max_bytes: int,
    ) -> PartReceipt:
        """Add a part; the receipt names the parts held of this body.

        `books` has every device of the leader's cluster, `limit_of` the highest chunk number that may be settled.
        """
        if part.round_no != self.opened.round_no or part.term != self._seats.get(leader):
            raise RefusedError(f"a part for round {part.round_no}, term {part.term} that {leader} has no seat in")
        if self._refused.get(leader) == part.digest:
            raise LateError("a part of a contribution that was refused")  # it is not joined again for each part
        if leader in self._contributions:
            same = part.digest == self._digests[leader] and part.parts == self._parts[leader]
            return self._receipt(part, tuple(range(part.parts)) if same else ())
        joiner = self._joiners.get(leader)
        if joiner is None or joiner.digest != part.digest:
            joiner = self._joiners[leader] = BodyJoiner.expecting(part, max_bytes)
        try:
            body = joiner.add(part)
            contribution = None if body is None else decode_body(Contribution, body)
            if contribution is not None:
                _check_merged(leader, contribution, books, limit_of)
        except ProtocolError:
            self._refused[leader] = part.digest
            del self._joiners[leader]
            raise
        if contribution is not None:
            self._contributions[leader] = contribution
            self._digests[leader] = part.digest
            self._parts[leader] = part.parts
            del self._joiners[leader]
        return self._receipt(part, (part.part,))

    def drop(self, leader: str) -> None:
        """The leader lost its seat; what it sent does not count."""
        for held in (self._seats, self._joiners, self._contributions, self._digests):
            held.pop(leader, None)

    def complete(self) -> bool:
        """Whether every leader that still has a seat has contributed."""
        return bool(self._seats) and not self.missing

    def has_quorum(self, quorum: float) -> bool:
        """Whether enough leaders have contributed to close without the others."""
        return len(self._contributions) >= max(1, math.ceil(quorum * len(self.opened.seats)))

    def contributed(self, members: Mapping[str, int], samples: Mapping[str, int]) -> tuple[Contributed, ...]:
        """All that came, as the aggregation takes it.

        `members` has the size of each leader's cluster, `samples` what it may count with at most.
        """
        return tuple(
            Contributed(
                leader,
                each.payload,
                min(each.sample_count, samples.get(leader, 0)),
                each.updates,
                members.get(leader, 1),
                each.effort,
            )
            for leader, each in sorted(self._contributions.items())
        )

    def inclusions(self, leaders: set[str]) -> tuple[Inclusion, ...]:
        """The manifest's record of whose contribution the model holds."""
        return tuple(Inclusion(leader, self.opened.round_no, self._digests[leader]) for leader in sorted(leaders))

    def _receipt(self, part: Part, held: tuple[int, ...]) -> PartReceipt:
        return PartReceipt(part.term, part.round_no, part.stage, held)


def _check_merged(
    leader: str,
    contribution: Contribution,
    books: Mapping[str, SettledRecord],
    limit_of: Callable[[Settlement], int],
) -> None:
    """Raise RefusedError if a contribution tells of chunks that the leader cannot have merged."""
    for merged in contribution.merged:
        if merged.device not in books:
            raise RefusedError(f"{leader} merged chunks of {merged.device}, which is not in its cluster")
        settled = books[merged.device].settled_of(merged.store)
        if any(seq in settled for seq in merged.seqs):
            raise RefusedError(f"{leader} merged chunks of {merged.device} that are settled already")
        highest, limit = max(merged.seqs, default=0), limit_of(merged)
        if highest > limit:
            raise RefusedError(f"{leader} merged chunk {highest} of {merged.device}, which numbers them up to {limit}")
