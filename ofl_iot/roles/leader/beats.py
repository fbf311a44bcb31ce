"""When a leader publishes what its model changed by: one sparse change for all members of its cluster.

    beat: when all members have reported since the last one, or `beat_s` after it, whichever is first

A member reports with a pull of no blocks once its release has left. Nobody waits for a slower one: who has not
reported is heard at a later beat. A change is numbered, its number stored before it leaves, and sealed for the members.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import msgspec

from ofl_iot.crypto.cluster_seal import ClusterSeal, Place
from ofl_iot.errors import LateError
from ofl_iot.ids import DeviceId
from ofl_iot.protocol.chunks import Chunk
from ofl_iot.protocol.codec import encode
from ofl_iot.protocol.messages import Blocks, ClusterChange, Pull, Standing
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.roles.commands import CancelTimer, Command, Persist, Publish, SetTimer
from ofl_iot.roles.leader.cluster_model import ClusterModel
from ofl_iot.roles.leader.contribution import Keys
from ofl_iot.roles.leader.downloads import answer_to
from ofl_iot.roles.leader.published import Published
from ofl_iot.roles.settings import LeaderRules
from ofl_iot.roles.storage import Put

BEAT = "leader.beat"
TABLE, ROW = "leader.state", "beat"


class Beats:
    """The published model of a leader in office and when it goes on; does nothing unless `publish = "beat"`."""

    def __init__(self, me: DeviceId, model: bytes, rules: LeaderRules, keys: Keys) -> None:
        self._me, self._digest, self._rules, self._keys = me, model, rules, keys
        self.published: Published | None = None
        """None while there is no model, and for ever where devices pull after each release."""
        self._seal = ClusterSeal(b"")
        self._resume_above = 0
        """The last number that an earlier process stored."""
        self._reported: set[str] = set()
        self._last: float | None = None
        """When the last beat was, or the first event that asked for one."""
        self._news = self._new_round = False
        self._armed = False
        self._linked = False

    @property
    def on(self) -> bool:
        """Whether this leader publishes changes."""
        return self._rules.publish == "beat"

    # --- leadership

    def forget(self) -> None:
        """The leadership has ended, or begins anew."""
        self.published, self._last, self._resume_above = None, None, 0
        self._news = self._new_round = False
        self._reported.clear()

    def stop(self) -> Iterator[Command]:
        """The leadership has ended."""
        self.forget()
        if self._armed:
            self._armed = False
            yield CancelTimer(BEAT)

    def restore(self, stored: bytes | None, cluster: ClusterModel) -> Iterator[Command]:
        """Publish on after a restart: what the members hold is lost with the process, so the next numbers leave a gap.

        A number that was stored may have left with a change that no other may replace.
        """
        term, version = msgspec.msgpack.decode(stored, type=tuple[int, int]) if stored else (cluster.term, 0)
        self._resume_above = version + 1 if term == cluster.term and version else 0
        yield from self._begin(cluster)

    def _begin(self, cluster: ClusterModel) -> Iterator[Command]:
        """Publish from the leader's model as it is; pulls are answered with this number before any change has it."""
        if self.on and self.published is None and cluster.ready:
            self.published = Published(cluster, self._resume_above + 1)
            yield self._stored(self.published)
            self._seal = ClusterSeal.of_leader(self._keys.sealing_private, self._me, cluster.term)

    # --- what asks for a beat

    def link_up(self, now: float) -> Iterator[Command]:
        """Publish what has come since."""
        self._linked = True
        if self._news:
            yield from self.changed(now)

    def link_lost(self) -> None:
        """A change that is published now would be lost."""
        self._linked = False

    def adopted(self, cluster: ClusterModel, now: float) -> Iterator[Command]:
        """There is another global model: the next change is about every parameter."""
        yield from self._begin(cluster)
        self._new_round = True
        yield from self.changed(now)

    def changed(self, now: float) -> Iterator[Command]:
        """There is something to publish: see to it that a beat comes."""
        if self.published is None:
            return
        self._news = True
        if self._last is None:
            self._last = now
        if self._linked and not self._armed:
            self._armed = True
            yield SetTimer(BEAT, max(now, self._last + self._rules.beat_s))

    def reported(self, device: DeviceId, pull: Pull, members: Collection[str]) -> bool:
        """Take note that a member waits for the next change; return whether all do."""
        if self.published is None or pull.follower is None or pull.term != self.published.term:
            raise LateError("there is no change to wait for")
        if pull.follower.version == self.published.version:
            self._reported.add(device)
        return self._reported.issuperset(members)

    # --- the beat

    def timer(self, cluster: ClusterModel | None, members: Collection[str], now: float) -> Iterator[Command]:
        """It is time."""
        self._armed = False
        if cluster is not None:
            yield from self.beat(cluster, members, now)

    def beat(self, cluster: ClusterModel, members: Collection[str], now: float) -> Iterator[Command]:
        """Publish a change, unless there is none or nobody hears it."""
        published = self.published
        if published is None or not self._linked or not self._news:
            return
        gamma = 1.0 if self._new_round else self._rules.beat_gamma
        chunks = published.approach(cluster, self._digest, gamma, self._rules.beat_values)
        self._last, self._news, self._new_round = now, False, False
        self._reported.clear()
        yield self._stored(published)
        others = any(member != self._me for member in members)
        for message in self._messages(published, chunks):
            yield Publish(Topic(Kind.CLUSTER_CHANGE, self._me, self._me), message)  # to this leader's own device
            if others:
                yield Publish(Topic(Kind.CLUSTER_CHANGE, self._me), message)
        if self._armed:
            self._armed = False
            yield CancelTimer(BEAT)

    @staticmethod
    def _stored(published: Published) -> Persist:
        return Persist((Put(TABLE, ROW, msgspec.msgpack.encode((published.term, published.version))),))

    def _messages(self, published: Published, chunks: list[Chunk]) -> Iterator[ClusterChange]:
        parts = max(1, len(chunks))
        for part in range(parts):
            place = Place(published.version, part, parts, published.round_no)
            body = self._seal.close(encode(chunks[part]) if chunks else b"", place)
            yield ClusterChange(published.term, place.version, part, parts, place.round_no, body)

    # --- pulls

    def answer_to(self, pull: Pull) -> list[Blocks]:
        """Blocks of the published model, and for a follower where it stands; nothing where devices pull what is new."""
        published = self.published
        if published is None:
            return []
        answer = answer_to(pull, published, self._rules, published.since)
        if pull.follower is None:
            return answer
        count = sum(len(batch.read_index()) for blocks in answer for batch in blocks.read_batches())
        standing = Standing(published.version, pull.follower.number, count, self._seal.key)
        return [msgspec.structs.replace(blocks, standing=standing) for blocks in answer]
