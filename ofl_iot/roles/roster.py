"""The coordinator's books on devices: who there is, where each belongs, which chunks the global model holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import msgspec
import numpy as np

from ofl_iot.fleet.assignment import (
    ClusterPlan,
    DeviceView,
    FleetPlan,
    FleetSettings,
    assignments,
    plan_assignments,
    with_joiner,
    with_leader_lost,
)
from ofl_iot.fleet.trust import Evidence
from ofl_iot.ids import DeviceId, Term
from ofl_iot.protocol.messages import Assignment, Member, Seat, Status
from ofl_iot.protocol.seqset import SeqSet
from ofl_iot.protocol.telemetry import Telemetry
from ofl_iot.roles.storage import Put, Stored, StoreOp

STATE, SETTLED, DEVICES = "coordinator.fleet", "coordinator.settled", "coordinator.devices"
_UNREPORTED = Telemetry(cpu_count=1, cpu_ghz=1.0, cpu_load=0.0, memory_total_mib=1024, memory_free_mib=512)
"""Stands in for a device whose first report has not come: modest, so that it is not made a leader."""


@dataclass
class DeviceRecord:
    """One device as the coordinator knows it."""

    status: Status
    online: bool
    since: float
    """When it was last heard of, or last went offline."""
    telemetry: Telemetry = _UNREPORTED
    settled: SeqSet = field(default_factory=SeqSet)
    evidence: Evidence = field(default_factory=Evidence)


class Seats(msgspec.Struct, frozen=True, array_like=True):
    """Terms and revisions of the clusters, by leader."""

    term: int
    """The highest number given so far."""
    terms: dict[str, int]
    revisions: dict[str, int]


class Roster:
    """Devices, clusters and their terms; every change comes with the operations that make it durable."""

    def __init__(self, settings: FleetSettings) -> None:
        self._settings = settings
        self.devices: dict[DeviceId, DeviceRecord] = {}
        self.plan: FleetPlan | None = None
        self._seats = Seats(0, {}, {})
        self._clusters: Mapping[DeviceId, ClusterPlan] = {}

    def restore(self, stored: Stored) -> None:
        """Take up the books of an earlier process; who is online will be seen."""
        settled = stored.get(SETTLED, {})
        for device, status in stored.get(DEVICES, {}).items():
            record = DeviceRecord(msgspec.msgpack.decode(status, type=Status), online=False, since=0.0)
            if device in settled:
                record.settled = msgspec.msgpack.decode(settled[device], type=SeqSet)
            self.devices[DeviceId(str(device))] = record
        if "plan" in stored.get(STATE, {}):
            self._take(msgspec.msgpack.decode(stored[STATE]["plan"], type=FleetPlan))
            self._seats = msgspec.msgpack.decode(stored[STATE]["seats"], type=Seats)

    def heard(self, device: DeviceId, status: Status, now: float) -> list[StoreOp]:
        """A device announced itself or went."""
        known = self.devices.get(device)
        if known is None:
            self.devices[device] = DeviceRecord(status, status.online, now)
            return [Put(DEVICES, device, msgspec.msgpack.encode(status))]
        if not status.sealing_key:  # a last will was written before the key was made
            status = msgspec.structs.replace(status, sealing_key=known.status.sealing_key)
        news = status.sealing_key != known.status.sealing_key
        known.status, known.online, known.since = status, status.online, now
        return [Put(DEVICES, device, msgspec.msgpack.encode(status))] if news else []

    def heed_term(self, term: int) -> bool:
        """A device may have seen higher terms than these books know (they were lost): whether it has."""
        ahead = term > self._seats.term
        if ahead:
            self._seats = msgspec.structs.replace(self._seats, term=term)
        return ahead

    @property
    def online(self) -> list[DeviceId]:
        """Devices that can be reached."""
        return [device for device, record in self.devices.items() if record.online]

    def cluster_of(self, device: DeviceId) -> ClusterPlan | None:
        """The cluster a device belongs to."""
        return self._clusters.get(device)

    def settled_in(self, leader: DeviceId) -> dict[str, SeqSet]:
        """Each device that the leader leads, with its chunks that the global model holds."""
        cluster = self._clusters.get(leader)
        if cluster is None or cluster.leader != leader:
            return {}
        return {device: self.devices[device].settled for device in cluster.members}

    def leads(self, device: DeviceId) -> bool:
        """Whether the device leads a cluster."""
        return device in self._seats.terms

    def seats(self) -> tuple[Seat, ...]:
        """Every leader with its term."""
        return tuple(Seat(leader, term) for leader, term in sorted(self._seats.terms.items()))

    def sealing_keys(self) -> dict[str, bytes]:
        """The leaders' public sealing keys; empty where one has not announced any."""
        return {leader: self.devices[DeviceId(leader)].status.sealing_key for leader in self._seats.terms}

    @property
    def highest_term(self) -> int:
        """The last number given to an assignment."""
        return self._seats.term

    @property
    def terms(self) -> Mapping[str, int]:
        """The term of each leader."""
        return self._seats.terms

    def recluster(self) -> list[StoreOp]:
        """Plan the fleet anew: every cluster gets the next term. Offline devices keep a place for their return."""
        term = self._seats.term + 1
        views = {device: DeviceView(record.telemetry, record.evidence) for device, record in self.devices.items()}
        present = {device: views[device] for device in self.online}
        rng = np.random.default_rng(term)
        plan = plan_assignments(present, self.plan, Term(term), self._settings, rng)
        for device in sorted(views.keys() - present.keys()):
            plan = with_joiner(plan, device, views[device], self._settings)
        self._take(plan)
        leaders: list[str] = [cluster.leader for cluster in plan.clusters]
        self._seats = Seats(term, dict.fromkeys(leaders, term), dict.fromkeys(leaders, 0))
        return self._stored()

    def join(self, device: DeviceId) -> list[StoreOp]:
        """Place a late joiner at once; its leader gets a revised assignment."""
        assert self.plan is not None  # noqa: S101  # the federation has begun
        record = self.devices[device]
        self._take(with_joiner(self.plan, device, DeviceView(record.telemetry, record.evidence), self._settings))
        cluster = self._clusters[device]
        if cluster.leader in self._seats.terms:
            revisions = {**self._seats.revisions, cluster.leader: self._seats.revisions[cluster.leader] + 1}
            self._seats = msgspec.structs.replace(self._seats, revisions=revisions)
        else:
            self._open_seat(cluster.leader)
        return self._stored()

    def replace_leader(self, leader: DeviceId) -> tuple[DeviceId | None, list[StoreOp]]:
        """Give the cluster of a lost leader to its first deputy online, under a new term."""
        assert self.plan is not None  # noqa: S101  # the federation has begun
        cluster = self._clusters[leader]
        heirs = [device for device in cluster.members if device != leader and self.devices[device].online]
        if not heirs:
            return None, []
        plan = self.plan
        while self._leader_of(plan, heirs[0]) != heirs[0]:
            plan = with_leader_lost(plan, self._leader_of(plan, heirs[0]), self._settings)
        self._take(plan)
        terms = {each: term for each, term in self._seats.terms.items() if each != leader}
        self._seats = msgspec.structs.replace(self._seats, terms=terms)
        self._open_seat(heirs[0])
        return heirs[0], self._stored()

    def settle(self, device: DeviceId, seqs: tuple[int, ...]) -> tuple[int, StoreOp]:
        """Enter chunks into the books; returns how many were there before, which must be none."""
        record = self.devices[device]
        doubled = sum(1 for seq in seqs if seq in record.settled)
        record.settled = record.settled.union(seqs)
        return doubled, Put(SETTLED, device, msgspec.msgpack.encode(record.settled))

    def assignment(self, device: DeviceId) -> Assignment:
        """What the device is to be told."""
        cluster = self._clusters[device]
        leads = cluster.leader == device
        return Assignment(
            term=self._seats.terms[cluster.leader],
            revision=self._seats.revisions[cluster.leader],
            leader=cluster.leader,
            settled=self.devices[device].settled,
            deputies=cluster.deputies,
            members=tuple(self._members(cluster)) if leads else (),
        )

    def _members(self, cluster: ClusterPlan) -> Iterator[Member]:
        for device in cluster.members:
            record = self.devices[device]
            yield Member(device, record.settled, record.status.sample_count)

    def _open_seat(self, leader: DeviceId) -> None:
        term = self._seats.term + 1
        self._seats = Seats(term, {**self._seats.terms, leader: term}, {**self._seats.revisions, leader: 0})

    def _leader_of(self, plan: FleetPlan, device: DeviceId) -> DeviceId:
        return assignments(plan)[device].leader

    def _take(self, plan: FleetPlan) -> None:
        self.plan = plan
        self._clusters = assignments(plan)

    def _stored(self) -> list[StoreOp]:
        return [
            Put(STATE, "plan", msgspec.msgpack.encode(self.plan)),
            Put(STATE, "seats", msgspec.msgpack.encode(self._seats)),
        ]
