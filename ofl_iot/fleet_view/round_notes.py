"""Rounds as a view has them, from their opening and from the note at their end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, cast

from ofl_iot.fleet_view.view import ContributionView, RoundBytes, RoundSeconds, RoundView
from ofl_iot.protocol.fleet_notes import ContributionNote, RoundNote
from ofl_iot.protocol.messages import RoundOpen

Verdict = Literal["awaited", "received", "included", "weighed down", "refused", "missing"]
_VERDICTS = {"awaited", "received", "included", "weighed down", "refused", "missing"}
ACCURACY = "accuracy"


def opened(
    message: RoundOpen, before: RoundView | None, letters: Mapping[str, str], now: float | None
) -> RoundView | None:
    """Return the open round; None if it is known to be over. `now` is None where the broker had retained it."""
    if before is not None and (before.state != "open" or before.attempt >= message.attempt):
        return None
    return RoundView(
        round_no=message.round_no,
        attempt=message.attempt,
        state="open",
        stage="collecting",
        opened_s=now,
        deadline_s=message.deadline_s,
        encrypted=bool(message.key_id),
        contributions=tuple(
            ContributionView(leader=seat.leader, term=seat.term, verdict="awaited", cluster=letters.get(seat.leader))
            for seat in message.seats
        ),
    )


def ended(
    note: RoundNote, before: RoundView | None, letters: Mapping[str, str], online: int, now: float | None
) -> RoundView:
    """Return the round as its note tells; an evaluation that comes later fills in the accuracy."""
    over = before is not None and before.state != "open"
    return RoundView(
        round_no=note.round_no,
        attempt=note.attempt,
        state="closed" if note.closed else "abandoned",
        opened_s=before.opened_s if before else None,
        closed_s=before.closed_s if before and over else now,
        deadline_s=before.deadline_s if before else None,
        encrypted=note.encrypted,
        threshold=note.threshold or None,
        key_term=note.key_term or None,
        decryption_set=note.decrypted_by,
        not_answered=note.not_answered,
        seconds=RoundSeconds(collect=note.collect_s, aggregate=note.aggregate_s),
        bytes=before.bytes if before and over else RoundBytes(),
        devices=len({name for each in note.contributions for name in each.contributors}),
        online=before.online if before and over else online,
        accuracy=_accuracy(note),
        reason=note.reason or None,
        contributions=tuple(_contribution(each, before, letters) for each in note.contributions),
    )


def _accuracy(note: RoundNote) -> float | None:
    value = note.metrics.get(ACCURACY)
    return value if value is not None and 0 <= value <= 1 else None


def _contribution(note: ContributionNote, before: RoundView | None, letters: Mapping[str, str]) -> ContributionView:
    known = next((each for each in before.contributions if each.leader == note.leader), None) if before else None
    return ContributionView(
        leader=note.leader,
        term=note.term,
        verdict=cast("Verdict", note.verdict if note.verdict in _VERDICTS else "missing"),
        cluster=(known.cluster if known else None) or letters.get(note.leader),
        devices=note.devices,
        chunks=note.chunks,
        samples=note.samples,
        arrived_after_s=note.arrived_after_s,
        weight=note.weight,
        evidence=note.evidence,
        reason=note.reason or None,
        contributors=note.contributors,
    )
