"""The leader: merges each chunk exactly once, answers pulls, brings its cluster's update into the rounds.

A chunk is journalled before it is confirmed, so a restart replays it; the whole model is stored when the journal has
grown and at every contribution. What a contribution held is settled when a global model's manifest names it.
Algorithm 2, leader side, and Algorithm 4, lines 3 to 9.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import msgspec
import numpy as np

from ofl_iot.errors import LateError, RefusedError
from ofl_iot.ids import COORDINATOR, DeviceId
from ofl_iot.opportunity.merge import stalest_blocks
from ofl_iot.protocol.chunks import Chunk
from ofl_iot.protocol.codec import decode, encode, encode_body
from ofl_iot.protocol.messages import (
    Assignment,
    Block,
    Blocks,
    Contribution,
    Manifest,
    Part,
    PartReceipt,
    Pull,
    Receipt,
    RoundOpen,
)
from ofl_iot.protocol.parts import split_body
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.roles.blocks import BlockLayout
from ofl_iot.roles.cluster_model import ClusterModel
from ofl_iot.roles.commands import (
    CancelTimer,
    Command,
    Compute,
    KeyMaterial,
    Persist,
    ProtectContribution,
    Publish,
    SetTimer,
    Subscribe,
    Unsubscribe,
    tell,
)
from ofl_iot.roles.events import (
    Arrived,
    ContributionProtected,
    Event,
    JobFailed,
    LinkDown,
    LinkUp,
    Started,
    TimerFired,
)
from ofl_iot.roles.intake import FETCH, GlobalIntake
from ofl_iot.roles.machine import collect
from ofl_iot.roles.merging import Merging
from ofl_iot.roles.observation import Observer
from ofl_iot.roles.part_sender import PartSender
from ofl_iot.roles.rules import LeaderRules
from ofl_iot.roles.storage import Delete, DeleteTable, Put, Stored, StoreOp

STATE, JOURNAL, OFFICE = "leader.state", "leader.journal", "leader.office"
CONTRIBUTE = "contribute"
_RESEND = "leader.resend"


class JournalRow(msgspec.Struct, frozen=True, array_like=True):
    """A merged chunk and the step it was merged with, so that a replay gives the same model."""

    device: str
    step: float
    chunk: bytes


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


class Keys(Protocol):
    """Where the leader finds the joint key; whoever takes part in its making fills it."""

    @property
    def material(self) -> KeyMaterial | None:
        """The joint key, or None while there is none."""
        ...


class LeaderMachine:
    """One leader's decisions; it is idle until an assignment names its device as the leader."""

    def __init__(self, profile: LeaderProfile, rules: LeaderRules, merging: Merging, keys: Keys) -> None:
        self.profile = profile
        self._rules = rules
        self._merging = merging
        self._keys = keys
        self.cluster: ClusterModel | None = None
        self._assignment: Assignment | None = None
        self._seen: tuple[int, ...] = (0, 0)
        """Term and revision of the last assignment."""
        self._members: dict[str, int] = {}
        self._journal_rows = 0
        self._next_row = 0
        self._linked = False
        self._round: RoundOpen | None = None
        self._sender: PartSender | None = None
        self._intake = GlobalIntake(profile.layout.size)
        self._observer = Observer()

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take an event, decide, and say what to do."""
        return collect(self._decide(event, now), event)

    @property
    def leading(self) -> bool:
        """Whether this device leads a cluster."""
        return self.cluster is not None

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
            self._linked = True
            if self.leading:
                yield from self._subscribe()
                yield from self._send_parts(now)
        elif isinstance(event, LinkDown):
            self._linked = False
            self._observer.link_lost()
            if self._sender:
                self._sender.link_lost()
        elif isinstance(event, Arrived):
            yield from self._receive(event, now)
        elif isinstance(event, ContributionProtected):
            yield from self._protected(event, now)
        elif isinstance(event, TimerFired) and event.name == _RESEND:
            yield from self._send_parts(now)
        elif isinstance(event, TimerFired) and event.name == FETCH:
            yield from self._intake.timer(now)
        elif isinstance(event, JobFailed):
            yield tell("contribution failed", "error", round_no=event.round_no, reason=event.reason)

    # --- taking and leaving office

    def _start(self, stored: Stored) -> Iterator[Command]:
        self._seen = tuple(msgspec.msgpack.decode(stored[OFFICE]["seen"])) if OFFICE in stored else (0, 0)
        state = stored.get(STATE, {})
        if "assignment" not in state:
            return
        if state["model"] != self.profile.identity:
            yield tell("stored cluster model dropped", "warning", reason="another model is learnt now")
            yield Persist((DeleteTable(STATE), DeleteTable(JOURNAL)))
            return
        self._take_members(msgspec.msgpack.decode(state["assignment"], type=Assignment))
        cluster = ClusterModel.restored(self.profile.layout, state["cluster"], self.profile.max_energy)
        self._merging.restore(state["merging"])
        for row_no, stored_row in stored.get(JOURNAL, {}).items():
            row = msgspec.msgpack.decode(stored_row, type=JournalRow)
            chunk = decode(Kind.UPDATE, row.chunk)
            assert isinstance(chunk, Chunk)  # noqa: S101  # what the journal stored is a chunk
            cluster.merge(row.device, chunk, row.step, self._merging.effort(chunk))
            self._next_row = int(row_no) + 1
        self._journal_rows = len(stored.get(JOURNAL, {}))
        self.cluster = cluster
        if cluster.frozen is not None:
            if "body" in state:
                self._sender = self._sender_of(state["body"], cluster.frozen_round)
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
            self._round = self._sender = None
            self._intake.forget()
        self._take_members(assignment)
        yield Persist(
            (
                Put(STATE, "assignment", msgspec.msgpack.encode(assignment)),
                Put(STATE, "model", self.profile.identity),
                self._stored_seen(),
                *self._snapshot(),
            )
        )
        yield tell("leading", term=assignment.term, members=len(assignment.members))
        yield from self._subscribe()

    def _stored_seen(self) -> Put:
        """An older assignment that comes late must not bring a past office back, not even after a restart."""
        return Put(OFFICE, "seen", msgspec.msgpack.encode(self._seen))

    def _take_members(self, assignment: Assignment) -> None:
        self._assignment = assignment
        self._members = {member.device: member.sample_count for member in assignment.members}

    def _resign(self, assignment: Assignment) -> Iterator[Command]:
        self.cluster = self._assignment = self._round = self._sender = None
        self._intake.forget()
        yield Persist((DeleteTable(STATE), DeleteTable(JOURNAL), self._stored_seen()))
        yield tell("no longer leading", term=assignment.term, leader=assignment.leader)
        me = self.profile.device
        yield Unsubscribe(Kind.UPDATE, receiver=me)
        yield Unsubscribe(Kind.PULL, receiver=me)
        for kind in (Kind.GLOBAL_PART, Kind.MANIFEST, Kind.ROUND_OPEN):
            yield Unsubscribe(kind)
        yield CancelTimer(_RESEND)
        yield from self._intake.stop()

    # --- messages

    def _receive(self, event: Arrived, now: float) -> Iterator[Command]:
        message, sender = event.message, event.topic.sender
        if isinstance(message, Assignment):
            yield from self._assigned(message)
        elif isinstance(message, Chunk):
            yield from self._chunk(sender, message, now)
        elif isinstance(message, Pull):
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
        self._check_member(sender)
        if chunk.model != self.profile.model or chunk.size != self.profile.layout.size:
            raise RefusedError(f"a chunk of another model ({chunk.size} parameters)")
        if chunk.term > cluster.term:
            raise RefusedError(f"a chunk of term {chunk.term}, this cluster is in {cluster.term}")
        if not cluster.ready:
            return  # no receipt: the device sends it again when the global model is here
        if not cluster.holds(sender, chunk.seq):
            if cluster.full:
                return  # no receipt either: it is sent again when some of what waits has been contributed
            wanted = self._merging.step(sender, chunk, now, self._members, cluster.round_no)
            step = cluster.bounded(chunk, wanted)
            if step != wanted:
                yield tell("chunk weighed down", "warning", device=sender, seq=chunk.seq, to=step / wanted)
            row = JournalRow(sender, step, encode(chunk))
            cluster.merge(sender, chunk, step, self._merging.effort(chunk))
            if chunk.term == cluster.term:
                self._observer.chunk_arrived(sender, chunk, now)
            yield Persist((Put(JOURNAL, self._next_row, msgspec.msgpack.encode(row)),))
            self._next_row += 1
            self._journal_rows += 1
            if self._journal_rows >= self._rules.snapshot_chunks:
                yield Persist(tuple(self._snapshot()))
            yield tell("merged", "debug", device=sender, seq=chunk.seq, step=step, count=chunk.count)
        yield self._receipt(sender, (chunk.seq,))

    def _check_member(self, sender: DeviceId) -> None:
        if sender not in self._members:
            raise LateError(f"{sender} is not in this cluster")

    def _receipt(self, device: DeviceId, stored: tuple[int, ...]) -> Publish:
        cluster = self._office
        return Publish(
            Topic(Kind.RECEIPT, self.profile.device, device),
            Receipt(cluster.term, stored, cluster.settled[device], self._rules.credits, cluster.highest(device)),
        )

    def _answer(self, sender: DeviceId, pull: Pull) -> Iterator[Command]:
        cluster, layout = self._office, self.profile.layout
        self._check_member(sender)
        if pull.term != cluster.term:
            raise LateError(f"a pull of term {pull.term}, this cluster is in {cluster.term}")
        if len(pull.seen) != 8 * layout.count:
            raise RefusedError(f"a pull for {len(pull.seen) // 8} blocks, this model has {layout.count}")
        if not cluster.ready:
            return
        chosen = stalest_blocks(cluster.mileage, np.frombuffer(pull.seen, "<f8"), pull.max_blocks)
        yield self._receipt(sender, ())
        half = self._rules.half_precision
        batch = max(1, self._rules.blocks_bytes // (layout.block_size * (2 if half else 4)))
        batches = [chosen[at : at + batch] for at in range(0, len(chosen), batch)] or [chosen]
        for number, blocks in enumerate(batches, 1):
            yield Publish(
                Topic(Kind.BLOCKS, self.profile.device, sender),
                Blocks(
                    term=cluster.term,
                    round_no=cluster.round_no,
                    dtype="e" if half else "f",
                    blocks=tuple(self._block(int(block), half=half) for block in blocks),
                    last=number == len(batches),
                ),
            )

    def _block(self, index: int, *, half: bool) -> Block:
        values = self._office.model[self.profile.layout.bounds(index)]
        coded = np.clip(values, -65504, 65504).astype("<f2") if half else values.astype("<f4")
        return Block(index, float(self._office.mileage[index]), coded.tobytes())

    def _snapshot(self) -> list[StoreOp]:
        """The whole cluster model in place of the journal."""
        self._journal_rows = 0
        return [
            Put(STATE, "cluster", self._office.snapshot()),
            Put(STATE, "merging", self._merging.snapshot()),
            DeleteTable(JOURNAL),
        ]

    # --- rounds

    def _opened(self, opened: RoundOpen, now: float) -> Iterator[Command]:
        cluster = self._office
        if not any(s.leader == self.profile.device and s.term == cluster.term for s in opened.seats):
            return
        newest = max(cluster.frozen_round, self._round.round_no if self._round else 0)
        if opened.round_no <= cluster.round_no or opened.round_no < newest:
            return  # late news of an abandoned round: what is frozen belongs to its successor
        again = self._round is not None and opened.attempt > self._round.attempt
        self._round = opened
        if cluster.round_no != opened.base_round:
            yield from self._intake.fetch(now)  # the round stands on a global model that is not here yet
        elif cluster.frozen_round == opened.round_no:
            if again and self._sender:
                self._sender.restart()
            yield from self._send_parts(now)
        elif opened.round_no > cluster.round_no:
            key = self._key_for(opened)
            update = cluster.freeze(opened.round_no)
            self._sender = None
            yield Persist((*self._snapshot(), Delete(STATE, "body")))
            yield Compute(ProtectContribution(opened.round_no, update.copy(), self.profile.device, key))

    def _key_for(self, opened: RoundOpen) -> KeyMaterial | None:
        """The key that the round names; None for a round in the clear, where that is allowed."""
        if not opened.key_id:
            if self.profile.encrypted and len(opened.seats) > 1:
                raise RefusedError(f"round {opened.round_no} asks for cluster updates in the clear")
            return None
        material = self._keys.material
        if material is None or material.key_id != opened.key_id:
            raise LateError(f"round {opened.round_no} is under a key that is not here yet")
        return material

    def _protected(self, event: ContributionProtected, now: float) -> Iterator[Command]:
        if self.cluster is None or self.cluster.frozen_round != event.round_no:
            return  # the round has passed
        merged = self.cluster.frozen_settlements
        contribution = Contribution(
            payload=event.payload,
            merged=merged,
            sample_count=sum(self._members.values()),
            updates=sum(len(settlement.seqs) for settlement in merged),
            observed=tuple(each for each in self._observer.report() if each.device in self._members),
            effort=self.cluster.frozen_effort,
        )
        body = encode_body(contribution)
        self._sender = self._sender_of(body, event.round_no)
        yield Persist((Put(STATE, "body", body),))
        yield from self._send_parts(now)

    def _sender_of(self, body: bytes, round_no: int) -> PartSender:
        parts = split_body(body, self._office.term, round_no, CONTRIBUTE)
        return PartSender(parts, resend_s=self._rules.resend_s)

    def _send_parts(self, now: float) -> Iterator[Command]:
        if self._sender is None or self._sender.done or not self._linked:
            return
        for part in self._sender.due(now):
            yield Publish(Topic(Kind.CONTRIBUTION, self.profile.device), part)
        yield SetTimer(_RESEND, now + self._rules.resend_s)

    def _part_receipt(self, sender: DeviceId, receipt: PartReceipt, now: float) -> Iterator[Command]:
        if sender != COORDINATOR:
            raise RefusedError(f"{sender} is not the coordinator")
        if self._sender and self.cluster and receipt.round_no == self.cluster.frozen_round:
            self._sender.confirm(receipt.parts)
            yield from self._send_parts(now)

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
        included = self._sender is not None and any(
            (i.leader, i.round_no, i.digest) == (self.profile.device, cluster.frozen_round, self._sender.digest)
            for i in version.manifest.included
        )
        served = cluster.adopt(version.values, round_no, included=included)
        self._sender = None
        yield Persist((*self._snapshot(), Delete(STATE, "body")))
        yield from self._intake.stop()
        yield CancelTimer(_RESEND)
        yield tell("global model adopted", "debug", round_no=round_no, included=included)
        for device in served:
            if device in self._members:
                yield self._receipt(DeviceId(device), ())
        if self._round and self._round.round_no > cluster.round_no:
            yield from self._opened(self._round, now)
