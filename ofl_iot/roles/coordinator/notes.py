"""What the coordinator says for observers: who leads whom and why, and how each round ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from ofl_iot.ids import COORDINATOR, DeviceId
from ofl_iot.protocol.fleet_notes import MAX_METRICS, ClusterNote, ContributionNote, RoundNote
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.roles.commands import Command, Publish
from ofl_iot.roles.coordinator.open_round import OpenRound
from ofl_iot.roles.coordinator.roster import Roster
from ofl_iot.roles.events import RoundAggregated
from ofl_iot.roles.job_kinds.keys import CoordinatorKey

MAX_REASON, MAX_WORD = 200, 40
CLUSTERED, OFFLINE, UNFIT, STORE_LOST = "clustered", "offline", "unfit", "store-lost"


@dataclass
class ClusterNotes:
    """The clusters in force, one retained note each; what did not change is not said again."""

    _roster: Roster
    _changes: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By leader: whom it followed, and why."""
    _said: dict[int, ClusterNote] = field(default_factory=dict)

    def handed_over(self, lost: DeviceId, heir: DeviceId, reason: str) -> None:
        """Remember why a cluster changed hands."""
        self._changes.pop(lost, None)
        self._changes[heir] = (lost, reason)

    def clustered(self) -> None:
        """All leaders are new or confirmed."""
        self._changes.clear()

    def publish(self, *, again: bool = False) -> Iterator[Command]:
        """Say what changed, or everything again to a broker that may have forgotten it."""
        plan = self._roster.plan
        if plan is None:
            return
        said, self._said = ({} if again else self._said), {}
        for index, cluster in enumerate(plan.clusters):
            previous, reason = self._changes.get(cluster.leader, ("", CLUSTERED))
            note = ClusterNote(
                clusters=len(plan.clusters),
                term=self._roster.terms.get(cluster.leader, plan.term),
                leader=cluster.leader,
                members=tuple(cluster.members),
                deputies=tuple(cluster.deputies),
                previous=previous[:MAX_WORD],
                reason=reason,
            )
            self._said[index] = note
            if said.get(index) != note:
                yield Publish(Topic(Kind.CLUSTER_NOTE, COORDINATOR, index=index), note, retain=True)


@dataclass
class RoundNotes:
    """The end of the last round, and when its stages began."""

    version: str = ""
    opened_at: float = 0.0
    aggregating_at: float = 0.0
    _arrived: dict[str, float] = field(default_factory=dict)
    _last: RoundNote | None = None

    def opened(self, now: float) -> None:
        """A round begins."""
        self.opened_at, self._arrived = now, {}

    def arrived(self, leader: str, now: float) -> None:
        """A leader's contribution is complete."""
        self._arrived.setdefault(leader, max(0.0, now - self.opened_at))

    def closed(
        self, current: OpenRound, event: RoundAggregated, key: CoordinatorKey | None, failing: set[str], now: float
    ) -> Iterator[Command]:
        """A round made a new model."""
        contributions = tuple(self._judged(current, leader, term, event) for leader, term in _seats(current))
        encrypted = bool(current.opened.key_id)
        members = {each.leader for each in key.opened.members} if key and encrypted else set()
        answered = members & current.contributions.keys()
        self._last = self._note(
            current,
            contributions,
            now,
            closed=True,
            threshold=key.opened.threshold if key and encrypted else 0,
            key_term=key.opened.term if key and encrypted else 0,
            decrypted_by=tuple(sorted(answered - failing)),
            not_answered=tuple(sorted(members & failing)),
        )
        yield self._say()

    def abandoned(self, current: OpenRound, reason: str, now: float) -> Iterator[Command]:
        """A round ended without a model."""
        contributions = tuple(
            self._described(current, leader, term, "received" if leader in current.contributions else "missing")
            for leader, term in _seats(current)
        )
        self._last = self._note(current, contributions, now, closed=False, reason=reason[:MAX_REASON])
        yield self._say()

    def evaluated(self, round_no: int, metrics: Mapping[str, float]) -> Iterator[Command]:
        """The model of the last round was judged on held-out records; its loss is nobody else's business."""
        if self._last is None or self._last.round_no != round_no:
            return
        kept = {name[:MAX_WORD]: float(value) for name, value in metrics.items() if name != "loss"}
        finite = {name: value for name, value in kept.items() if abs(value) <= 1e12}
        self._last = msgspec.structs.replace(self._last, metrics=dict(list(finite.items())[:MAX_METRICS]))
        yield self._say()

    def again(self) -> Iterator[Command]:
        """The broker may have forgotten the last round."""
        if self._last:
            yield self._say()

    def _note(
        self,
        current: OpenRound,
        contributions: tuple[ContributionNote, ...],
        now: float,
        *,
        closed: bool,
        threshold: int = 0,
        key_term: int = 0,
        decrypted_by: tuple[str, ...] = (),
        not_answered: tuple[str, ...] = (),
        reason: str = "",
    ) -> RoundNote:
        until = self.aggregating_at if current.aggregating else now
        return RoundNote(
            round_no=current.opened.round_no,
            attempt=current.opened.attempt,
            closed=closed,
            encrypted=bool(current.opened.key_id),
            contributions=contributions,
            collect_s=max(0.0, until - self.opened_at),
            aggregate_s=max(0.0, now - until),
            threshold=threshold,
            key_term=key_term,
            decrypted_by=decrypted_by,
            not_answered=not_answered,
            reason=reason,
            version=self.version,
        )

    def _say(self) -> Publish:
        assert self._last is not None  # noqa: S101  # every caller has just set or tested it
        return Publish(Topic(Kind.ROUND_NOTE, COORDINATOR), self._last, retain=True)

    def _judged(self, current: OpenRound, leader: str, term: int, event: RoundAggregated) -> ContributionNote:
        reason = event.refused.get(leader) or event.reasons.get(leader, "")
        if leader not in current.contributions:
            verdict = "missing"
        elif leader in event.refused or leader not in event.weights:
            verdict = "refused"
        else:
            verdict = "weighed down" if leader in event.reasons or leader in event.excluded else "included"
        whole = sum(event.weights.values()) or 1.0
        share = min(1.0, max(0.0, event.weights.get(leader, 0.0) / whole))
        evidence = min(1e12, max(-1e12, event.evidence.get(leader, 0.0)))
        return self._described(current, leader, term, verdict, weight=share, evidence=evidence, reason=reason)

    def _described(
        self,
        current: OpenRound,
        leader: str,
        term: int,
        verdict: str,
        *,
        weight: float = 0.0,
        evidence: float = 0.0,
        reason: str = "",
    ) -> ContributionNote:
        held = current.contributions.get(leader)
        merged = [each for each in held.merged if each.seqs] if held else []
        return ContributionNote(
            leader=leader,
            term=term,
            verdict=verdict,
            weight=weight,
            devices=len({each.device for each in merged}),
            chunks=sum(len(each.seqs) for each in merged),
            samples=held.sample_count if held else 0,
            arrived_after_s=self._arrived.get(leader),
            evidence=evidence,
            reason=reason[:MAX_REASON],
            contributors=tuple(sorted({each.device for each in merged})),
        )


def _seats(current: OpenRound) -> list[tuple[str, int]]:
    return [(seat.leader, seat.term) for seat in current.opened.seats]
