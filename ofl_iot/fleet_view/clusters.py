"""Clusters under letters that survive a change of the leader, so that pictures stay still."""

from __future__ import annotations

import string
from collections.abc import Iterator

from ofl_iot.fleet_view.records import ClusterRecord
from ofl_iot.protocol.fleet_notes import ClusterNote

CLUSTERED = "clustered"
MAX_CLUSTERS = 1_000
_WORDS = {
    "offline": "went offline",
    "unfit": "was unfit to lead",
    "store-lost": "lost its store",
}


def take(held: dict[str, ClusterRecord], index: int, note: ClusterNote, now: float) -> list[tuple[str, str, str]]:
    """Take a note up; return the events that it brings, as kind, subject and text."""
    for letter in [letter for letter, each in held.items() if each.index >= note.clusters]:
        del held[letter]
    if index >= min(note.clusters, MAX_CLUSTERS):
        return []
    before = _find(held, index, note)
    if before is None:
        letter = next(name for name in _letters() if name not in held)
        held[letter] = _record(letter, index, note, now)
        return []
    displaced = next((each for each in held.values() if each.index == index and each is not before), None)
    if displaced is not None:
        displaced.index = before.index
    after = held[before.letter] = _record(before.letter, index, note, now)
    after.handovers = before.handovers
    if before.leader == note.leader:
        after.since_s, after.handovers = before.since_s, before.handovers
        return []
    if note.reason == CLUSTERED:
        return [("clustered", note.leader, f"{note.leader} leads cluster {after.letter}: the fleet was clustered anew")]
    after.handovers = [*before.handovers, now]
    cause = _WORDS.get(note.reason, f"was replaced ({note.reason})")
    text = f"{note.leader} leads cluster {after.letter} now: {before.leader} {cause}"
    return [("handover", f"{note.leader} {before.leader}", text)]


def forget_handovers(cluster: ClusterRecord, before_s: float) -> bool:
    """Drop handovers that are long over; whether there were any."""
    kept = [at for at in cluster.handovers if at >= before_s]
    changed, cluster.handovers = len(kept) != len(cluster.handovers), kept
    return changed


def _find(held: dict[str, ClusterRecord], index: int, note: ClusterNote) -> ClusterRecord | None:
    """Return the same cluster as it was: by its leader, by the one before, by its place."""
    for wanted in (note.leader, note.previous):
        for each in held.values():
            if wanted and each.leader == wanted and (wanted == note.leader or each.index == index):
                return each
    return next((each for each in held.values() if each.index == index), None)


def _record(letter: str, index: int, note: ClusterNote, now: float) -> ClusterRecord:
    return ClusterRecord(
        letter=letter,
        index=index,
        leader=note.leader,
        term=note.term,
        members=note.members,
        deputies=note.deputies,
        previous=note.previous,
        reason=note.reason,
        since_s=now,
    )


def _letters() -> Iterator[str]:
    """Yield A to Z, then A2, B2 and so on."""
    yield from string.ascii_uppercase
    for number in range(2, MAX_CLUSTERS):
        yield from (f"{letter}{number}" for letter in string.ascii_uppercase)
