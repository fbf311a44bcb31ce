"""Who leads whom: the coordinator forms clusters, forms them anew, places joiners and replaces lost leaders.

    proposed ──its leaders have made their key──▶ adopted ──▶ assignments (retained, by term)

Algorithm 1. Every change is durable before a device hears of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from ofl_iot.fleet.assignment import FleetPlan, leaders
from ofl_iot.ids import COORDINATOR, DeviceId
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.roles.commands import CancelTimer, Command, Persist, Publish, SetTimer
from ofl_iot.roles.coordinator.notes import OFFLINE, STORE_LOST, UNFIT, ClusterNotes
from ofl_iot.roles.coordinator.roster import Roster
from ofl_iot.roles.coordinator.rounds import Rounds
from ofl_iot.roles.reports.coordinator import (
    Clustered,
    ClusterOrphaned,
    DeviceJoined,
    LeaderReplaced,
    SampleClaimBounded,
)
from ofl_iot.roles.settings import FleetRules, RoundRules
from ofl_iot.roles.storage import Put, Stored

TABLE = "coordinator.clusters"
GRACE = "coordinator.grace."
"""Begins the names of timers: a leader that went has so long to come back."""


class Clusters:
    """The clusters in force, and the plan that is to follow them."""

    def __init__(self, roster: Roster, rounds: Rounds, rules: RoundRules, fleet: FleetRules) -> None:
        self._roster = roster
        self._rounds = rounds
        self._rules = rules
        self._fleet = fleet
        self.notes = ClusterNotes(roster)
        self._proposal: FleetPlan | None = None
        """The plan of the next term while its leaders make their key."""
        self._doubted: dict[DeviceId, int] = {}
        """Claims of samples that count as less, as they were told."""
        self._emptied: set[DeviceId] = set()
        """Leaders that came back with an empty store and are still to be replaced."""

    def restore(self, stored: Stored) -> None:
        """Take up the plan whose leaders were making their key, unless another term has begun since."""
        row = stored.get(TABLE, {}).get("proposal")
        plan = msgspec.msgpack.decode(row, type=FleetPlan) if row else None
        if plan and plan.term == self._roster.highest_term and plan.term not in self._roster.terms.values():
            self._proposal = plan

    # --- forming

    def form(self, now: float) -> Iterator[Command]:
        """The first clusters take office before they have a key."""
        plan, ops = self._roster.propose(now)
        yield Persist(tuple(ops))
        yield from self.adopt(plan, now)

    def between_rounds(self, now: float, *, last: bool) -> Iterator[Command]:
        """Form clusters anew when it is time, unless there is no round to come; otherwise replace who failed."""
        if self._proposal and self._rounds.making_key:
            return  # the leaders to come make their key beside the rounds
        if self._proposal and self._key_is_ready(self._proposal):
            yield from self.adopt(self._proposal, now)
            return
        self._proposal = None
        if not last and not self._rounds.making_key and self._due(now):
            yield from self._propose(now)
        if self._proposal is None:
            for leader in sorted({*self._rounds.lost, *self._roster.unfit_leaders()}):
                yield from self._replace(leader, now)
            self._rounds.lost.clear()

    def key_made(self, now: float) -> Iterator[Command]:
        """The leaders to come take office, if the key that was made is theirs; a round that is open ends first."""
        if self._proposal and self._key_is_ready(self._proposal) and not self._rounds.under_way:
            yield from self.adopt(self._proposal, now)

    def _key_is_ready(self, plan: FleetPlan) -> bool:
        terms = {str(leader): int(plan.term) for leader in leaders(plan)}
        return plan.term == self._roster.highest_term and self._rounds.key.maker.has_key_of(terms)

    def _due(self, now: float) -> bool:
        """By rounds or by turnover; not while most are still silent, as after a restart."""
        every, limit, away_s = self._rules.recluster_every, self._fleet.turnover, self._fleet.away_s
        overdue = bool(every) and self._rounds.progress.counter.since_reclustering >= every
        changed = bool(limit) and self._roster.turnover(now, away_s) > limit
        heard = 2 * len(self._roster.online) >= len(self._roster.live(now, away_s)) > 0
        return (overdue or changed) and heard

    def _propose(self, now: float) -> Iterator[Command]:
        """Plan anew. The leaders to come make their key first; until it is there the present ones stay in office."""
        self._proposal, ops = self._roster.propose(now, self._rounds.failing(now))
        yield Persist((*ops, Put(TABLE, "proposal", msgspec.msgpack.encode(self._proposal))))
        yield from self._rounds.key.prepare(self._proposal.term, leaders(self._proposal), now)
        if not self._rounds.making_key:
            yield from self.adopt(self._proposal, now)

    def adopt(self, plan: FleetPlan, now: float) -> Iterator[Command]:
        """A new term begins; whoever came while it was prepared is placed too."""
        self._proposal = None
        self._rounds.reclustered()
        yield Persist(tuple(self._roster.adopt(plan, now, self._fleet.away_s)))
        yield Clustered(
            term=plan.term,
            clusters=len(plan.clusters),
            leaders=tuple(leaders(plan)),
            churn=plan.churn,
            distrusted=tuple(plan.distrusted),
        )
        yield from self.announce(self._roster.devices)
        self.notes.clustered()
        yield from self.notes.publish()
        yield from self.watch_absent_leaders(now)

    def announce(self, devices: Iterable[DeviceId]) -> Iterator[Command]:
        """Tell devices where they belong."""
        for device in list(devices):
            if self._roster.cluster_of(device):
                yield Publish(Topic(Kind.ASSIGNMENT, COORDINATOR, device), self._roster.assignment(device), retain=True)

    def join(self, device: DeviceId) -> Iterator[Command]:
        """A late joiner is placed at once; its leader learns of it by a revised assignment."""
        yield Persist(tuple(self._roster.join(device)))
        cluster = self._roster.cluster_of(device)
        if cluster is not None:
            yield DeviceJoined(device=device, leader=cluster.leader)
            yield from self.announce(dict.fromkeys((DeviceId(cluster.leader), device)))
            yield from self.notes.publish()

    # --- lost leaders

    def watch_absent_leaders(self, now: float) -> Iterator[Command]:
        """A leader that went before it was in office has its grace from now on."""
        for seat in self._roster.seats():
            if not self._roster.devices[DeviceId(seat.leader)].online:
                yield from self.gone(DeviceId(seat.leader), now)

    def gone(self, device: DeviceId, now: float) -> Iterator[Command]:
        """A device went; a leader may come back within its grace."""
        yield from self._rounds.member_gone(device, now)
        if self._roster.leads(device):
            yield SetTimer(GRACE + device, now + self._fleet.leader_grace_s)

    def doubt(self, device: DeviceId) -> Iterator[Command]:
        """Tell whose number of samples counts as less than it says, once for each claim."""
        claimed, counted = self._roster.devices[device].status.sample_count, self._roster.unbelieved(device)
        if counted and self._doubted.get(device) != claimed:
            self._doubted[device] = claimed
            yield SampleClaimBounded(device=device, claimed=claimed, counted=counted)

    def came(self, device: DeviceId) -> Iterator[Command]:
        """A device is here (again)."""
        yield CancelTimer(GRACE + device)

    def store_lost(self, device: DeviceId, now: float) -> Iterator[Command]:
        """A device came back with an empty store: a leader's cluster goes to another, or begins a new term."""
        cluster = self._roster.cluster_of(device)
        if cluster is None:
            return
        if cluster.leader != device:
            yield Persist(tuple(self._roster.revise(DeviceId(cluster.leader))))
            yield from self.announce((DeviceId(cluster.leader), device))
            return
        self._emptied.add(device)
        if self._rounds.aggregating:
            self._rounds.lost.add(device)
        else:
            yield from self._replace(device, now)

    def yields(self, leader: DeviceId, now: float) -> Iterator[Command]:
        """A leader's link turned out to be too thin: every round that waits for it is lost, so it goes at once."""
        if self._rounds.aggregating:
            self._rounds.lost.add(leader)
        else:
            yield from self._replace(leader, now)

    def grace_over(self, leader: DeviceId, now: float) -> Iterator[Command]:
        """A leader did not come back in time."""
        record = self._roster.devices.get(leader)
        if record is None or record.online or not self._roster.leads(leader):
            return
        if self._rounds.aggregating:
            self._rounds.lost.add(leader)  # its contribution may be about to be settled: wait for the books
        else:
            yield from self._replace(leader, now)

    def _replace(self, leader: DeviceId, now: float) -> Iterator[Command]:
        """A deputy takes over under a new term; what the lost leader had merged is sent to it again."""
        if not self._roster.leads(leader):
            return
        emptied = leader in self._emptied
        away = not self._roster.devices[leader].online
        heir, ops = self._roster.replace_leader(leader, self._rounds.failing(now))
        if heir is None and leader in self._emptied:
            heir, ops = leader, self._roster.reseat(leader)
        self._emptied.discard(leader)
        if heir is None:
            yield ClusterOrphaned(leader=leader)
            return
        self._proposal = None  # its key generation is void too, and so is its term
        yield Persist(tuple(ops))
        yield LeaderReplaced(lost=leader, leader=heir, term=self._roster.terms[heir])
        yield from self._rounds.seat_lost(leader, now)
        cluster = self._roster.cluster_of(heir)
        if cluster is not None:
            yield from self.announce(cluster.members)
        self.notes.handed_over(leader, heir, STORE_LOST if emptied else OFFLINE if away else UNFIT)
        yield from self.notes.publish()
