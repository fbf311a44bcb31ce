"""The coordinator's books on devices: who there is, where each belongs, which chunks the global model holds."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec
import numpy as np

from ofl_iot.fleet import assignment as planning
from ofl_iot.fleet.assignment import (
    ClusterPlan,
    DeviceView,
    FleetPlan,
    FleetSettings,
    assignments,
    plan_assignments,
    with_joiners,
    with_leader_lost,
)
from ofl_iot.fleet.election import fit_to_serve, link_serves, typical_mbps
from ofl_iot.fleet.trust import Evidence
from ofl_iot.ids import DeviceId, Term
from ofl_iot.protocol.key_messages import KeyMember
from ofl_iot.protocol.messages import Assignment, Member, Observation, Seat, Settlement, Status
from ofl_iot.protocol.seqset import MAX_STEP, SeqSet
from ofl_iot.protocol.telemetry import Telemetry
from ofl_iot.robust.claims import FLEET_RATIO, believable
from ofl_iot.roles.coordinator.device_books import LIVES, SETTLED, DeviceBooks, restored, stored_books
from ofl_iot.roles.leader.observation import ContactWindow
from ofl_iot.roles.settings import TrainingRules
from ofl_iot.roles.storage import Delete, DeleteTable, Put, Stored, StoreOp

STATE, DEVICES = "coordinator.fleet", "coordinator.devices"
KNOWN = "coordinator.known"
CONTACT_S = 300.0
"""Contact is judged over windows of at least this length."""
MAX_TERM_STEP = 2**32
"""How far a coordinator that takes over moves its term counter: more terms than a federation can have used."""
MAX_LONE_TERM_STEP = 1000
"""How far it moves for what a single device claims, beyond the others."""
_UNREPORTED = Telemetry(cpu_count=1, cpu_ghz=1.0, cpu_load=0.0, memory_total_mib=1024, memory_free_mib=512)
"""Stands in for a device whose first report has not come: modest, so that it is not made a leader."""


@dataclass
class DeviceRecord:
    """One device as the coordinator knows it."""

    status: Status
    online: bool
    since: float
    """When it was last heard of, or went offline."""
    contact: ContactWindow
    telemetry: Telemetry = _UNREPORTED
    books: DeviceBooks = field(default_factory=DeviceBooks)
    evidence: Evidence = field(default_factory=Evidence)
    news: bool = False
    """Whether report or evidence changed since they were last stored."""

    @property
    def settled(self) -> SeqSet:
        """The chunks of its present store that the global model holds."""
        return self.books.settled

    @property
    def view(self) -> DeviceView:
        """As the planning of the fleet sees it."""
        return DeviceView(self.telemetry, self.evidence)


class Knowledge(msgspec.Struct, frozen=True, array_like=True):
    """A device's last report and what was observed of it, as they are stored."""

    telemetry: Telemetry
    evidence: Evidence


