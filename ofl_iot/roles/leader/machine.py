"""The leader: merges each chunk exactly once, answers pulls, brings its cluster's update into the rounds.

A chunk is journalled before it is confirmed, so a restart replays it; the whole model is stored when the journal has
grown and at every contribution. What a contribution held is settled when a global model's manifest names it.
Algorithm 2, leader side, and Algorithm 4, lines 3 to 9.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from ofl_iot.errors import LateError, RefusedError
from ofl_iot.ids import DeviceId
from ofl_iot.protocol.chunks import Chunk
from ofl_iot.protocol.codec import encode_body
from ofl_iot.protocol.lean import VOUCH
from ofl_iot.protocol.messages import (
    Assignment,
    Contribution,
    Manifest,
    Part,
    PartReceipt,
    Pull,
    Receipt,
    RoundOpen,
)
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.roles.base import collect
from ofl_iot.roles.block_layout import BlockLayout
from ofl_iot.roles.commands import CancelTimer, Command, Compute, Persist, Publish, Subscribe, Unsubscribe
from ofl_iot.roles.events import (
    Arrived,
    ContributionProtected,
    Event,
    JobFailed,
    LeanAnswered,
    LinkDown,
    LinkUp,
    OpenBody,
    Started,
    TimerFired,
)
from ofl_iot.roles.job_kinds.rounds import ProtectContribution
from ofl_iot.roles.leader.cluster_model import ClusterModel, Pin
from ofl_iot.roles.leader.contribution import RESEND, Contributing, Keys
from ofl_iot.roles.leader.downloads import answer_to, check_pull, pulled_bytes
from ofl_iot.roles.leader.journal import TABLE as JOURNAL
from ofl_iot.roles.leader.journal import Journal
from ofl_iot.roles.leader.member_lives import MemberLives
from ofl_iot.roles.leader.membership import Membership
from ofl_iot.roles.leader.merging import Merging
from ofl_iot.roles.leader.model_reader import FETCH, ModelReader
from ofl_iot.roles.leader.observation import Observer
from ofl_iot.roles.leader.waiting_list import WaitingList
from ofl_iot.roles.refusals import Refusals
from ofl_iot.roles.reports.base import RowsSetAside
from ofl_iot.roles.reports.leader import (
    ChunkBounded,
    ChunkMerged,
    ChunkRefused,
    ContributionFailed,
    GlobalModelAdopted,
    LeadershipBegun,
    LeadershipEnded,
    StoredClusterDropped,
)
from ofl_iot.roles.settings import LeaderRules
from ofl_iot.roles.storage import Delete, DeleteTable, Put, Stored, StoreOp, set_aside
from ofl_iot.roles.store_identity import StoreIdentity

STATE, OFFICE = "leader.state", "leader.office"


@dataclass(frozen=True)
class LeaderProfile:
    """Which device leads, which model."""

    device: DeviceId
    model: bytes
    layout: BlockLayout
    encrypted: bool = True
    """Whether to contribute only under a joint key, unless there is no other cluster to hide among."""
    max_energy: float = math.inf
    """Largest squared length of an update that can be encrypted and scored; a longer one is contributed in parts."""

    @property
    def identity(self) -> bytes:
        """Stored books of any other model are of no use."""
        return self.model + self.layout.size.to_bytes(8, "little") + self.layout.block_size.to_bytes(8, "little")


class LeaderMachine:
    """One leader's decisions; it is idle until an assignment names its device as the leader."""

    def __init__(
        self,
        profile: LeaderProfile,
        rules: LeaderRules,
        merging: Merging,
        keys: Keys,
        store: StoreIdentity | None = None,
    ) -> None:
        self.profile = profile
        self._store = store or StoreIdentity()
        self._rules = rules
        self._merging = merging
        self.cluster: ClusterModel | None = None
        self._assignment: Assignment | None = None
        self._seen: tuple[int, ...] = (0, 0)
        """Term and revision of the last assignment."""
        self._members = Membership()
        self._lives = MemberLives()
        self._journal = Journal()
        self._waiting_list = WaitingList()
        self._early_pulls: dict[DeviceId, Pull] = {}
        """The last pull of each member that came before there was a model."""
        self._contributing = Contributing(profile.device, keys, encrypted=profile.encrypted, resend_s=rules.resend_s)
        self._intake = ModelReader(profile.layout.size)
        self._observer = Observer()
        self._refusals = Refusals(profile.device)

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take an event, decide, and say what to do."""
        return collect(self._decide(event, now), event)

    @property
    def leading(self) -> bool:
        """Whether this device leads a cluster."""
        return self.cluster is not None

    @property
    def open_body(self) -> OpenBody | None:
        """What this leader contributed to the open round."""
        return self._contributing.open_body(self.cluster) if self.cluster else None

    @property
    def pin(self) -> tuple[bytes, tuple[tuple[str, int], ...]] | None:
        """Key and vector for which the contributed update was signed."""
        pin = self.cluster.pin if self.cluster else None
        return (pin.key_id, pin.vector) if pin else None

    @property
    def _office(self) -> ClusterModel:
        """The cluster that this leader leads; messages reach the methods that use it only while there is one."""
        if self.cluster is None:
            raise LateError("this device leads no cluster")
        return self.cluster

    def _decide(self, event: Event, now: float) -> Iterator[Command]:
        if isinstance(event, Started):
            yield from self._start(event.stored)
        elif isinstance(event, LinkUp):
            self._contributing.link_up()
            if self.leading:
                yield from self._subscribe()
                yield from self._contributing.send_due(now)
        elif isinstance(event, LinkDown):
            self._contributing.link_lost()
            self._observer.link_lost()
        elif isinstance(event, Arrived):
            yield from self._receive(event, now)
        elif isinstance(event, ContributionProtected):
            yield from self._protected(event, now)
        elif isinstance(event, LeanAnswered):
            yield from self._pinned(event)
        elif isinstance(event, TimerFired) and event.name == RESEND:
            yield from self._contributing.send_due(now)
        elif isinstance(event, TimerFired) and event.name == FETCH:
            yield from self._intake.timer(now)
        elif isinstance(event, JobFailed):
            yield ContributionFailed(round_no=event.round_no, reason=event.reason)
        else:
            raise TypeError(f"a leader does not expect {type(event).__name__}")

    # --- taking and leaving office

    def _start(self, stored: Stored) -> Iterator[Command]:
        self._seen = tuple(msgspec.msgpack.decode(stored[OFFICE]["seen"])) if OFFICE in stored else (0, 0)
        state = stored.get(STATE, {})
        if "assignment" not in state:
            return
        if state["model"] != self.profile.identity:
            yield StoredClusterDropped(reason="another model is learnt now")
            yield Persist((DeleteTable(STATE), DeleteTable(JOURNAL)))
            return
        self._take_members(msgspec.msgpack.decode(state["assignment"], type=Assignment))
        self._lives.restore(state.get("lives"))
        cluster = ClusterModel.restored(self.profile.layout, state["cluster"], self.profile.max_energy)
        self._merging.restore(state["merging"])
        if order := state.get("turned away"):
            self._waiting_list.restore(order)
        self._waiting_list.remove(*self._journal.replay(stored.get(JOURNAL, {}), cluster, self._merging, self._lives))
        if self._journal.unreadable:
            yield RowsSetAside(JOURNAL, len(self._journal.unreadable))
            yield Persist(set_aside(JOURNAL, self._journal.unreadable))
        self.cluster = cluster
        if cluster.frozen is not None:
            cluster.pin = msgspec.msgpack.decode(state["pin"], type=Pin) if "pin" in state else None
            if "body" in state:
                self._contributing.load(state["body"], cluster)
            else:
                cluster.thaw()  # nothing of it has left: the round asks again
        yield from self._subscribe()

    def _subscribe(self) -> Iterator[Command]:
        """Retained messages come again with each subscription, so this also fetches what was missed."""
        me = self.profile.device
        yield Subscribe(Kind.UPDATE, receiver=me)
        yield Subscribe(Kind.PULL, receiver=me)
        yield Subscribe(Kind.GLOBAL_PART)
        yield Subscribe(Kind.MANIFEST)
        yield Subscribe(Kind.ROUND_OPEN)

    def _assigned(self, assignment: Assignment) -> Iterator[Command]:
        held = self._assignment
        if (assignment.term, assignment.revision) <= self._seen:
            return
        if not self._store.is_ours(assignment.store):
            return  # what this leader held then is lost: the coordinator gives the cluster a new term
        self._seen = (assignment.term, assignment.revision)
        if assignment.leader != self.profile.device:
            if self.leading:
                yield from self._resign(assignment)
            return
        if held and self.cluster and held.term == assignment.term:
            self.cluster.admit(assignment.members)
        else:
            # A new term: what the old one left unsettled is sent again by the devices that hold it.
            self.cluster = ClusterModel(
                self.profile.layout, assignment.term, assignment.members, self.profile.max_energy
            )
            self._contributing.forget()
            self._intake.forget()
            self._waiting_list.forget()
            self._early_pulls.clear()
        self._take_members(assignment)
        self._waiting_list.retain(self._members.samples)
        yield Persist(
            (
                Put(STATE, "assignment", msgspec.msgpack.encode(assignment)),
                Put(STATE, "model", self.profile.identity),
                self._stored_seen(),
                *self._snapshot(),
            )
        )
        yield LeadershipBegun(term=assignment.term, members=len(assignment.members))
        yield from self._subscribe()

    def _stored_seen(self) -> Put:
        """An older assignment that comes late must not bring a past office back, not even after a restart."""
        return Put(OFFICE, "seen", msgspec.msgpack.encode(self._seen))

    def _take_members(self, assignment: Assignment) -> None:
        self._assignment = assignment
        self._members.take(assignment.members)
        self._lives.admit(assignment.members)

    def _resign(self, assignment: Assignment) -> Iterator[Command]:
        self.cluster = self._assignment = None
        self._contributing.forget()
        self._intake.forget()
        self._waiting_list.forget()
        self._early_pulls.clear()
        yield Persist((DeleteTable(STATE), DeleteTable(JOURNAL), self._stored_seen()))
        yield LeadershipEnded(term=assignment.term, leader=assignment.leader)
        me = self.profile.device
        yield Unsubscribe(Kind.UPDATE, receiver=me)
        yield Unsubscribe(Kind.PULL, receiver=me)
        for kind in (Kind.GLOBAL_PART, Kind.MANIFEST, Kind.ROUND_OPEN):
            yield Unsubscribe(kind)
        yield CancelTimer(RESEND)
        yield from self._intake.stop()

    # --- messages

    def _receive(self, event: Arrived, now: float) -> Iterator[Command]:
        """Take a message; a member whose message is refused is told why."""
        try:
            yield from self._accept(event, now)
        except RefusedError as error:
            member = event.topic.kind in (Kind.UPDATE, Kind.PULL) and event.topic.sender != self.profile.device
            if member and not isinstance(error, LateError):
                answer = self._refusals.refuse(event.topic.sender, error.code, str(error), now)
                if answer:
                    yield answer
            raise

    def _accept(self, event: Arrived, now: float) -> Iterator[Command]:
        message, sender = event.message, event.topic.sender
        if isinstance(message, Assignment):
            yield from self._assigned(message)
        elif isinstance(message, Chunk):
            yield from self._chunk(sender, message, now)
        elif isinstance(message, Pull):
            self._members.check(sender)
            self._members.check_pull(sender, *pulled_bytes(message, self.profile.layout, self._rules), now)
            yield from self._answer(sender, message)
        elif isinstance(message, RoundOpen):
            yield from self._opened(message, now)
        elif isinstance(message, Part):
            yield from self._global_part(message, now)
        elif isinstance(message, Manifest):
            yield from self._manifested(message, now)
        elif isinstance(message, PartReceipt):
            yield from self._part_receipt(sender, message, now)
        else:
            raise RefusedError(f"a {event.topic.kind.name} message is not for a leader")

    # --- the cluster

    def _chunk(self, sender: DeviceId, chunk: Chunk, now: float) -> Iterator[Command]:
        cluster = self._office
        self._members.check(sender)
        if chunk.model != self.profile.model or chunk.size != self.profile.layout.size:
            raise RefusedError(f"a chunk of another model ({chunk.size} parameters)", "wrong-model")
        if chunk.term > cluster.term:
            raise RefusedError(f"a chunk of term {chunk.term}, this cluster is in {cluster.term}")
        if not cluster.ready:
            return  # no receipt: the device sends it again when the global model is here
        self._lives.check(sender, chunk)
        self._members.check_number(
            sender, chunk.seq, cluster.settled_of(sender, chunk.store), cluster.held(sender, chunk)
        )
        if cluster.holds(sender, chunk.seq, chunk.store) or cluster.has_room_for(chunk):
            yield from self._take(sender, chunk, now)
        else:
            self._waiting_list.hold(sender, chunk)  # no receipt either: the device keeps it

    def _take(self, sender: DeviceId, chunk: Chunk, now: float) -> Iterator[Command]:
        """Merge a chunk unless that is done, make it durable, confirm it."""
        cluster = self._office
        self._lives.heard(sender, chunk)
        if not cluster.holds(sender, chunk.seq, chunk.store):
            self._waiting_list.remove(sender)
            wanted = self._merging.step(sender, chunk, now, self._members.samples, cluster.round_no)
            step = cluster.bounded(chunk, wanted)
            if step != wanted:
                yield ChunkBounded(device=sender, seq=chunk.seq, to=step / wanted)
            cluster.merge(sender, chunk, step, self._merging.effort(chunk))
            if chunk.term == cluster.term:
                self._observer.chunk_arrived(sender, chunk, now)
            yield Persist((self._journal.enter(sender, chunk, step),))
            if self._journal.length >= self._rules.snapshot_chunks:
                yield Persist(tuple(self._snapshot()))
            if step > 0:
                yield ChunkMerged(sender, chunk.seq, step, chunk.count)
            else:
                yield ChunkRefused(sender, chunk.seq, chunk.count)
        yield self._receipt(sender, (chunk.seq,))

    def _take_those_turned_away(self, now: float) -> Iterator[Command]:
        """A part has gone: the longest waiting first, and behind one that does not fit those that begin no part."""
        for device, chunk in self._waiting_list.chunks():
            if self._office.has_room_for(chunk):
                self._waiting_list.remove(device)
                yield from self._take(device, chunk, now)

    def _receipt(self, device: DeviceId, stored: tuple[int, ...]) -> Publish:
        cluster, store = self._office, self._lives.store_of(device)
        receipt = Receipt(
            cluster.term,
            stored,
            cluster.settled_of(device, store),
            self._rules.credits,
            cluster.highest(device, store),
            store,
            self._lives.account_of(device),
        )
        return Publish(Topic(Kind.RECEIPT, self.profile.device, device), receipt)

    def _answer(self, sender: DeviceId, pull: Pull) -> Iterator[Command]:
        cluster = self._office
        if pull.term != cluster.term:
            raise LateError(f"a pull of term {pull.term}, this cluster is in {cluster.term}")
        check_pull(pull, cluster)
        if not cluster.ready:
            self._early_pulls[sender] = pull
            return
        answer = answer_to(pull, cluster, self._rules)
        yield self._receipt(sender, ())
        for blocks in answer:
            yield Publish(Topic(Kind.BLOCKS, self.profile.device, sender), blocks)

    def _snapshot(self) -> list[StoreOp]:
        """The whole cluster model in place of the journal."""
        return [
            Put(STATE, "cluster", self._office.snapshot()),
            Put(STATE, "merging", self._merging.snapshot()),
            Put(STATE, "lives", self._lives.snapshot()),
            Put(STATE, "turned away", self._waiting_list.snapshot()),
            self._journal.empty(),
        ]

    # --- rounds

    def _opened(self, opened: RoundOpen, now: float) -> Iterator[Command]:
        cluster = self._office
        if not self._contributing.take(opened, cluster):
            return
        if cluster.round_no != opened.base_round:
            yield from self._intake.fetch(now)  # the round stands on a global model that is not here yet
        elif cluster.frozen_round == opened.round_no:
            yield from self._contributing.send_due(now)
        else:
            key = self._contributing.key_for(opened)
            ground = self._contributing.ground_for(opened, key, cluster)
            update = cluster.freeze(opened.round_no, opened.bounds if ground else b"")
            self._contributing.unload()
            yield Persist((*self._snapshot(), Delete(STATE, "body"), *self._unpinned()))
            yield Compute(ProtectContribution(opened.round_no, update.copy(), self.profile.device, key, ground))
            yield from self._take_those_turned_away(now)

    def _protected(self, event: ContributionProtected, now: float) -> Iterator[Command]:
        if self.cluster is None or self.cluster.frozen_round != event.round_no:
            return  # the round has passed
        merged = tuple(map(self._lives.accounted, self.cluster.frozen_settlements))
        contribution = Contribution(
            payload=event.payload,
            merged=merged,
            sample_count=sum(self._members.samples.values()),
            updates=sum(len(settlement.seqs) for settlement in merged),
            observed=tuple(each for each in self._observer.report() if each.device in self._members),
            effort=self.cluster.frozen_effort,
        )
        body = encode_body(contribution)
        self._contributing.load(body, self.cluster)
        yield Persist((Put(STATE, "body", body),))
        yield from self._contributing.send_due(now)

    def _unpinned(self) -> tuple[StoreOp, ...]:
        """A pin of an earlier update must not come back with a restart."""
        return () if self._office.pin else (Delete(STATE, "pin"),)

    def _pinned(self, event: LeanAnswered) -> Iterator[Command]:
        """The update is being signed for: from now on it is contributed as one unit, and under this vector alone."""
        own, cluster = self.open_body, self.cluster
        if event.stage != VOUCH or own is None or cluster is None or own.header != event.header:
            return
        if cluster.pin is None or cluster.pin.key_id != event.key_id:
            cluster.pin = Pin(event.key_id, event.vector)
            yield Persist((Put(STATE, "pin", msgspec.msgpack.encode(cluster.pin)),))

    def _part_receipt(self, sender: DeviceId, receipt: PartReceipt, now: float) -> Iterator[Command]:
        if self._contributing.confirm(sender, receipt, self.cluster):
            yield from self._contributing.send_due(now)

    # --- the global model

    def _global_part(self, part: Part, now: float) -> Iterator[Command]:
        if part.round_no > self._office.round_no:
            yield from self._intake.take_part(part, now)
            yield from self._adopt(now)

    def _manifested(self, manifest: Manifest, now: float) -> Iterator[Command]:
        if manifest.model != self.profile.model or manifest.size != self.profile.layout.size:
            raise RefusedError(f"a global model of another shape ({manifest.size} parameters)")
        if self._assignment and manifest.incarnation != self._assignment.incarnation:
            raise LateError("a global model of another coordinator than this leader's")
        if manifest.round_no > self._office.round_no:
            yield from self._intake.take_manifest(manifest, now)
            yield from self._adopt(now)

    def _adopt(self, now: float) -> Iterator[Command]:
        version, cluster = self._intake.complete(), self._office
        if version is None:
            return
        round_no = version.manifest.round_no
        included = self._contributing.included_in(version.manifest, cluster)
        served = cluster.adopt(version.values, round_no, included=included)
        self._contributing.unload()
        yield Persist((*self._snapshot(), Delete(STATE, "body"), *self._unpinned()))
        yield from self._intake.stop()
        yield CancelTimer(RESEND)
        yield GlobalModelAdopted(round_no=round_no, included=included)
        for device in served:
            if device in self._members:
                yield self._receipt(DeviceId(device), ())
        early, self._early_pulls = self._early_pulls, {}
        for device, pull in early.items():
            if device in self._members:
                yield from self._answer(device, pull)
        opened = self._contributing.opened
        if opened and opened.round_no > cluster.round_no:
            yield from self._opened(opened, now)
