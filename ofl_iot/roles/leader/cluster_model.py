"""The leader's model and its books: every chunk merged exactly once, and known to be settled or not.

    cluster model = global model + frozen + waiting + fresh

*Fresh* is the sum of what was merged since the last contribution, *frozen* what that contribution to a round holds.
When the round's global model includes it, frozen is dropped (it is in the global model now) and its chunks are
settled; when the round passes without it, frozen joins fresh again. Either way nothing is lost or counted twice.

In a lean round a leader signs for what is frozen. From then on it is *pinned*: it never joins fresh again, so that no
difference of two rounds shows what came later, but is contributed as one unit until a global model includes it. What
quantising took from it then joins fresh and leaves with a later contribution.

An update is encrypted and scored only up to some length. What would grow beyond it is split between chunks: the older
part *waits*, whole, for a contribution of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from ofl_iot.crypto.lean.params import DEFAULT_PRECISION
from ofl_iot.crypto.lean.quantiser import residue
from ofl_iot.opportunity.merge import CumulativeChange, merge_update, new_cumulative_change, replace_model
from ofl_iot.protocol.chunks import Chunk
from ofl_iot.protocol.messages import Member, Settlement
from ofl_iot.protocol.seqset import SeqSet
from ofl_iot.roles.block_layout import BlockLayout
from ofl_iot.roles.events import Vector
from ofl_iot.roles.leader.pin import Pin

Merged = dict[str, list[int]]
"""Sequence numbers by owner, in the order of merging."""
MOST_WAITING = 4
"""Parts of an update that wait for a contribution of their own; with more of them no other part is begun."""


def owner_of(device: str, store: bytes) -> str:
    """Return whose numbers a chunk's is among: the device's, or one of its stores' if that is known."""
    return f"{device}/{store.hex()}" if store else device


def device_of(owner: str) -> str:
    """Return the device of an owner."""
    return owner.partition("/")[0]


def store_of(owner: str) -> bytes:
    """Return the store of an owner; empty if it is not known."""
    return bytes.fromhex(owner.partition("/")[2])


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
    cumulative_change: bytes
    settled: dict[str, SeqSet]
    waiting: list[tuple[bytes, Merged, float]] = []
    fresh_effort: float = 0.0
    frozen_effort: float = 0.0
    frozen_bounds: bytes = b""