class Seats(msgspec.Struct, frozen=True, array_like=True):
    """Terms and revisions of the clusters, by leader."""

    term: int
    """The highest number given so far."""
    terms: dict[str, int]
    revisions: dict[str, int]


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
        self._unmet: dict[DeviceId, DeviceBooks] = {}
        """Books on devices that have not announced themselves to this coordinator."""

    def restore(self, stored: Stored, now: float) -> None:
        """Take up the books of an earlier process; who is online will be seen."""
        books, known = restored(stored), stored.get(KNOWN, {})
        for device, status in stored.get(DEVICES, {}).items():
            decoded = msgspec.msgpack.decode(status, type=Status)
            record = DeviceRecord(decoded, online=False, since=now, contact=ContactWindow.open(now))
            record.books = books.get(DeviceId(str(device)), record.books)
            if device in known:
                knowledge = msgspec.msgpack.decode(known[device], type=Knowledge)
                record.telemetry, record.evidence = knowledge.telemetry, knowledge.evidence
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
        if not status.sealing_key:  # a last will was written before the key was made
            key, certificate = known.status.sealing_key, known.status.certificate
            status = msgspec.structs.replace(status, sealing_key=key, certificate=certificate)
        shown, before = (status.sealing_key, status.certificate), (known.status.sealing_key, known.status.certificate)
        known.contact.count(now, online=known.online)
        if status.online or known.online:
            known.since = now
        self.online_count += status.online - known.online
        known.status, known.online = status, status.online
        told = [Put(DEVICES, device, msgspec.msgpack.encode(status))] if shown != before else []
        return [*told, *self._heard_store(device, status.store)]

    def has_another_store(self, device: DeviceId, store: bytes) -> bool:
        """Return whether a device that is known announces a store other than before."""
        record = self.devices.get(device)
        return record is not None and record.books.with_store(store) != record.books and record.books != DeviceBooks()

    def _heard_store(self, device: DeviceId, store: bytes) -> list[StoreOp]:
        record = self.devices[device]
        before, record.books = record.books, record.books.with_store(store)
        return [] if record.books == before else [stored_books(device, record.books)]

    @property
    def books(self) -> dict[str, DeviceBooks]:
        """The books on every device of which something is known."""
        known = {device: record.books for device, record in self.devices.items()}
        return {device: each for device, each in sorted({**known, **self._unmet}.items()) if each != DeviceBooks()}

    @property
    def settled(self) -> dict[str, SeqSet]:
        """All chunks that the global model holds, by device."""
        return {device: each.settled for device, each in self.books.items() if each.settled != SeqSet()}

    def inherit(self, books: Mapping[str, DeviceBooks]) -> list[StoreOp]:
        """Take up the books of a coordinator before this one; clusters of our own are of the past."""
        for device, record in self.devices.items():
            record.books = books.get(device, DeviceBooks()).with_store(record.status.store)
        self._unmet = {DeviceId(device): each for device, each in books.items() if device not in self.devices}
        self.plan = self._clustered = None
        self._clusters = {}
        self._seats = Seats(self._seats.term, {}, {})
        rows = (stored_books(device, each) for device, each in self.books.items())
        emptied = (DeleteTable(SETTLED), DeleteTable(LIVES))
        return [*emptied, Delete(STATE, "plan"), Delete(STATE, "clustered"), *rows, self._stored_seats()]

    def reported(self, device: DeviceId, telemetry: Telemetry) -> None:
        """A device told of its resources."""
        record = self.devices.get(device)
        if record is not None:
            record.telemetry, record.news = telemetry, True

    def observed(self, leader: DeviceId, observations: Iterable[Observation]) -> None:
        """Take in what a leader saw of its devices; of itself it cannot be a witness.

        What comes out of a broker's queue looks faster than it was sent, so an observation above a device's own claim
        is no evidence against the claim and counts as the claim.
        """
        for seen in observations:
            device = DeviceId(seen.device)
            cluster = self._clusters.get(device)
            if cluster is None or cluster.leader != leader or device == leader:
                continue
            record = self.devices[device]
            report, evidence, steps = record.telemetry, record.evidence, self._training.steps
            if seen.trainings:
                seconds = max(1e-3, seen.training_s - self._training.pause_s, steps * (report.step_s or 0.0))
                evidence = evidence.with_training(steps, seconds)
            if seen.size_bytes:
                claimed_s = seen.size_bytes * 8e-6 / report.network_mbps if report.network_mbps else 0.0
                evidence = evidence.with_arrival(seen.size_bytes, max(seen.arrival_s, claimed_s))
            record.evidence, record.news = evidence, True

    def take_stock(self, now: float, *, at_once: bool = False) -> list[StoreOp]:
        """Close the contact windows that are long enough, or all; what was learnt of the devices becomes durable."""
        ops: list[StoreOp] = []
        for device, record in self.devices.items():
            window = record.contact
            window.count(now, online=record.online)
            if window.length_s >= (1.0 if at_once else CONTACT_S):
                record.evidence = record.evidence.with_contact(window.online_s, window.length_s)
                record.contact, record.news = ContactWindow.open(now), True
            if record.news:
                record.news = False
                knowledge = Knowledge(record.telemetry, record.evidence)
                ops.append(Put(KNOWN, device, msgspec.msgpack.encode(knowledge)))
        return ops

    def observe_term(self, term: int) -> None:
        """Raise the term counter to at least `term`, by a bounded step: nobody can use the terms up."""
        highest = min(max(term, self._seats.term), self._seats.term + MAX_TERM_STEP)
        self._seats = msgspec.structs.replace(self._seats, term=highest)

    def heed_claimed_terms(self) -> None:
        """Begin above the terms that devices hold, as after a lost store.

        A device's word alone moves the counter little; what two of them hold counts in full.
        """
        claims = sorted((record.status.term for record in self.devices.values()), reverse=True)
        if claims:
            witnessed = claims[1] if len(claims) > 1 else 0
            self.observe_term(min(claims[0], max(witnessed, self._seats.term) + MAX_LONE_TERM_STEP))

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
        """Leaders online whose battery or temperature ends their service, where somebody can take over."""
        unfit = []
        for leader in map(DeviceId, sorted(self._seats.terms)):
            record = self.devices[leader]
            fit = fit_to_serve(record.telemetry, self._settings.election, sitting=True)
            if record.online and not fit and any(self._fit(heir) for heir in self._heirs(leader)):
                unfit.append(leader)
        return unfit

    def budgets_spent(self) -> bool:
        """Whether every device that is assigned says that it cannot pay for another training."""
        return bool(self._clusters) and all(self.devices[each].telemetry.budget_left <= 0 for each in self._clusters)

    def cluster_of(self, device: DeviceId) -> ClusterPlan | None:
        """The cluster a device belongs to."""
        return self._clusters.get(device)

    def books_of(self, leader: DeviceId) -> dict[str, DeviceBooks]:
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
        self._seats = msgspec.structs.replace(self._seats, term=self._seats.term + 1)
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
        term = int(plan.term)
        leaders: list[str] = [cluster.leader for cluster in plan.clusters]
        self._seats = Seats(term, dict.fromkeys(leaders, term), dict.fromkeys(leaders, 0))
        return [*self.stored(), Put(STATE, "clustered", msgspec.msgpack.encode(plan))]

    def join(self, device: DeviceId) -> list[StoreOp]:
        """Place a late joiner at once; its leader gets a revised assignment."""
        assert self.plan is not None  # noqa: S101  # the federation has begun
        self._take(with_joiners(self.plan, {device: self.devices[device].view}, self._settings))
        return self.revise(self._clusters[device].leader)

    def revise(self, leader: DeviceId) -> list[StoreOp]:
        """Number a change within a cluster, so that its leader takes it up."""
        if leader in self._seats.terms:
            revisions = {**self._seats.revisions, leader: self._seats.revisions[leader] + 1}
            self._seats = msgspec.structs.replace(self._seats, revisions=revisions)
        else:
            self._open_seat(leader)
        return self.stored()

    def reseat(self, leader: DeviceId) -> list[StoreOp]:
        """Give a leader a new term: what its devices had sent in the old one is sent again."""
        self._open_seat(leader)
        return self.stored()

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
        terms = {each: term for each, term in self._seats.terms.items() if each != leader}
        self._seats = msgspec.structs.replace(self._seats, terms=terms)
        self._open_seat(heirs[0])
        return heirs[0], self.stored()

    def settle(self, settlement: Settlement) -> tuple[int, StoreOp]:
        """Enter chunks into the books; returns how many were there before, which must be none."""
        device = DeviceId(settlement.device)
        record = self.devices[device]
        before = record.books.settled_of(settlement.store)
        doubled = sum(1 for seq in settlement.seqs if seq in before)
        record.books = record.books.settle(settlement.seqs, settlement.store, settlement.account)
        return doubled, stored_books(device, record.books)

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
        )

    def stored(self) -> list[StoreOp]:
        """The plan and its terms, as they are to be durable."""
        return [Put(STATE, "plan", msgspec.msgpack.encode(self.plan)), self._stored_seats()]

    def _stored_seats(self) -> StoreOp:
        return Put(STATE, "seats", msgspec.msgpack.encode(self._seats))

    def _samples(self) -> dict[DeviceId, int]:
        """The believable sample counts of all that are assigned."""
        claims = {device: self.devices[device].status.sample_count for device in self._clusters}
        return believable(claims, self._max_samples_ratio)

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

    def _fit(self, device: DeviceId) -> bool:
        record, election = self.devices[device], self._settings.election
        typical = typical_mbps(each.evidence for each in self.devices.values())
        fit = fit_to_serve(record.telemetry, election, sitting=False)
        return fit and link_serves(record.evidence, typical, election)

    def _open_seat(self, leader: DeviceId) -> None:
        term = self._seats.term + 1
        self._seats = Seats(term, {**self._seats.terms, leader: term}, {**self._seats.revisions, leader: 0})

    def _leader_of(self, plan: FleetPlan, device: DeviceId) -> DeviceId:
        return assignments(plan)[device].leader

    def _take(self, plan: FleetPlan) -> None:
        self.plan = plan
        self._clusters = assignments(plan)
