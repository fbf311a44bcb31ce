"""The cluster that a device leads, with all that must survive a restart of its leader."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ofl_iot.errors import LateError
from ofl_iot.ids import DeviceId
from ofl_iot.protocol.messages import Assignment, Receipt
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.roles.commands import Command, Persist, Publish
from ofl_iot.roles.leader.cluster_model import ClusterModel
from ofl_iot.roles.leader.journal import TABLE as JOURNAL
from ofl_iot.roles.leader.journal import Journal
from ofl_iot.roles.leader.member_lives import MemberLives
from ofl_iot.roles.leader.membership import Membership
from ofl_iot.roles.leader.merging import Merging
from ofl_iot.roles.leader.pin import Pin
from ofl_iot.roles.leader.profile import LeaderProfile
from ofl_iot.roles.leader.waiting_list import WaitingList
from ofl_iot.roles.reports.base import RowsSetAside
from ofl_iot.roles.reports.leader import StoredClusterDropped
from ofl_iot.roles.settings import LeaderRules
from ofl_iot.roles.storage import Delete, DeleteTable, Put, Stored, StoreOp, set_aside

STATE, LEADERSHIP = "leader.state", "leader.office"


class Leadership:
    """What a leader knows of its cluster; without a cluster it leads nobody."""

    def __init__(self, profile: LeaderProfile, rules: LeaderRules, merging: Merging) -> None:
        self.profile = profile
        self.rules = rules
        self.merging = merging
        self.cluster: ClusterModel | None = None
        self.assignment: Assignment | None = None
        self.seen: tuple[int, ...] = (0, 0)
        """Term and revision of the last assignment."""
        self.members = Membership()
        self.lives = MemberLives()
        self.journal = Journal()
        self.waiting_list = WaitingList()

    @property
    def led(self) -> ClusterModel:
        """The cluster that is led; LateError without one, for messages that only a leader can take."""
        if self.cluster is None:
            raise LateError("this device leads no cluster")
        return self.cluster

    def restore(self, stored: Stored) -> Iterator[Command]:
        """Take up the cluster that an earlier process led, with what its journal holds."""
        self.seen = tuple(msgspec.msgpack.decode(stored[LEADERSHIP]["seen"])) if LEADERSHIP in stored else (0, 0)
        state = stored.get(STATE, {})
        if "assignment" not in state:
            return
        if state["model"] != self.profile.identity:
            yield StoredClusterDropped(reason="another model is learnt now")
            yield Persist((DeleteTable(STATE), DeleteTable(JOURNAL)))
            return
        self._admit(msgspec.msgpack.decode(state["assignment"], type=Assignment))
        self.lives.restore(state.get("lives"))
        cluster = ClusterModel.restored(self.profile.layout, state["cluster"], self.profile.max_energy)
        self.merging.restore(state["merging"])
        if order := state.get("turned away"):
            self.waiting_list.restore(order)
        self.waiting_list.remove(*self.journal.replay(stored.get(JOURNAL, {}), cluster, self.merging, self.lives))
        if self.journal.unreadable:
            yield RowsSetAside(JOURNAL, len(self.journal.unreadable))
            yield Persist(set_aside(JOURNAL, self.journal.unreadable))
        if cluster.frozen is not None:
            cluster.pin = msgspec.msgpack.decode(state["pin"], type=Pin) if "pin" in state else None
        self.cluster = cluster

    def take(self, assignment: Assignment) -> bool:
        """Lead the cluster of an assignment; return whether it is another one than before."""
        held = self.assignment
        goes_on = held is not None and self.cluster is not None and held.term == assignment.term
        if goes_on:
            self.led.admit(assignment.members)
        else:
            # A new term: what the old one left unsettled is sent again by the devices that hold it.
            self.cluster = ClusterModel(
                self.profile.layout, assignment.term, assignment.members, self.profile.max_energy
            )
            self.waiting_list.forget()
        self._admit(assignment)
        self.waiting_list.retain(self.members.samples)
        return not goes_on

    def stored(self, assignment: Assignment) -> tuple[StoreOp, ...]:
        """Return what makes an assignment and the cluster's state durable."""
        return (
            Put(STATE, "assignment", msgspec.msgpack.encode(assignment)),
            Put(STATE, "model", self.profile.identity),
            self._stored_seen(),
            *self.snapshot(),
        )

    def resign(self) -> tuple[StoreOp, ...]:
        """Lead no cluster any more; return what makes that durable."""
        self.cluster = self.assignment = None
        self.waiting_list.forget()
        return DeleteTable(STATE), DeleteTable(JOURNAL), self._stored_seen()

    def _stored_seen(self) -> Put:
        """An older assignment that comes late must not bring a past leadership back, not even after a restart."""
        return Put(LEADERSHIP, "seen", msgspec.msgpack.encode(self.seen))

    def _admit(self, assignment: Assignment) -> None:
        self.assignment = assignment
        self.members.take(assignment.members)
        self.lives.admit(assignment.members)

    def snapshot(self) -> list[StoreOp]:
        """The whole cluster model in place of the journal."""
        return [
            Put(STATE, "cluster", self.led.snapshot()),
            Put(STATE, "merging", self.merging.snapshot()),
            Put(STATE, "lives", self.lives.snapshot()),
            Put(STATE, "turned away", self.waiting_list.snapshot()),
            self.journal.empty(),
        ]

    def snapshot_without_body(self) -> tuple[StoreOp, ...]:
        """The same where no contribution is under way; a pin of an earlier update must not come back with a restart."""
        unpinned = () if self.led.pin else (Delete(STATE, "pin"),)
        return (*self.snapshot(), Delete(STATE, "body"), *unpinned)

    def receipt(self, device: DeviceId, stored: tuple[int, ...]) -> Publish:
        """What a device is told: which of its chunks are held, which are settled, how many more it may send."""
        cluster, store = self.led, self.lives.store_of(device)
        receipt = Receipt(
            cluster.term,
            stored,
            cluster.settled_of(device, store),
            self.rules.credits,
            cluster.highest(device, store),
            store,
            self.lives.account_of(device),
        )
        return Publish(Topic(Kind.RECEIPT, self.profile.device, device), receipt)
