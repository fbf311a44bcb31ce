"""The coordinator's books on devices: who there is, where each belongs, which chunks the global model holds."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import msgspec
import numpy as np

from ofl_iot.fleet import assignment as planning
from ofl_iot.fleet.assignment import (
    ClusterPlan,
    FleetPlan,
    FleetSettings,
    assignments,
    plan_assignments,
    with_joiners,
    with_leader_lost,
)
from ofl_iot.fleet.election import fit_to_serve, link_serves, typical_mbps
from ofl_iot.ids import DeviceId, Term
from ofl_iot.protocol.key_messages import KeyMember
from ofl_iot.protocol.messages import Assignment, Member, Observation, Seat, Settlement, Status
from ofl_iot.protocol.seqset import MAX_STEP, SeqSet
from ofl_iot.protocol.telemetry import Telemetry
from ofl_iot.robust.claims import FLEET_RATIO, believable, most_believable
from ofl_iot.roles.coordinator.device_record import KNOWN, DeviceRecord
from ofl_iot.roles.coordinator.seats import Seats
from ofl_iot.roles.coordinator.settled_record import LIVES, SETTLED, SettledRecord, restored, stored_record
from ofl_iot.roles.leader.observation import ContactWindow
from ofl_iot.roles.settings import TrainingRules
from ofl_iot.roles.storage import Delete, DeleteTable, Put, Stored, StoreOp

STATE, DEVICES = "coordinator.fleet", "coordinator.devices"


class Roster:
    """Devices, clusters and their terms; every change comes with the operations that make it durable."""

    def __init__(
        self, settings: FleetSettings, training: TrainingRules, max_samples_ratio: float = FLEET_RATIO
    ) -> None:
        self._settings = settings
        self._max_samples_ratio = max_samples_ratio
        self._training = training
        self.incarnation = b""
        """Incarnation of the coordinator; every assignment names it."""
        self.devices: dict[DeviceId, DeviceRecord] = {}
        self.online_count = 0
        """Devices that can be reached."""
        self.plan: FleetPlan | None = None
        self._clustered: FleetPlan | None = None
        """The plan as the last clustering made it: turnover counts from there."""
        self._seats = Seats(0, {}, {})
        self._clusters: Mapping[DeviceId, ClusterPlan] = {}
        self._most_samples: int | None = None
        """What a device of this plan is believed at most; None until somebody asks."""
        self._unmet: dict[DeviceId, SettledRecord] = {}
        """Books on devices that have not announced themselves to this coordinator."""
        self._counted = ((-1, 0), 0)
        """For which plan the fleet's records were counted, and how many they were."""

    def restore(self, stored: Stored, now: float) -> None:
        """Take up the books of an earlier process; who is online will be seen."""
        books, known = restored(stored), stored.get(KNOWN, {})
        for device, status in stored.get(DEVICES, {}).items():
            decoded = msgspec.msgpack.decode(status, type=Status)
            record = DeviceRecord(decoded, online=False, since=now, contact=ContactWindow.open(now))
            record.books = books.get(DeviceId(str(device)), record.books)
            if device in known:
                record.restore(known[device])
            self.devices[DeviceId(str(device))] = record
        self._unmet = {device: each for device, each in books.items() if device not in self.devices}
        rows = stored.get(STATE, {})
        if "seats" in rows:
            self._seats = msgspec.msgpack.decode(rows["seats"], type=Seats)
        if "plan" in rows:
            self._take(msgspec.msgpack.decode(rows["plan"], type=FleetPlan))
            self._clustered = msgspec.msgpack.decode(rows["clustered"], type=FleetPlan)

    # --- what is seen of devices

    def heard(self, device: DeviceId, status: Status, now: float) -> list[StoreOp]:
        """A device announced itself or went."""
        known = self.devices.get(device)
        if known is None:
            record = DeviceRecord(status, status.online, now, ContactWindow.open(now))
            record.books = self._unmet.pop(device, record.books)
            self.devices[device] = record
            self.online_count += status.online
            return [Put(DEVICES, device, msgspec.msgpack.encode(status)), *self._heard_store(device, status.store)]
        self.online_count += status.online - known.online
        changed = known.announced(status, now)
        told = [Put(DEVICES, device, msgspec.msgpack.encode(known.status))] if changed else []
        return [*told, *self._heard_store(device, status.store)]

    def has_another_store(self, device: DeviceId, store: bytes) -> bool:
        """Return whether a device that is known announces a store other than before."""
        record = self.devices.get(device)
        return record is not None and record.books.with_store(store) != record.books and record.books != SettledRecord()

    def _heard_store(self, device: DeviceId, store: bytes) -> list[StoreOp]:
        record = self.devices[device]
        before, record.books = record.books, record.books.with_store(store)
        return [] if record.books == before else [stored_record(device, record.books)]

    @property
    def books(self) -> dict[str, SettledRecord]:
        """The books on every device of which something is known."""
        known = {device: record.books for device, record in self.devices.items()}
        return {device: each for device, each in sorted({**known, **self._unmet}.items()) if each != SettledRecord()}

    @property
    def settled(self) -> dict[str, SeqSet]:
        """All chunks that the global model holds, by device."""
        return {device: each.settled for device, each in self.books.items() if each.settled != SeqSet()}

    def inherit(self, books: Mapping[str, SettledRecord]) -> list[StoreOp]:
        """Take up the books of a coordinator before this one; clusters of our own are of the past."""
        for device, record in self.devices.items():
            record.books = books.get(device, SettledRecord()).with_store(record.status.store)
        self._unmet = {DeviceId(device): each for device, each in books.items() if device not in self.devices}
        self.plan = self._clustered = None
        self._clusters = {}
        self._seats = self._seats.cleared()
        rows = (stored_record(device, each) for device, each in self.books.items())
        emptied = (DeleteTable(SETTLED), DeleteTable(LIVES))
        return [*emptied, Delete(STATE, "plan"), Delete(STATE, "clustered"), *rows, self._stored_seats()]

    def reported(self, device: DeviceId, telemetry: Telemetry) -> None:
        """A device told of its resources."""
        record = self.devices.get(device)
        if record is not None:
            record.telemetry, record.news = telemetry, True

    def observed(self, leader: DeviceId, observations: Iterable[Observation]) -> None:
        """Take in what a leader saw of its devices; of itself it cannot be a witness."""
        for seen in observations:
            device = DeviceId(seen.device)
            cluster = self._clusters.get(device)
            if cluster and cluster.leader == leader and device != leader:
                self.devices[device].observed(seen, self._training)

    def take_stock(self, now: float, *, at_once: bool = False) -> list[StoreOp]:
        """Close the contact windows that are long enough, or all; what was learnt of the devices becomes durable."""
        kept = (record.take_stock(device, now, at_once=at_once) for device, record in self.devices.items())
        return [op for ops in kept for op in ops]

    def observe_term(self, term: int) -> None:
        """Raise the term counter to at least `term`, by a bounded step: nobody can use the terms up."""
        self._seats = self._seats.raised(term)

    def observe_claimed_terms(self) -> None:
        """Begin above the terms that devices hold, as after a lost store."""
        self._seats = self._seats.raised_by_claims(record.status.term for record in self.devices.values())

    @property
    def online(self) -> list[DeviceId]:
        """Devices that can be reached."""
        return [device for device, record in self.devices.items() if record.online]

    def live(self, now: float, away_s: float) -> list[DeviceId]:
        """Devices that are online or have not been away for long."""
        return [device for device, record in self.devices.items() if record.online or now - record.since < away_s]

    def turnover(self, now: float, away_s: float) -> float:
        """(joined + gone for long) / clustered, since the last clustering."""
        return planning.turnover(self._clustered, self.live(now, away_s)) if self._clustered else 0.0

    def unfit_leaders(self) -> list[DeviceId]:
        """Leaders online whose battery, temperature or link ends their service, where somebody can take over."""
        unfit = []
        for leader in map(DeviceId, sorted(self._seats.terms)):
            record = self.devices[leader]
            fit = self._fit(leader, sitting=True)
            if record.online and not fit and any(self._fit(heir) for heir in self._heirs(leader)):
                unfit.append(leader)
        return unfit

    def budgets_spent(self) -> bool:
        """Whether every device that is assigned says that it cannot pay for another training."""
        return bool(self._clusters) and all(self.devices[each].telemetry.budget_left <= 0 for each in self._clusters)

    def cluster_of(self, device: DeviceId) -> ClusterPlan | None:
        """The cluster a device belongs to."""
        return self._clusters.get(device)

    def books_of(self, leader: DeviceId) -> dict[str, SettledRecord]:
        """The books on each device that the leader leads."""
        cluster = self._clusters.get(leader)
        if cluster is None or cluster.leader != leader:
            return {}
        return {device: self.devices[device].books for device in cluster.members}

    def seq_limit(self, settlement: Settlement) -> int:
        """The highest chunk number that a leader may settle of a device's store."""
        record = self.devices[DeviceId(settlement.device)]
        return max(record.books.settled_of(settlement.store).highest, record.status.next_seq) + MAX_STEP

    def leads(self, device: DeviceId) -> bool:
        """Whether the device leads a cluster."""
        return device in self._seats.terms

    def seats(self) -> tuple[Seat, ...]:
        """Every leader with its term."""
        return tuple(Seat(leader, term) for leader, term in sorted(self._seats.terms.items()))

    def key_members(self, leaders: Iterable[str]) -> tuple[KeyMember, ...] | None:
        """These leaders with their public sealing keys; None while one has not announced any."""
        statuses = {leader: self.devices[DeviceId(leader)].status for leader in sorted(leaders)}
        if not all(status.sealing_key for status in statuses.values()):
            return None
        return tuple(KeyMember(leader, each.sealing_key, each.certificate) for leader, each in statuses.items())

    @property
    def highest_term(self) -> int:
        """The last number given to an assignment."""
        return self._seats.term

    @property
    def terms(self) -> Mapping[str, int]:
        """The term of each leader."""
        return self._seats.terms

    def propose(self, now: float, failing: Collection[DeviceId] = ()) -> tuple[FleetPlan, list[StoreOp]]:
        """Plan the fleet anew under the next term, which is taken; `adopt` puts the plan into force.

        Whoever failed as a leader is not elected, unless a cluster has nobody else.
        """
        ops = self.take_stock(now, at_once=True)
        self._seats = self._seats.next_term()
        term = self._seats.term
        present = {device: self.devices[device].view for device in self.online}
        rng = np.random.default_rng(term)
        plan = plan_assignments(present, self.plan, Term(term), self._settings, rng, failing=failing)
        return plan, [*ops, self._stored_seats()]

    def adopt(self, plan: FleetPlan, now: float, away_s: float) -> list[StoreOp]:
        """Put a plan into force. Who is away for a short time, or came since it was made, gets a place."""
        others = {device: self.devices[device].view for device in self.live(now, away_s)}
        plan = with_joiners(plan, others, self._settings)
        self._take(plan)
        self._clustered = plan
        self._seats = self._seats.all_of([cluster.leader for cluster in plan.clusters], int(plan.term))
        return [*self.stored(), Put(STATE, "clustered", msgspec.msgpack.encode(plan))]

    def join(self, device: DeviceId) -> list[StoreOp]:
        """Place a late joiner at once; its leader gets a revised assignment."""
        assert self.plan is not None  # noqa: S101  # the federation has begun
        self._take(with_joiners(self.plan, {device: self.devices[device].view}, self._settings))
        return self.revise(self._clusters[device].leader)

    def revise(self, leader: DeviceId) -> list[StoreOp]:
        """Number a change within a cluster, so that its leader takes it up."""
        self._seats = self._seats.revised(leader)
        return self.stored()

    def reseat(self, leader: DeviceId) -> list[StoreOp]:
        """Give a leader a new term: what its devices had sent in the old one is sent again."""
        self._seats = self._seats.opened(leader)
        return self.stored()

    def should_yield(self, device: DeviceId) -> bool:
        """Whether a leader says that its link is too thin to lead, and somebody can take over."""
        if not self.leads(device):
            return False
        claimed = self.devices[device].telemetry.network_mbps
        thin = claimed is not None and claimed < self._settings.election.min_mbps
        return thin and any(self._fit(heir) for heir in self._heirs(device))

    def replace_leader(
        self, leader: DeviceId, failing: Collection[DeviceId] = ()
    ) -> tuple[DeviceId | None, list[StoreOp]]:
        """Give the cluster of a lost leader to the first in succession who is online.

        Whoever has failed in making a key, or is not fit to serve, comes last.
        """
        assert self.plan is not None  # noqa: S101  # the federation has begun
        heirs = sorted(self._heirs(leader), key=lambda heir: (heir in failing, not self._fit(heir)))
        if not heirs:
            return None, []
        plan = self.plan
        while self._leader_of(plan, heirs[0]) != heirs[0]:
            plan = with_leader_lost(plan, self._leader_of(plan, heirs[0]), self._settings)
        self._take(plan)
        self._seats = self._seats.without(leader).opened(heirs[0])
        return heirs[0], self.stored()

    def settle(self, settlement: Settlement) -> tuple[int, StoreOp]:
        """Enter chunks into the books; returns how many were there before, which must be none."""
        device = DeviceId(settlement.device)
        record = self.devices[device]
        before = record.books.settled_of(settlement.store)
        doubled = sum(1 for seq in settlement.seqs if seq in before)
        record.books = record.books.settle(settlement.seqs, settlement.store, settlement.account)
        return doubled, stored_record(device, record.books)

    def assignment(self, device: DeviceId) -> Assignment:
        """What the device is to be told."""
        cluster, books = self._clusters[device], self.devices[device].books
        leads = cluster.leader == device
        return Assignment(
            term=self._seats.terms[cluster.leader],
            revision=self._seats.revisions[cluster.leader],
            leader=cluster.leader,
            settled=books.settled,
            deputies=cluster.deputies,
            members=tuple(self._members(cluster)) if leads else (),
            incarnation=self.incarnation,
            store=books.store,
            account=books.account,
            fleet_records=self._fleet_records(),
            fleet_devices=len(self._clusters),
        )

    def stored(self) -> list[StoreOp]:
        """The plan and its terms, as they are to be durable."""
        return [Put(STATE, "plan", msgspec.msgpack.encode(self.plan)), self._stored_seats()]

    def _stored_seats(self) -> StoreOp:
        return Put(STATE, "seats", msgspec.msgpack.encode(self._seats))

    def _samples(self) -> dict[DeviceId, int]:
        """The believable sample counts of all that are assigned."""
        return believable(self._claims(), self._max_samples_ratio)

    def _claims(self) -> dict[DeviceId, int]:
        return {device: self.devices[device].status.sample_count for device in self._clusters}

    def unbelieved(self, device: DeviceId) -> int:
        """What a device counts with if that is less than it claims; 0 if it is believed, or has no cluster yet."""
        if device not in self._clusters:
            return 0
        claim = self.devices[device].status.sample_count
        if self._most_samples is None or claim > self._most_samples:  # the others may have more than they had
            self._most_samples = most_believable(self._claims().values(), self._max_samples_ratio)
        return self._most_samples if self._most_samples < claim else 0

    def _fleet_records(self) -> int:
        """Return about how many records all devices have; counted anew when the plan or their number changes."""
        plan = (self.highest_term, len(self._clusters))
        if self._counted[0] != plan:
            self._counted = plan, sum(self._samples().values())
        return self._counted[1]

    def count_anew(self) -> bool:
        """Return whether all devices have twice the records that assignments tell, or half, and tell so from now on."""
        plan, told = self._counted
        now = sum(self._samples().values())
        if not self._clusters or told / 2 < now < told * 2:
            return False
        self._counted = plan, now
        return True

    def samples_of(self, leaders: Iterable[str]) -> dict[str, int]:
        """What the clusters of these leaders count with: no more than their members' believable counts."""
        samples = self._samples()
        clusters = {leader: self._clusters.get(DeviceId(leader)) for leader in leaders}
        return {
            leader: sum(samples[device] for device in cluster.members)
            for leader, cluster in clusters.items()
            if cluster
        }

    def _members(self, cluster: ClusterPlan) -> Iterator[Member]:
        samples = self._samples()
        for device in cluster.members:
            record = self.devices[device]
            books = record.books
            status = record.status
            yield Member(device, books.settled, samples[device], books.store, books.account, next_seq=status.next_seq)

    def _heirs(self, leader: DeviceId) -> list[DeviceId]:
        """The other members online, in order of succession."""
        members = self._clusters[leader].members
        return [device for device in members if device != leader and self.devices[device].online]

    def _fit(self, device: DeviceId, *, sitting: bool = False) -> bool:
        record, election = self.devices[device], self._settings.election
        typical = typical_mbps(each.evidence for each in self.devices.values())
        fit = fit_to_serve(record.telemetry, election, sitting=sitting)
        return fit and link_serves(record.telemetry, record.evidence, typical, election)

    def _leader_of(self, plan: FleetPlan, device: DeviceId) -> DeviceId:
        return assignments(plan)[device].leader

    def _take(self, plan: FleetPlan) -> None:
        self.plan = plan
        self._clusters, self._most_samples = assignments(plan), None
