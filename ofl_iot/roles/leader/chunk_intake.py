"""A chunk at its leader: merged once, durable before it is confirmed, or kept waiting for room.

Algorithm 2, leader side.
"""

from __future__ import annotations

from collections.abc import Iterator

from ofl_iot.errors import RefusedError
from ofl_iot.ids import DeviceId
from ofl_iot.protocol.chunks import Chunk
from ofl_iot.roles.commands import Command, Persist
from ofl_iot.roles.leader.beats import Beats
from ofl_iot.roles.leader.leadership import Leadership
from ofl_iot.roles.leader.observation import Observer
from ofl_iot.roles.reports.leader import ChunkBounded, ChunkMerged, ChunkRefused


class ChunkIntake:
    """The chunks of a cluster, on their way into its model."""

    def __init__(self, leadership: Leadership, observer: Observer, beats: Beats) -> None:
        self._leadership = leadership
        self._observer = observer
        self._beats = beats

    def take(self, sender: DeviceId, chunk: Chunk, now: float) -> Iterator[Command]:
        """Check a chunk; merge it if the update under way has room for it."""
        leadership, cluster = self._leadership, self._leadership.led
        leadership.members.check(sender)
        if chunk.model != leadership.profile.model or chunk.size != leadership.profile.layout.size:
            raise RefusedError(f"a chunk of another model ({chunk.size} parameters)", "wrong-model")
        if chunk.term > cluster.term:
            raise RefusedError(f"a chunk of term {chunk.term}, this cluster is in {cluster.term}")
        if not cluster.ready:
            return  # no receipt: the device sends it again when the global model is here
        leadership.lives.check(sender, chunk)
        leadership.members.check_number(
            sender, chunk.seq, cluster.settled_of(sender, chunk.store), cluster.held(sender, chunk)
        )
        if cluster.holds(sender, chunk.seq, chunk.store) or cluster.has_room_for(chunk):
            yield from self._merge(sender, chunk, now)
        else:
            leadership.waiting_list.hold(sender, chunk)  # no receipt either: the device keeps it

    def _merge(self, sender: DeviceId, chunk: Chunk, now: float) -> Iterator[Command]:
        """Merge a chunk unless that is done, make it durable, confirm it."""
        leadership, cluster = self._leadership, self._leadership.led
        leadership.lives.heard(sender, chunk)
        if not cluster.holds(sender, chunk.seq, chunk.store):
            leadership.waiting_list.remove(sender)
            wanted = leadership.merging.step(sender, chunk, now, leadership.members.samples, cluster.round_no)
            step = cluster.bounded(chunk, wanted)
            if step != wanted:
                yield ChunkBounded(device=sender, seq=chunk.seq, to=step / wanted)
            cluster.merge(sender, chunk, step, leadership.merging.effort(chunk))
            if chunk.term == cluster.term:
                self._observer.chunk_arrived(sender, chunk, now)
            yield Persist((leadership.journal.enter(sender, chunk, step),))
            if leadership.journal.length >= leadership.rules.snapshot_chunks:
                yield Persist(tuple(leadership.snapshot()))
            if step > 0:
                yield ChunkMerged(sender, chunk.seq, step, chunk.count)
            else:
                yield ChunkRefused(sender, chunk.seq, chunk.count)
            yield from self._beats.changed(now)
        yield leadership.receipt(sender, (chunk.seq,))

    def take_waiting(self, now: float) -> Iterator[Command]:
        """A part has gone: the longest waiting first, and behind one that does not fit those that begin no part."""
        for device, chunk in self._leadership.waiting_list.chunks():
            if self._leadership.led.has_room_for(chunk):
                self._leadership.waiting_list.remove(device)
                yield from self._merge(device, chunk, now)
