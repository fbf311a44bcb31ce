"""Follows a run: what the parties tell, what their sessions sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ofl_iot.errors import TopicError
from ofl_iot.ids import COORDINATOR, DeviceId, FederationId
from ofl_iot.protocol.topics import Kind, Topics
from ofl_iot.roles.reports.base import JobFailure, Report
from ofl_iot.roles.reports.coordinator import ModelEvaluated, RoundClosed, RoundOpened
from ofl_iot.roles.reports.device import DeviceTrained
from ofl_iot.roles.reports.leader import ChunkMerged, ChunkRefused
from ofl_iot.runtime.topic_tree import matches
from ofl_iot.runtime.virtual import VirtualWorld
from ofl_research.baselines.reports import ModelsCombined, ModelsMerged
from ofl_research.reproduction.plan import Operations, Point

Progress = Callable[[float, float], None]
"""Is called with the share of the run that is done and the accuracy of the newest model."""

LAST_SHARE = 0.1
"""The accuracy of a run is the mean over this last part of its time."""

_ROUND_KINDS = {Kind.CONTRIBUTION, Kind.SHARE, Kind.KEYS}
_LEADER_KINDS = {Kind.RECEIPT, Kind.BLOCKS, Kind.CLUSTER_CHANGE, *_ROUND_KINDS}


@dataclass
class Watch:
    """Counts and measures while a world runs."""

    names: Sequence[DeviceId]
    rounds: int
    progress: Progress | None = None
    world: VirtualWorld | None = None
    curve: list[Point] = field(default_factory=list)
    completed: int = 0
    failures: int = 0
    weighed: Counter[bool] = field(default_factory=Counter)
    """Contributions in closed rounds, those under encryption as True."""
    steps: Counter[str] = field(default_factory=Counter)
    """Training steps of each device."""
    _encrypted: bool = False
    _merged: int = 0
    _multiply_adds: int = 0

    def listen(self, name: str, report: Report, now: float) -> None:
        """Count what a party reports."""
        if isinstance(report, DeviceTrained):
            self.steps[name] += report.steps
        elif isinstance(report, ChunkMerged | ChunkRefused | ModelsMerged):  # a refused chunk costs the same work
            self._merged += report.count
        elif isinstance(report, ModelsCombined):
            self._multiply_adds += report.multiply_adds
            self.completed += 1
        elif isinstance(report, RoundClosed):
            self.weighed[self._encrypted] += len(report.weights)
            self.completed += 1
        elif isinstance(report, RoundOpened):
            self._encrypted = report.encrypted
        elif isinstance(report, ModelEvaluated):
            self._evaluated(report.metrics["accuracy"], now)
        elif isinstance(report, JobFailure):
            self.failures += 1

    def _evaluated(self, accuracy: float, now: float) -> None:
        self.curve.append(Point(now, self.mean_bytes_up(), accuracy))
        if self.progress:
            self.progress(min(1.0, self.completed / self.rounds), accuracy)

    def mean_bytes_up(self) -> float:
        """Return the mean over the devices, so far."""
        return float(np.mean([self._up(name) for name in self.names]))

    def mean_bytes_down(self) -> float:
        """Return the mean over the devices, so far."""
        world = self.running
        return float(np.mean([world.broker.session(name).traffic.down for name in self.names]))

    def mean_leader_bytes(self, federation: FederationId) -> float:
        """What the devices sent in the leaders' part, so far."""
        world, topics = self.running, Topics(federation)
        sent = 0
        for name in self.names:
            up = world.broker.session(name).traffic.up_by_topic
            to_members = topics.pattern(Kind.BLOCKS, sender=name)
            to_server = topics.pattern(Kind.UPDATE, sender=name, receiver=COORDINATOR)
            # Of a baseline's head: what its own device sends to the head does not leave it.
            heads = {to_server} if any(matches(to_members, topic) for topic in up) else set()
            sent += sum(size for topic, size in up.items() if topic in heads or _kind(topics, topic) in _LEADER_KINDS)
        return sent / len(self.names)

    def mean_bytes_in_rounds(self, federation: FederationId) -> float:
        """What OFL's leaders sent to the coordinator and to each other for its rounds, a device, so far."""
        topics = Topics(federation)
        traffic = [self.running.broker.session(name).traffic.up_by_topic for name in self.names]
        sent = sum(size for up in traffic for topic, size in up.items() if _kind(topics, topic) in _ROUND_KINDS)
        return sent / len(self.names)

    def operations(self, multiply_adds: int = 0) -> Operations:
        """What was counted; `multiply_adds` on top."""
        return Operations(
            trained_steps=self.steps.total(),
            merged_parameters=self._merged,
            server_multiply_adds=self._multiply_adds + multiply_adds,
        )

    def accuracy(self) -> float:
        """Mean over the models of the last tenth of the time."""
        if not self.curve:
            return 0.0
        since = (1 - LAST_SHARE) * self.curve[-1].virtual_s
        return float(np.mean([point.accuracy for point in self.curve if point.virtual_s >= since]))

    def _up(self, name: DeviceId) -> int:
        return self.running.broker.session(name).traffic.up

    @property
    def running(self) -> VirtualWorld:
        """The world that is watched."""
        if self.world is None:
            raise RuntimeError("the watch was not given its world")
        return self.world


def _kind(topics: Topics, topic: str) -> Kind | None:
    """What is said there; None for the baselines' letters to their server, which are on no topic of production."""
    try:
        return topics.parse(topic).kind
    except TopicError:
        return None