class ClusterModel:
    """The vectors and ledgers of one cluster in one term."""

    def __init__(self, layout: BlockLayout, term: int, members: Iterable[Member], max_energy: float = math.inf) -> None:
        self.layout = layout
        self._max_energy = max_energy
        """Largest squared length of a contribution."""
        self.term = term
        self.settled: dict[str, SeqSet] = {}
        self._held: dict[str, SeqSet] = {}
        """Settled or merged here."""
        self.admit(members)
        self.round_no = -1
        """-1: no global model yet."""
        self._global: Vector = np.zeros(layout.size, np.float32)
        self.model: Vector = np.zeros(layout.size, np.float32)
        self.cumulative_change: CumulativeChange = new_cumulative_change(layout.size, layout.block_size)
        self._fresh: Vector = np.zeros(layout.size, np.float32)
        self._fresh_merged: Merged = {}
        self._fresh_effort = 0.0
        self._fresh_energy = 0.0
        self._waiting: list[tuple[Vector, Merged, float]] = []
        """Oldest first; no two neighbours would fit into one contribution when they were put there."""
        self._frozen: Vector | None = None
        self._frozen_merged: Merged = {}
        self.frozen_effort = 0.0
        """Training steps behind the open contribution, each by the share of the model it told of."""
        self.frozen_round = -1
        self.frozen_bounds = b""
        """Quantisation bounds of the open contribution; empty unless its round is lean."""
        self.pin: Pin | None = None

    def admit(self, members: Iterable[Member]) -> None:
        """Take devices into the cluster with what is known to be settled of them."""
        for member in members:
            owner = owner_of(member.device, member.store)
            self.settled[owner] = self.settled.get(owner, SeqSet()).merged(member.settled)
            self._held[owner] = self._held.get(owner, SeqSet()).merged(member.settled)

    @property
    def ready(self) -> bool:
        """Whether there is a model to merge into."""
        return self.round_no >= 0

    def has_room_for(self, chunk: Chunk) -> bool:
        """Whether a chunk may be merged: not if so much waits already and it would begin another part.

        ||fresh + step · values||² is convex in the step: what is short enough at 0 and at 1 is so in between.
        """
        if len(self._waiting) <= MOST_WAITING or not self._fresh_merged:
            return True
        return self._grown_by(chunk.read_indices(), chunk.read_values())[0] <= self._max_energy

    def bounded(self, chunk: Chunk, step: float) -> float:
        """The step, or less for a chunk that could not be contributed even alone: |step|·||values|| <= sqrt(max)."""
        if not step or math.isinf(self._max_energy):
            return step
        length = float(np.linalg.norm(chunk.read_values().astype(np.float64)))
        return math.copysign(min(abs(step), 0.999 * math.sqrt(self._max_energy) / length), step) if length else step

    def holds(self, device: str, seq: int, store: bytes = b"") -> bool:
        """Whether this chunk was merged here or is settled."""
        return seq in self._held.get(owner_of(device, store), SeqSet())

    def held(self, device: str, chunk: Chunk) -> SeqSet:
        """The chunks of the store that a chunk comes from which were merged here or are settled."""
        return self._held.get(owner_of(device, chunk.store), SeqSet())

    def highest(self, device: str, store: bytes = b"") -> int:
        """The highest sequence number of the device's store that was merged here or is settled."""
        return self._held.get(owner_of(device, store), SeqSet()).highest

    def settled_of(self, device: str, store: bytes) -> SeqSet:
        """The settled chunks of a device's store."""
        return self.settled.get(owner_of(device, store), SeqSet())

    def merge(self, device: str, chunk: Chunk, step: float, effort: float = 0.0) -> None:
        """model[indices] += step · values, once per (device, store, sequence)."""
        owner = owner_of(device, chunk.store)
        if self.holds(device, chunk.seq, chunk.store):
            raise ValueError(f"chunk {chunk.seq} of {device} is merged already")
        if step:
            places, values = chunk.read_indices(), chunk.read_values()
            self._make_room(places, np.float32(step) * values)
            self._fresh[places] += np.float32(step) * values
            merge_update(self.model, self.cumulative_change, places, values, step, block_size=self.layout.block_size)
        self._held[owner] = self._held.get(owner, SeqSet()).union((chunk.seq,))
        self._fresh_merged.setdefault(owner, []).append(chunk.seq)
        self._fresh_effort += effort

    @property
    def fresh_count(self) -> int:
        """Chunks merged that are not in the last contribution."""
        return sum(len(seqs) for merged in self._uncontributed() for seqs in merged.values())

    @property
    def base(self) -> Vector:
        """The global model that the cluster stands on; it is replaced, never changed."""
        return self._global

    @property
    def frozen(self) -> Vector | None:
        """The update of the open contribution."""
        return self._frozen

    @property
    def frozen_settlements(self) -> tuple[Settlement, ...]:
        """The chunks in the open contribution."""
        return tuple(
            Settlement(device_of(owner), tuple(seqs), store_of(owner))
            for owner, seqs in sorted(self._frozen_merged.items())
        )

    def unsettled(self) -> Mapping[str, set[int]]:
        """Chunks merged here that no global model holds yet, by owner."""
        found: dict[str, set[int]] = {}
        for merged in (self._frozen_merged, *self._uncontributed()):
            for device, seqs in merged.items():
                found.setdefault(device, set()).update(seqs)
        return found

    def freeze(self, round_no: int, bounds: bytes = b"") -> Vector:
        """Set aside what the contribution to `round_no` holds; a pinned update is contributed as it is."""
        self.thaw()
        if self._frozen is None:
            if not self._waiting:
                self._set_fresh_aside()
            self._frozen, self._frozen_merged, self.frozen_effort = self._waiting.pop(0)
        self.frozen_round, self.frozen_bounds = round_no, bounds
        return self._frozen

    def thaw(self) -> None:
        """The round passed without the contribution: it is part of the next one, or stays whole if it is pinned."""
        if self._frozen is None:
            return
        if self.pin:
            self.frozen_round = -1
            return
        both = self._frozen + self._fresh
        energy = self._energy_of(both)
        if self._frozen_merged and (self._waiting or energy > self._max_energy):
            self._waiting.insert(0, (self._frozen, self._frozen_merged, self.frozen_effort))
        else:
            self._fresh, self._fresh_energy = both, energy
            self._fresh_effort += self.frozen_effort
            for device, seqs in self._frozen_merged.items():
                self._fresh_merged[device] = seqs + self._fresh_merged.get(device, [])
        self._drop_frozen()

    def adopt(self, global_model: Vector, round_no: int, *, included: bool) -> list[str]:
        """Stand on a new global model; returns the devices of which chunks were settled by it."""
        served: list[str] = []
        if included:
            served = list(dict.fromkeys(map(device_of, self._frozen_merged)))
            for device, seqs in self._frozen_merged.items():
                self.settled[device] = self.settled.get(device, SeqSet()).union(seqs)
            self._keep_residue()
            self._drop_frozen()
        else:
            self.thaw()
        own = sum((values for values, *_ in self._waiting), self._fresh)
        if self._frozen is not None:
            own = own + self._frozen
        replace_model(self.model, self.cumulative_change, global_model + own, block_size=self.layout.block_size)
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
                cumulative_change=self.cumulative_change.tobytes(),
                settled=self.settled,
                waiting=[(values.tobytes(), merged, effort) for values, merged, effort in self._waiting],
                fresh_effort=self._fresh_effort,
                frozen_effort=self.frozen_effort,
                frozen_bounds=self.frozen_bounds,
            )
        )

    @classmethod
    def restored(cls, layout: BlockLayout, stored: bytes, max_energy: float = math.inf) -> ClusterModel:
        """The model of a snapshot; chunks merged since are replayed with `merge`."""
        snapshot = msgspec.msgpack.decode(stored, type=ClusterSnapshot)
        cluster = cls(layout, snapshot.term, (), max_energy)
        cluster.round_no = snapshot.round_no
        cluster._global = _vector(snapshot.global_model)
        cluster._fresh = _vector(snapshot.fresh)
        cluster._fresh_merged = snapshot.fresh_merged
        cluster._fresh_energy = cluster._energy_of(cluster._fresh)
        cluster._fresh_effort, cluster.frozen_effort = snapshot.fresh_effort, snapshot.frozen_effort
        cluster._waiting = [(_vector(values), merged, effort) for values, merged, effort in snapshot.waiting]
        cluster._frozen = _vector(snapshot.frozen) if snapshot.frozen else None
        cluster._frozen_merged = snapshot.frozen_merged
        cluster.frozen_round, cluster.frozen_bounds = snapshot.frozen_round, snapshot.frozen_bounds
        cluster.cumulative_change = np.frombuffer(snapshot.cumulative_change, np.float64).copy()
        cluster.settled = dict(snapshot.settled)
        unsettled = cluster.unsettled()
        cluster._held = {
            owner: cluster.settled.get(owner, SeqSet()).union(unsettled.get(owner, ()))
            for owner in {**cluster.settled, **unsettled}
        }
        cluster.model = cluster._global + sum((values for values, *_ in cluster._waiting), cluster._fresh)
        if cluster._frozen is not None:
            cluster.model += cluster._frozen
        return cluster

    def _uncontributed(self) -> list[Merged]:
        return [*(merged for _, merged, _ in self._waiting), self._fresh_merged]

    def _make_room(self, places: npt.NDArray[np.int64], change: Vector) -> None:
        """Let what was merged so far wait, if this change would make it too long for one contribution."""
        if math.isinf(self._max_energy):
            return
        grown, own = self._grown_by(places, change)
        if grown > self._max_energy and self._fresh_merged:
            self._set_fresh_aside()
            grown = own
        self._fresh_energy = grown

    def _grown_by(self, places: npt.NDArray[np.int64], change: Vector) -> tuple[float, float]:
        """||fresh + change||² and ||change||²."""
        exact = change.astype(np.float64)
        own = float(exact @ exact)
        return self._fresh_energy + own + 2.0 * float(self._fresh[places].astype(np.float64) @ exact), own

    def _set_fresh_aside(self) -> None:
        self._waiting.append((self._fresh, self._fresh_merged, self._fresh_effort))
        self._fresh, self._fresh_merged = np.zeros(self.layout.size, np.float32), {}
        self._fresh_effort = self._fresh_energy = 0.0

    def _energy_of(self, values: Vector) -> float:
        return 0.0 if math.isinf(self._max_energy) else float(np.square(values, dtype=np.float64).sum())

    def _keep_residue(self) -> None:
        """What quantising took from the contribution leaves with a later one."""
        if self._frozen is not None and self.frozen_bounds:
            self._fresh = self._fresh + residue(self._frozen, self.frozen_bounds, DEFAULT_PRECISION)
            self._fresh_energy = self._energy_of(self._fresh)

    def _drop_frozen(self) -> None:
        self._frozen, self._frozen_merged, self.frozen_effort, self.frozen_round = None, {}, 0.0, -1
        self.frozen_bounds, self.pin = b"", None


def _vector(stored: bytes) -> Vector:
    vector: Vector = np.frombuffer(stored, np.float32).copy()
    return vector
