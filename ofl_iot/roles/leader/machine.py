"""The leader: merges each chunk exactly once, answers pulls, brings its cluster's update into the rounds.

A chunk is journalled before it is confirmed, so a restart replays it; the whole model is stored when the journal has
grown and at every contribution. What a contribution held is settled when a global model's manifest names it.
Algorithm 2, leader side, and Algorithm 4, lines 3 to 9.
"""

from __future__ import annotations

from collections.abc import Iterator

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
    RoundOpen,
)
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.roles.base import collect
from ofl_iot.roles.commands import (
    CancelTimer,
    Command,
    Compute,
    Persist,
    Publish,
    RenewSession,
    Subscribe,
    Unsubscribe,
    Withdraw,
)
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
from ofl_iot.roles.leader.beats import BEAT, Beats
from ofl_iot.roles.leader.beats import ROW as BEAT_ROW
from ofl_iot.roles.leader.chunk_intake import ChunkIntake
from ofl_iot.roles.leader.cluster_model import ClusterModel
from ofl_iot.roles.leader.contribution import RESEND, Contributing, Keys
from ofl_iot.roles.leader.downloads import answer_to, check_pull, pulled_bytes
from ofl_iot.roles.leader.leadership import STATE, Leadership
from ofl_iot.roles.leader.merging import Merging
from ofl_iot.roles.leader.model_reader import FETCH, ModelReader
from ofl_iot.roles.leader.observation import Observer
from ofl_iot.roles.leader.pin import Pin
from ofl_iot.roles.leader.profile import LeaderProfile
from ofl_iot.roles.refusals import Refusals
from ofl_iot.roles.reports.leader import (
    ContributionFailed,
    GlobalModelAdopted,
    LeadershipBegun,
    LeadershipEnded,
    SignedVectorVoid,
)
from ofl_iot.roles.settings import LeaderRules
from ofl_iot.roles.storage import Put, Stored
from ofl_iot.roles.store_identity import StoreIdentity


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
        self._leadership = Leadership(profile, rules, merging)
        self._observer = Observer()
        self._beats = Beats(profile.device, profile.model, rules, keys)
        self._chunks = ChunkIntake(self._leadership, self._observer, self._beats)
        self._early_pulls: dict[DeviceId, Pull] = {}
        """The last pull of each member that came before there was a model."""
        self._contributing = Contributing(profile.device, keys, encrypted=profile.encrypted, resend_s=rules.resend_s)
        self._intake = ModelReader(profile.layout.size)
        self._refusals = Refusals(profile.device)

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take an event, decide, and say what to do."""
        return collect(self._decide(event, now), event)

    @property
    def cluster(self) -> ClusterModel | None:
        """The cluster that this device leads, if any."""
        return self._leadership.cluster

    @property
    def leading(self) -> bool:
        """Whether this device leads a cluster."""
        return self.cluster is not None

    @property
    def open_body(self) -> OpenBody | None:
        """What this leader contributed to the open round."""
        return self._contributing.open_body(self.cluster) if self.cluster else None

    @property
    def pin(self) -> tuple[tuple[str, int], ...] | None:
        """The vector for which the contributed update was signed."""
        pin = self.cluster.pin if self.cluster else None
        return pin.vector if pin else None

    def _decide(self, event: Event, now: float) -> Iterator[Command]:
        if isinstance(event, Started):
            yield from self._start(event.stored)
        elif isinstance(event, LinkUp):
            self._contributing.link_up()
            yield from self._beats.link_up(now)
            if self.leading:
                yield from self._subscribe()
                yield from self._contributing.send_due(now)
        elif isinstance(event, LinkDown):
            self._contributing.link_lost()
            self._observer.link_lost()
            self._beats.link_lost()
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
        elif isinstance(event, TimerFired) and event.name == BEAT:
            yield from self._beats.timer(self.cluster, self._leadership.members.samples, now)
        elif isinstance(event, JobFailed):
            yield ContributionFailed(round_no=event.round_no, reason=event.reason)
        else:
            raise TypeError(f"a leader does not expect {type(event).__name__}")

    # --- taking and leaving leadership

    def _start(self, stored: Stored) -> Iterator[Command]:
        yield from self._leadership.restore(stored)
        cluster = self.cluster
        if cluster is None:
            return
        yield from self._beats.restore(stored[STATE].get(BEAT_ROW), cluster)
        if cluster.frozen is not None:
            if body := stored[STATE].get("body"):
                self._contributing.load(body, cluster)
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
        leadership = self._leadership
        if (assignment.term, assignment.revision) <= leadership.seen:
            return
        if not self._store.is_ours(assignment.store):
            return  # what this leader held then is lost: the coordinator gives the cluster a new term
        leadership.seen = (assignment.term, assignment.revision)
        if assignment.leader != self.profile.device:
            if self.leading:
                yield from self._resign(assignment)
            return
        if leadership.take(assignment):
            self._forget()
            yield from self._beats.stop()
        yield Persist(leadership.stored(assignment))
        yield LeadershipBegun(term=assignment.term, members=len(assignment.members))
        yield from self._subscribe()

    def _resign(self, assignment: Assignment) -> Iterator[Command]:
        """Resign; what waits for the former members, or at the broker for a leader, is of no use."""
        members = [member for member in self._leadership.members.samples if member != self.profile.device]
        ops = self._leadership.resign()
        self._forget()
        yield Persist(ops)
        yield LeadershipEnded(term=assignment.term, leader=assignment.leader)
        me = self.profile.device
        yield Unsubscribe(Kind.UPDATE, receiver=me)
        yield Unsubscribe(Kind.PULL, receiver=me)
        for kind in (Kind.GLOBAL_PART, Kind.MANIFEST, Kind.ROUND_OPEN):
            yield Unsubscribe(kind)
        for member in members:
            yield Withdraw(Topic(Kind.BLOCKS, me, DeviceId(member)))
        yield Withdraw(Topic(Kind.CONTRIBUTION, me))
        yield CancelTimer(RESEND)
        yield from self._beats.stop()
        yield from self._intake.stop()
        yield RenewSession()

    def _forget(self) -> None:
        """What was under way belongs to a cluster of the past."""
        self._contributing.forget()
        self._intake.forget()
        self._early_pulls.clear()

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
            yield from self._chunks.take(sender, message, now)
        elif isinstance(message, Pull):
            self._leadership.members.check(sender)
            self._leadership.members.check_pull(sender, *pulled_bytes(message, self.profile.layout, self._rules), now)
            yield from self._pulled(sender, message, now)
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

    def _pulled(self, sender: DeviceId, pull: Pull, now: float) -> Iterator[Command]:
        if pull.max_blocks or not pull.follower:
            yield from self._answer(sender, pull)
        elif self._beats.reported(sender, pull, self._leadership.members.samples):
            yield from self._beats.beat(self._leadership.led, self._leadership.members.samples, now)

    def _answer(self, sender: DeviceId, pull: Pull) -> Iterator[Command]:
        cluster = self._leadership.led
        if pull.term != cluster.term:
            raise LateError(f"a pull of term {pull.term}, this cluster is in {cluster.term}")
        check_pull(pull, cluster)
        if not cluster.ready:
            self._early_pulls[sender] = pull
            return
        answer = self._beats.answer_to(pull) or answer_to(pull, cluster, self._rules)
        yield self._leadership.receipt(sender, ())
        for blocks in answer:
            yield Publish(Topic(Kind.BLOCKS, self.profile.device, sender), blocks)

    # --- rounds

    def _opened(self, opened: RoundOpen, now: float) -> Iterator[Command]:
        cluster = self._leadership.led
        if not self._contributing.take(opened, cluster):
            return
        if cluster.round_no != opened.base_round:
            yield from self._intake.fetch(now)  # the round stands on a global model that is not here yet
        elif cluster.frozen_round == opened.round_no:
            yield from self._contributing.send_due(now)
        else:
            key = self._contributing.key_for(opened)
            ground = self._contributing.ground_for(opened, key, cluster)
            if ground and key and cluster.pin and not ground.pinned:
                yield SignedVectorVoid(round_no=opened.round_no, missing=cluster.pin.missing(key))
            update = cluster.freeze(opened.round_no, opened.bounds if ground else b"")
            self._contributing.unload()
            yield Persist(self._leadership.snapshot_without_body())
            yield Compute(ProtectContribution(opened.round_no, update.copy(), self.profile.device, key, ground))
            yield from self._chunks.take_waiting(now)

    def _protected(self, event: ContributionProtected, now: float) -> Iterator[Command]:
        if self.cluster is None or self.cluster.frozen_round != event.round_no:
            return  # the round has passed
        merged = tuple(map(self._leadership.lives.accounted, self.cluster.frozen_settlements))
        contribution = Contribution(
            payload=event.payload,
            merged=merged,
            sample_count=sum(self._leadership.members.samples.values()),
            updates=sum(len(settlement.seqs) for settlement in merged),
            observed=tuple(each for each in self._observer.report() if each.device in self._leadership.members),
            effort=self.cluster.frozen_effort,
        )
        body = encode_body(contribution)
        self._contributing.load(body, self.cluster)
        yield Persist((Put(STATE, "body", body),))
        yield from self._contributing.send_due(now)

    def _pinned(self, event: LeanAnswered) -> Iterator[Command]:
        """The update is being signed for: from now on it is contributed as one unit, and under this vector alone."""
        own, cluster = self.open_body, self.cluster
        if event.stage != VOUCH or own is None or cluster is None or own.header != event.header:
            return
        if not self._contributing.bound(cluster):
            cluster.pin = Pin(event.key_id, event.vector)
            yield Persist((Put(STATE, "pin", msgspec.msgpack.encode(cluster.pin)),))

    def _part_receipt(self, sender: DeviceId, receipt: PartReceipt, now: float) -> Iterator[Command]:
        if self._contributing.confirm(sender, receipt, self.cluster):
            yield from self._contributing.send_due(now)

    # --- the global model

    def _global_part(self, part: Part, now: float) -> Iterator[Command]:
        if part.round_no > self._leadership.led.round_no:
            yield from self._intake.take_part(part, now)
            yield from self._adopt(now)

    def _manifested(self, manifest: Manifest, now: float) -> Iterator[Command]:
        if manifest.model != self.profile.model or manifest.size != self.profile.layout.size:
            raise RefusedError(f"a global model of another shape ({manifest.size} parameters)")
        if self._leadership.assignment and manifest.incarnation != self._leadership.assignment.incarnation:
            raise LateError("a global model of another coordinator than this leader's")
        if manifest.round_no > self._leadership.led.round_no:
            yield from self._intake.take_manifest(manifest, now)
            yield from self._adopt(now)

    def _adopt(self, now: float) -> Iterator[Command]:
        version, cluster = self._intake.complete(), self._leadership.led
        if version is None:
            return
        round_no = version.manifest.round_no
        included = self._contributing.included_in(version.manifest, cluster)
        served = cluster.adopt(version.values, round_no, included=included)
        self._contributing.unload()
        yield Persist(self._leadership.snapshot_without_body())
        yield from self._intake.stop()
        yield CancelTimer(RESEND)
        yield GlobalModelAdopted(round_no=round_no, included=included)
        for device in served:
            if device in self._leadership.members:
                yield self._leadership.receipt(DeviceId(device), ())
        yield from self._beats.adopted(cluster, now)
        early, self._early_pulls = self._early_pulls, {}
        for device, pull in early.items():
            if device in self._leadership.members:
                yield from self._answer(device, pull)
        opened = self._contributing.opened
        if opened and opened.round_no > cluster.round_no:
            yield from self._opened(opened, now)
