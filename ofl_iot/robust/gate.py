"""The leader's gate: an account of suspicion for each device of the cluster, from the updates it releases.

Norm and direction of a device's sparse updates are held against the running statistics of the other devices. The
direction is remembered as a short signed hash ("sketch") of the updates, whose inner products are those of the
updates themselves in expectation, so an observation costs O(chunk) and the state a few KiB a device. The state is
plain numbers and bytes: fed with the same updates after a restart, the gate answers the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ofl_iot.errors import RefusedError, StoreError
from ofl_iot.ids import DeviceId
from ofl_iot.robust.verdict import robust_z

IntArray = npt.NDArray[np.integer]
FloatArray = npt.NDArray[np.floating]
Sketch = npt.NDArray[np.float32]


@dataclass(frozen=True)
class GateRules:
    """Thresholds of the gate.

    enabled         off: everything is admitted and nothing is remembered
    sketch_size     numbers that stand for a direction, a power of two; cosines are off by about 1/sqrt(it)
    memory          share of the remembered direction and norm that survives a new update
    warm_up         updates a device must have released before its direction is judged or a measure for others
    loud_above      robust deviations above the others' median log RMS value from which loudness is charged
    norm_floor      least deviation of log RMS values: chunks of one honest update differ by that much
    informative     least usual cosine between devices for directions to mean anything
    tolerance       cosine with the others, as a negative multiple of the usual one, that is still forgiven
    severity        charge per unit of that multiple beyond the tolerance
    heaviest_charge most one update can be charged for its norm, and for its direction
    relief          what an inconspicuous update pays back
    fullest_account where an account stops growing, so that nobody is blocked for ever
    limit           accounts above it block, never more than a minority of the devices
    clip            RMS values above this multiple of the usual one are scaled down to it
    """

    enabled: bool = True
    sketch_size: int = 1024
    memory: float = 0.8
    warm_up: int = 2
    loud_above: float = 4.0
    norm_floor: float = 0.35
    informative: float = 0.1
    tolerance: float = 0.3
    severity: float = 1.0
    heaviest_charge: float = 1.0
    relief: float = 0.25
    fullest_account: float = 6.0
    limit: float = 1.5
    clip: float = 3.0


DEFAULT_RULES = GateRules()


@dataclass(frozen=True)
class Admission:
    """What the leader does with one update: merge it or not, by how much to scale it, and how suspected its device is."""

    accept: bool
    scale: float
    suspicion: float


@dataclass(frozen=True)
class DeviceRecord:
    """What the gate remembers of one device; journalled as it stands."""

    updates: int
    suspicion: float
    log_rms: float
    support: float
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
        for device, record in self._records.items():
            if len(record.sketch) != 4 * rules.sketch_size:
                raise StoreError(f"the gate's record of {device} has another sketch size: forget the gate's state")

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
            return Admission(accept=True, scale=1.0, suspicion=record.suspicion if record else 0.0)
        log_rms = float(np.log(norm / np.sqrt(values.size)))
        record = self._remember(device, record, log_rms, self._sketch(indices, values / norm))
        usual, charge = self._norm_charge(device, log_rms)
        support, turn = self._direction_charge(device, record)
        change = charge + turn
        suspicion = record.suspicion + (change if change > 0.0 else -self.rules.relief)
        suspicion = min(max(suspicion, 0.0), self.rules.fullest_account)
        self._records[device] = DeviceRecord(record.updates, suspicion, record.log_rms, support, record.sketch)
        scale = min(1.0, self.rules.clip * float(np.exp(usual - log_rms)))
        return Admission(accept=device not in self.blocked(), scale=scale, suspicion=suspicion)

    def blocked(self) -> frozenset[DeviceId]:
        """Devices whose updates are refused: the most suspected above the limit, never more than a minority."""
        most = (len(self._records) - 1) // 2
        worst = sorted(self._records.items(), key=lambda item: (-item[1].suspicion, item[0]))[: max(most, 0)]
        return frozenset(device for device, record in worst if record.suspicion > self.rules.limit)

    def _remember(
        self, device: DeviceId, record: DeviceRecord | None, log_rms: float, sketch: Sketch
    ) -> DeviceRecord:
        if record is None:
            record = DeviceRecord(1, 0.0, log_rms, 0.0, sketch.tobytes())
        else:
            keep = self.rules.memory
            mixed = np.float32(keep) * np.frombuffer(record.sketch, dtype=np.float32) + np.float32(1 - keep) * sketch
            usual = keep * record.log_rms + (1 - keep) * log_rms
            record = DeviceRecord(record.updates + 1, record.suspicion, usual, record.support, mixed.tobytes())
        self._records[device] = record
        return record

    def _measures(self, device: DeviceId) -> list[DeviceRecord]:
        """Records of the other devices that are not blocked and have been seen often enough to be a measure."""
        out = self.blocked() | {device}
        return [r for d, r in self._records.items() if d not in out and r.updates >= self.rules.warm_up]

    def _norm_charge(self, device: DeviceId, log_rms: float) -> tuple[float, float]:
        """The usual log RMS value, and the charge for exceeding it."""
        others = np.array([record.log_rms for record in self._measures(device)])
        if others.size < 2:
            return log_rms, 0.0
        z = float(robust_z(np.array([log_rms]), others, self.rules.norm_floor)[0])
        return float(np.median(others)), min(max(z - self.rules.loud_above, 0.0), self.rules.heaviest_charge)

    def _direction_charge(self, device: DeviceId, record: DeviceRecord) -> tuple[float, float]:
        """The device's median cosine with the others, and the charge for pointing away from them."""
        others = self._measures(device)
        if len(others) < 2 or record.updates < self.rules.warm_up:
            return record.support, 0.0
        own = _direction(record)
        support = float(np.median([float(own @ _direction(other)) for other in others]))
        usual = float(np.median([other.support for other in others]))
        if usual < self.rules.informative:
            return support, 0.0
        charge = self.rules.severity * (-support / usual - self.rules.tolerance)
        return support, min(max(charge, 0.0), self.rules.heaviest_charge)

    def _sketch(self, indices: IntArray, values: FloatArray) -> Sketch:
        """Sum of ±values in the bucket each index hashes to (splitmix64 of index and salt)."""
        mixed = indices.astype(np.uint64) + np.uint64(self.salt % 2**64)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
        mixed ^= mixed >> np.uint64(31)
        buckets = (mixed % np.uint64(self.rules.sketch_size)).astype(np.int64)
        signs = np.where(mixed >> np.uint64(63), 1.0, -1.0)
        return np.bincount(buckets, signs * values, self.rules.sketch_size).astype(np.float32)


def _direction(record: DeviceRecord) -> npt.NDArray[np.float64]:
    sketch = np.frombuffer(record.sketch, dtype=np.float32).astype(np.float64)
    return np.asarray(sketch / max(float(np.linalg.norm(sketch)), 1e-30))


def _check(device: DeviceId, indices: IntArray, values: FloatArray) -> None:
    if indices.ndim != 1 or indices.shape != values.shape:
        raise RefusedError(f"update of {device}: {indices.shape} indices for {values.shape} values")
    if not np.isfinite(values).all():
        raise RefusedError(f"update of {device} holds a value that is not finite")
