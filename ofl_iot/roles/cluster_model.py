"""The leader's model and its books: every chunk merged exactly once, and known to be settled or not.

    cluster model = global model + frozen + fresh

*Fresh* is the sum of what was merged since the last contribution, *frozen* what that contribution to a round holds.
When the round's global model includes it, frozen is dropped (it is in the global model now) and its chunks are
settled; when the round passes without it, frozen joins fresh again. Either way nothing is lost or counted twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
import numpy as np

from ofl_iot.opportunity.merge import Mileage, merge_update, new_mileage, replace_model
from ofl_iot.protocol.chunks import Chunk
from ofl_iot.protocol.messages import Member, Settlement
from ofl_iot.protocol.seqset import SeqSet
from ofl_iot.roles.blocks import BlockLayout
from ofl_iot.roles.events import Vector

Merged = dict[str, list[int]]
"""Sequence numbers by device, in the order of merging."""


class ClusterSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """A cluster model as it is stored."""

    term: int
    round_no: int
    global_model: bytes
    fresh: bytes
    fresh_merged: Merged
    frozen: bytes
    frozen_merged: Merged
    frozen_round: int
    mileage: bytes
    settled: dict[str, SeqSet]


class ClusterModel:
    """The vectors and ledgers of one cluster in one term."""

    def __init__(self, layout: BlockLayout, term: int, members: Iterable[Member]) -> None:
        self.layout = layout
        self.term = term
        self.settled: dict[str, SeqSet] = {}
        self._held: dict[str, SeqSet] = {}
        """Settled or merged here."""
        self.admit(members)
        self.round_no = -1
        """-1: no global model yet."""
        self._global: Vector = np.zeros(layout.size, np.float32)
        self.model: Vector = np.zeros(layout.size, np.float32)
        self.mileage: Mileage = new_mileage(layout.size, layout.block_size)
        self._fresh: Vector = np.zeros(layout.size, np.float32)
        self._fresh_merged: Merged = {}
        self._frozen: Vector | None = None
        self._frozen_merged: Merged = {}
        self.frozen_round = -1

    def admit(self, members: Iterable[Member]) -> None:
        """Take devices into the cluster with what is known to be settled of them."""
        for member in members:
            known = self.settled.get(member.device, SeqSet())
            self.settled[member.device] = known.merged(member.settled)
            self._held[member.device] = self._held.get(member.device, SeqSet()).merged(member.settled)

    @property
    def ready(self) -> bool:
        """Whether there is a model to merge into."""
        return self.round_no >= 0

    def holds(self, device: str, seq: int) -> bool:
        """Whether this chunk was merged here or is settled."""
        return seq in self._held.get(device, SeqSet())

    def highest(self, device: str) -> int:
        """The highest sequence number of the device that was merged here or is settled."""
        return self._held.get(device, SeqSet()).highest

    def merge(self, device: str, chunk: Chunk, step: float) -> None:
        """model[indices] += step · values, once per (device, sequence)."""
        if self.holds(device, chunk.seq):
            raise ValueError(f"chunk {chunk.seq} of {device} is merged already")
        if step:
            places, values = chunk.read_indices(), chunk.read_values()
            self._fresh[places] += np.float32(step) * values
            merge_update(self.model, self.mileage, places, values, step, block_size=self.layout.block_size)
        self._held[device] = self._held.get(device, SeqSet()).union((chunk.seq,))
        self._fresh_merged.setdefault(device, []).append(chunk.seq)

    @property
    def fresh_count(self) -> int:
        """Chunks merged since the last contribution."""
        return sum(map(len, self._fresh_merged.values()))

    @property
    def frozen(self) -> Vector | None:
        """The update of the open contribution."""
        return self._frozen

    @property
    def frozen_settlements(self) -> tuple[Settlement, ...]:
        """The chunks in the open contribution."""
        return tuple(Settlement(device, tuple(seqs)) for device, seqs in sorted(self._frozen_merged.items()))

    def unsettled(self) -> Mapping[str, set[int]]:
        """Chunks merged here that no global model holds yet."""
        devices = self._fresh_merged.keys() | self._frozen_merged.keys()
        return {
            device: {*self._fresh_merged.get(device, ()), *self._frozen_merged.get(device, ())} for device in devices
        }

    def freeze(self, round_no: int) -> Vector:
        """Set aside what the contribution to `round_no` holds."""
        self.thaw()
        self._frozen, self._fresh = self._fresh, np.zeros(self.layout.size, np.float32)
        self._frozen_merged, self._fresh_merged = self._fresh_merged, {}
        self.frozen_round = round_no
        return self._frozen

    def thaw(self) -> None:
        """The round passed without the contribution: it is part of the next one."""
        if self._frozen is None:
            return
        self._fresh = self._frozen + self._fresh
        for device, seqs in self._frozen_merged.items():
            self._fresh_merged[device] = seqs + self._fresh_merged.get(device, [])
        self._drop_frozen()

    def adopt(self, global_model: Vector, round_no: int, *, included: bool) -> list[str]:
        """Stand on a new global model; returns the devices of which chunks were settled by it."""
        served: list[str] = []
        if included:
            served = list(self._frozen_merged)
            for device, seqs in self._frozen_merged.items():
                self.settled[device] = self.settled.get(device, SeqSet()).union(seqs)
            self._drop_frozen()
        else:
            self.thaw()
        replace_model(self.model, self.mileage, global_model + self._fresh, block_size=self.layout.block_size)
        self._global, self.round_no = global_model, round_no
        return served

    def snapshot(self) -> bytes:
        """What must survive a restart."""
        frozen = b"" if self._frozen is None else self._frozen.tobytes()
        return msgspec.msgpack.encode(
            ClusterSnapshot(
                term=self.term,
                round_no=self.round_no,
                global_model=self._global.tobytes(),
                fresh=self._fresh.tobytes(),
                fresh_merged=self._fresh_merged,
                frozen=frozen,
                frozen_merged=self._frozen_merged,
                frozen_round=self.frozen_round,
                mileage=self.mileage.tobytes(),
                settled=self.settled,
            )
        )

    @classmethod
    def restored(cls, layout: BlockLayout, stored: bytes) -> ClusterModel:
        """The model of a snapshot; chunks merged since are replayed with `merge`."""
        snapshot = msgspec.msgpack.decode(stored, type=ClusterSnapshot)
        cluster = cls(layout, snapshot.term, ())
        cluster.round_no = snapshot.round_no
        cluster._global = _vector(snapshot.global_model)
        cluster._fresh = _vector(snapshot.fresh)
        cluster._fresh_merged = snapshot.fresh_merged
        cluster._frozen = _vector(snapshot.frozen) if snapshot.frozen else None
        cluster._frozen_merged = snapshot.frozen_merged
        cluster.frozen_round = snapshot.frozen_round
        cluster.mileage = np.frombuffer(snapshot.mileage, np.float64).copy()
        cluster.settled = dict(snapshot.settled)
        cluster._held = {
            device: settled.union(cluster.unsettled().get(device, ())) for device, settled in cluster.settled.items()
        }
        cluster.model = cluster._global + cluster._fresh
        if cluster._frozen is not None:
            cluster.model += cluster._frozen
        return cluster

    def _drop_frozen(self) -> None:
        self._frozen, self._frozen_merged, self.frozen_round = None, {}, -1


def _vector(stored: bytes) -> Vector:
    vector: Vector = np.frombuffer(stored, np.float32).copy()
    return vector
