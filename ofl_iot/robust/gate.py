"""The leader's gate: an account of suspicion for each device of the cluster, from the updates it releases.

Norm and direction of a device's sparse updates are held against the running statistics of the other devices. The
direction is remembered as a short signed hash ("sketch") of the updates, whose inner products are those of the
updates themselves in expectation, so an observation costs O(chunk) and the state a few KiB a device. The state is
plain numbers and bytes: fed with the same updates after a restart, the gate answers the same.

Norms tell most. Honest devices whose updates hold the same work differ by half; whoever pulls the model where nobody
else wants it never arrives there and stays loud. Directions tell something only while the others agree among
themselves: where learning comes to rest, the updates of honest devices cancel each other and all of them point away
from the rest. And a device that alone holds a class points away from the others as much as a sign flipper does: what
tells them apart is how often they push. So the account is charged once a turn (a run of chunks of one device) and
relieved by the turns of all others: what counts is the opposition a device brings in per unit of the cluster's time.
The price: an attacker that is not loud and speaks rarely, or only when learning rests, is not noticed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ofl_iot.errors import RefusedError, StoreError
from ofl_iot.ids import DeviceId
from ofl_iot.robust.verdict import robust_z

IntArray = npt.NDArray[np.integer]
FloatArray = npt.NDArray[np.floating]
Sketch = npt.NDArray[np.float32]
Direction = npt.NDArray[np.int64]

_UNIT = 1e6


@dataclass(frozen=True)
class GateRules:
    """Thresholds of the gate, chosen on digits and MNIST's training file with an earlier bench of one cluster.

    With seeds from 100 on; they were made milder, by seeds from 104 on, after figures of seeds 0 to 2 had been seen.

    enabled         off: everything is admitted and nothing is remembered
    sketch_size     numbers that stand for a direction; cosines are off by about 1/sqrt(sketch_size)
    memory          share of the remembered direction and norm that survives a new update
    warm_up         turns a device must have had before its direction is judged or is a measure for others
    loud_above      robust deviations above the others' median log RMS value from which loudness is charged
    norm_floor      least deviation of log RMS values: honest devices differ by that much anyway
    informative     least mean cosine between the others' directions for a direction to mean anything
    tolerance       opposition to the others' common direction that is still forgiven, in usual updates
    severity        charge per unit of opposition beyond the tolerance
    loud_charge     most one turn can be charged for its norm; with more on its account a loud update is refused
    turn_charge     most one turn can be charged for its direction
    relief          what is paid back while every other device has a turn
    fullest_account where an account stops growing, so that nobody is blocked for ever
    limit           accounts above it block, never more than a minority of the devices
    clip            RMS values above this multiple of the usual one are scaled down to it
    """

    enabled: bool = True
    sketch_size: int = 1024
    memory: float = 0.8
    warm_up: int = 2
    loud_above: float = 2.5
    norm_floor: float = 0.3
    informative: float = 0.15
    tolerance: float = 0.3
    severity: float = 4.0
    loud_charge: float = 2.0
    turn_charge: float = 0.6
    relief: float = 0.25
    fullest_account: float = 8.0
    limit: float = 4.0
    clip: float = 3.0


DEFAULT_RULES = GateRules()


@dataclass(frozen=True)
class Admission:
    """What the leader does with one update: whether to merge it, how far to scale it, how suspected its device is."""

    accept: bool
    scale: float
    suspicion: float


@dataclass(frozen=True)
class DeviceRecord:
    """What the gate remembers of one device; journalled as it stands."""

    turns: int
    last_turn: int
    suspicion: float
    log_rms: float
    sketch: bytes


class Gate:
    """Judges the updates of one cluster's devices, one at a time, in the order they are merged."""

    def __init__(
        self, salt: int, rules: GateRules = DEFAULT_RULES, records: Mapping[DeviceId, DeviceRecord] | None = None
    ) -> None:
        """`salt` keys the hash: a leader draws it once and keeps it to itself, or updates could be made to collide."""
        self.rules = rules
        self.salt = salt
        self._records = dict(records or {})
        self._turn = max((record.last_turn for record in self._records.values()), default=0)
        self._directions: dict[DeviceId, Direction] = {}
        """Directions of the devices by which others are measured."""
        self._common: Direction = np.zeros(rules.sketch_size, np.int64)
        """Sum of these directions."""
        self._suspected: dict[DeviceId, float] = {}
        """Devices above the limit and how far they are suspected."""
        self._places: dict[DeviceId, int] = {}
        self._log_rms: npt.NDArray[np.float64] = np.empty(0)
        """Log of each device's root mean square, in one array: an update is compared with all others."""
        for device, record in self._records.items():
            if len(record.sketch) != 4 * rules.sketch_size:
                raise StoreError(f"the gate's record of {device} has another sketch size: forget the gate's state")
            self._count(device)

    @property
    def records(self) -> Mapping[DeviceId, DeviceRecord]:
        """The whole state, to be journalled and handed to a new gate."""
        return dict(self._records)

    def observe(self, device: DeviceId, indices: IntArray, values: FloatArray) -> Admission:
        """Judge one sparse update (or a chunk of one) and remember it."""
        _check(device, indices, values)
        norm = float(np.linalg.norm(values.astype(np.float64)))
        record = self._records.get(device)
        if not self.rules.enabled or norm == 0.0:
            return Admission(accept=device not in self.blocked(), scale=1.0, suspicion=_suspicion(record))
        log_rms = float(np.log(norm / np.sqrt(values.size)))
        others = self._others(self.blocked() | {device})
        others = others if len(others) >= 2 else np.array([log_rms])
        usual, loudness = float(np.median(others)), self._loudness(log_rms, others)
        sketch = self._sketch(indices, values / norm)
        record = self._records[device] = self._remember(device, log_rms, sketch, loudness, usual)
        self._count(device)
        again = loudness > 0.0 and record.suspicion > self.rules.loud_charge
        return Admission(
            accept=device not in self.blocked() and not again,
            scale=min(1.0, self.rules.clip * float(np.exp(usual - log_rms))),
            suspicion=record.suspicion,
        )

    def blocked(self) -> frozenset[DeviceId]:
        """Devices whose updates are refused: the most suspected above the limit, never more than a minority."""
        if not self.rules.enabled:
            return frozenset()
        suspected = [(-suspicion, device) for device, suspicion in self._suspected.items()]
        return frozenset(device for _, device in sorted(suspected)[: max(0, (len(self._records) - 1) // 2)])

    def _others(self, out: frozenset[DeviceId]) -> npt.NDArray[np.float64]:
        """Log RMS values of all devices but some."""
        kept = np.ones(len(self._places), bool)
        kept[[self._places[device] for device in out if device in self._places]] = False
        return self._log_rms[: len(self._places)][kept]

    def _count(self, device: DeviceId) -> None:
        """Bring what is known of all devices up to date with one's record: O(1), whatever the cluster's size."""
        record = self._records[device]
        place = self._places.setdefault(device, len(self._places))
        if place >= len(self._log_rms):
            self._log_rms = np.concatenate((self._log_rms, np.zeros(place + 16)))
        self._log_rms[place] = record.log_rms
        self._suspected.pop(device, None)
        if record.suspicion > self.rules.limit:
            self._suspected[device] = record.suspicion
        before = self._directions.pop(device, None)
        if before is not None:
            self._common -= before
        if record.turns >= self.rules.warm_up and record.suspicion <= self.rules.limit:
            self._directions[device] = _direction(np.frombuffer(record.sketch, np.float32))
            self._common += self._directions[device]

    def _remember(
        self, device: DeviceId, log_rms: float, sketch: Sketch, loudness: float, usual: float
    ) -> DeviceRecord:
        """The device's record after this update; norm and account move only with the first chunk of a turn."""
        record = self._records.get(device)
        if record is None:
            self._turn += 1
            return DeviceRecord(1, self._turn, loudness, log_rms, sketch.tobytes())
        keep = np.float32(self.rules.memory)
        mixed = keep * np.frombuffer(record.sketch, dtype=np.float32) + (np.float32(1) - keep) * sketch
        if record.last_turn == self._turn:
            return replace(record, sketch=mixed.tobytes())
        self._turn += 1
        elapsed = (self._turn - record.last_turn) / len(self._records)
        suspicion = max(0.0, record.suspicion - self.rules.relief * elapsed) + loudness
        if record.turns >= self.rules.warm_up:
            opposition = self._opposition(device, _direction(mixed), float(np.exp(record.log_rms - usual)))
            charge = self.rules.severity * (opposition - self.rules.tolerance)
            suspicion += min(max(charge, 0.0), self.rules.turn_charge)
        return DeviceRecord(
            turns=record.turns + 1,
            last_turn=self._turn,
            suspicion=min(suspicion, self.rules.fullest_account),
            log_rms=self.rules.memory * record.log_rms + (1.0 - self.rules.memory) * log_rms,
            sketch=mixed.tobytes(),
        )

    def _loudness(self, log_rms: float, others: npt.NDArray[np.float64]) -> float:
        """Charge for a norm above the others'."""
        z = float(robust_z(np.array([log_rms]), others, self.rules.norm_floor)[0])
        return min(max(z - self.rules.loud_above, 0.0), self.rules.loud_charge)

    def _opposition(self, device: DeviceId, direction: Direction, size: float) -> float:
        """How far the device's usual update points against the sum S of the others' unit directions.

        opposition = -cosine · min(2, RMS value / the others' median RMS value); nothing unless the mean cosine
        between two of the m others, (|S|² / m - 1) / (m - 1), is informative.
        """
        others = len(self._directions) - (device in self._directions)
        common = (self._common - self._directions.get(device, np.int64(0))) / _UNIT
        if others < 2 or (float(common @ common) / others - 1) / (others - 1) < self.rules.informative:
            return 0.0
        return -min(2.0, size) * float(direction @ common) / _UNIT / float(np.linalg.norm(common))

    def _sketch(self, indices: IntArray, values: FloatArray) -> Sketch:
        """Sum of ±values in the bucket each index hashes to (splitmix64 of index and salt)."""
        mixed = indices.astype(np.uint64) + np.uint64(self.salt % 2**64)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
        mixed ^= mixed >> np.uint64(31)
        buckets = (mixed % np.uint64(self.rules.sketch_size)).astype(np.int64)
        signs = np.where(mixed >> np.uint64(63), 1.0, -1.0)
        return np.bincount(buckets, signs * values, self.rules.sketch_size).astype(np.float32)


def _direction(sketch: Sketch) -> Direction:
    """A sketch at length 1 in whole millionths: sums of them do not depend on the order."""
    wide = sketch.astype(np.float64)
    return np.rint(wide * (_UNIT / max(float(np.linalg.norm(wide)), 1e-30))).astype(np.int64)


def _suspicion(record: DeviceRecord | None) -> float:
    return 0.0 if record is None else record.suspicion


def _check(device: DeviceId, indices: IntArray, values: FloatArray) -> None:
    if indices.ndim != 1 or indices.shape != values.shape:
        raise RefusedError(f"update of {device}: {indices.shape} indices for {values.shape} values")
    if not np.isfinite(values).all():
        raise RefusedError(f"update of {device} holds a value that is not finite")
