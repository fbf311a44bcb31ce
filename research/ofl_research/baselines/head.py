"""Clusters of the hierarchical baselines: a device that heads one, and the server above the heads.

A head is one of the devices. What it says to its own device does not go through the broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from ofl_iot.ids import COORDINATOR, DeviceId
from ofl_iot.roles.commands import Command, Publish
from ofl_research.baselines.device import DeviceMachine
from ofl_research.baselines.letters import (
    BaselineEvent,
    BaselineMessage,
    BaselineMessageArrived,
    Hello,
    Lead,
    Offer,
    Reply,
    Vector,
    pack_dense,
    post,
    read_letter,
    unpack_dense,
)
from ofl_research.baselines.means import mixed, staleness_share, weighted_mean
from ofl_research.baselines.reports import ModelsCombined, ModelsMerged
from ofl_research.baselines.server import Judged, Schedule, Server


class Head(Protocol):
    """What a device does while it heads a cluster."""

    def offered(self, offer: Offer) -> Iterator[tuple[str, BaselineMessage]]:
        """The server's model came: letters by receiver."""
        ...

    def replied(self, device: str, reply: Reply) -> Iterator[tuple[str, BaselineMessage]]:
        """A member's model came."""
        ...

    @property
    def merged(self) -> int:
        """Parameters taken into the cluster's model since this was asked last."""
        ...


class SynchronousHead:
    """Waits for all members, averages by samples, and sends the mean to the server."""

    def __init__(self, lead: Lead) -> None:
        self._sizes = lead.members
        self._round_no = 0
        self._replies: dict[str, Reply] = {}
        self._merged = 0

    def offered(self, offer: Offer) -> Iterator[tuple[str, BaselineMessage]]:
        """Pass the model on to all members."""
        self._round_no, self._replies = offer.round_no, {}
        for member in self._sizes:
            yield member, offer

    def replied(self, device: str, reply: Reply) -> Iterator[tuple[str, BaselineMessage]]:
        """Collect."""
        if reply.round_no != self._round_no:
            return
        self._replies[device] = reply
        if len(self._replies) == len(self._sizes):
            ordered = sorted(self._replies)
            vectors = [unpack_dense(self._replies[member].body) for member in ordered]
            mean = weighted_mean(vectors, [self._sizes[member] for member in ordered])
            self._merged += len(vectors) * len(mean)
            yield COORDINATOR, Reply(self._round_no, pack_dense(mean))

    @property
    def merged(self) -> int:
        """Parameters averaged since this was asked last."""
        merged, self._merged = self._merged, 0
        return merged


class HeadableDevice:
    """A device that can be made the head of a cluster: two machines behind one."""

    def __init__(self, device: DeviceMachine, make_head: Callable[[Lead], Head]) -> None:
        self.device = device
        self._make_head = make_head
        self._head: Head | None = None

    @property
    def local(self) -> Vector | None:
        """The model its device trained last."""
        return self.device.local

    def handle(self, event: BaselineEvent, now: float) -> list[Command]:
        """Take an event, decide, and say what to do; letters to itself are delivered at once."""
        commands: list[Command] = []
        waiting = [event]
        while waiting:
            for command in self._pass_on(waiting.pop(0), now):
                if isinstance(command, Publish) and command.topic.receiver == self._me:
                    waiting.append(BaselineMessageArrived(self._me, read_letter(bytes(command.message))))  # type: ignore[arg-type]
                else:
                    commands.append(command)
        return commands

    @property
    def _me(self) -> DeviceId:
        return self.device.worker.device

    def _pass_on(self, event: BaselineEvent, now: float) -> list[Command]:
        if isinstance(event, BaselineMessageArrived):
            letter = event.letter
            if isinstance(letter, Lead):
                self._head = self._make_head(letter)
                return []
            if self._head and isinstance(letter, Offer) and event.sender == COORDINATOR:
                return self._spoken(self._head, self._head.offered(letter))
            if self._head and isinstance(letter, Reply):
                return self._spoken(self._head, self._head.replied(event.sender, letter))
        return self.device.handle(event, now)

    def _spoken(self, head: Head, letters: Iterator[tuple[str, BaselineMessage]]) -> list[Command]:
        commands: list[Command] = [post(self._me, DeviceId(receiver), letter) for receiver, letter in letters]
        merged = head.merged
        return [*commands, ModelsMerged(count=merged)] if merged else commands


Grouping = Callable[[Mapping[str, Hello]], Mapping[str, list[str]]]
"""Members by head."""


class AsynchronousServer(Server):
    """Takes each cluster's model in when it comes: θ ← (1 - a)·θ + a·θ_k, a = alpha·(lag + 1)^(-exponent).

    The lag is the number of models taken in since the head got its own. A round is over when there were as many as
    clusters.
    """

    def __init__(
        self, initial: Vector, grouping: Grouping, schedule: Schedule, *, alpha: float, exponent: float
    ) -> None:
        super().__init__(schedule)
        self.model = initial
        self.heads: Mapping[str, list[str]] = {}
        self._grouping = grouping
        self._alpha, self._exponent = alpha, exponent
        self._version = 0

    def _receive(self, event: BaselineMessageArrived) -> Iterator[Command]:
        if isinstance(event.letter, Hello):
            yield from self._greeted(event.sender, event.letter)
        elif isinstance(event.letter, Reply) and not self.finished:
            yield from self._take_in(event.sender, event.letter)

    def _greeted(self, sender: DeviceId, hello: Hello) -> Iterator[Command]:
        self._hellos[sender] = hello
        if len(self._hellos) < self._schedule.devices or self.heads:
            return
        self.heads = self._grouping(dict(sorted(self._hellos.items())))
        for head, members in self.heads.items():
            sizes = {member: self._hellos[member].sample_count for member in members}
            yield post(COORDINATOR, DeviceId(head), Lead(sizes))
            yield self._offer(DeviceId(head))

    def _offer(self, head: DeviceId) -> Command:
        return post(COORDINATOR, head, Offer(self._version, (pack_dense(self.model),)))

    def _take_in(self, head: DeviceId, reply: Reply) -> Iterator[Command]:
        share = staleness_share(self._alpha, self._version - reply.round_no, self._exponent)
        self.model = mixed(self.model, unpack_dense(reply.body), share)
        self._version += 1
        if self._version % len(self.heads) == 0:
            round_no = self._version // len(self.heads)
            self.finished = round_no == self._schedule.rounds
            work = len(self.heads) * len(self.model)
            yield ModelsCombined(round_no=round_no, models=1, multiply_adds=work)
            yield from self._judging.ask(round_no, [Judged(self.model)], last=self.finished)
        if not self.finished:
            yield self._offer(head)
