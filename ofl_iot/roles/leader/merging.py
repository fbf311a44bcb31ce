"""How much an arriving chunk counts: by data, by how much its device is heard, and whether it is to be trusted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Protocol

import msgspec
import numpy as np
from msgspec import Meta

from ofl_iot.ids import DeviceId
from ofl_iot.opportunity.merge import ArrivalRates, MergeSettings, merge_weight
from ofl_iot.protocol.chunks import Chunk
from ofl_iot.robust.gate import DeviceRecord, Gate, GateRules
from ofl_iot.roles.settings import Fraction, NotNegative


class MergeRules(msgspec.Struct, frozen=True):
    """The leader's weights and its gate."""

    compensate_rate: Annotated[
        bool,
        Meta(
            description="Give slow devices more weight per update, so that all count by their data; off = by data "
            "alone. Where updates carry noise (`privacy.mode = rigorous`) nobody counts for more than their data."
        ),
    ] = True
    max_weight: Annotated[Fraction, Meta(description="Largest weight of one update.")] = 1.0
    max_lag: Annotated[
        NotNegative,
        Meta(description="Rounds that an update may lag before it is discounted; 0 = late updates count in full."),
    ] = 0.0
    gate: Annotated[
        bool, Meta(description="Watch norm and direction of each device's updates and keep suspected ones out.")
    ] = True


class Merging(Protocol):
    """Decides the step of each chunk; its memory is stored with the cluster model."""

    def step(self, device: str, chunk: Chunk, now: float, members: Mapping[str, int], round_no: int) -> float:
        """The factor of the chunk's values, at most 1; 0 keeps them out. `members` maps devices to sample counts."""
        ...

    def effort(self, chunk: Chunk) -> float:
        """Training steps behind a chunk, by the share of the model that it tells of."""
        ...

    def snapshot(self) -> bytes:
        """What must survive a restart."""
        ...

    def restore(self, stored: bytes) -> None:
        """Take a snapshot up."""
        ...


class _Memory(msgspec.Struct, frozen=True, array_like=True):
    """What is stored of the gate. Arrival rates are not: they are relearnt, and clocks do not survive a reboot."""

    salt: int
    records: dict[DeviceId, DeviceRecord]


class WeightedMerging:
    """eta_i = min(max, |D_i| / |D| · mean rate / rate_i) · discount, then the gate's verdict.

    The weight is at the device's rate, so all chunks of one update count alike. How many training steps are behind an
    update is the device's own claim: one of few steps counts more, but the gate sees it as loud as it then is.
    Noisy updates never weigh more than |D_i| / |D|: a device that comes back from a pause looks slow, and one update
    at many times its share would bring more noise into the model than all others together.
    """

    def __init__(
        self, rules: MergeRules, salt: int, steps: int = 1, *, noisy: bool = False, planned: bool = False
    ) -> None:
        """`steps` of an undisturbed training: the most that one update may claim; `noisy` if updates carry noise.

        `planned` if that noise is the shorter the more data a device has (`privacy.auto`): the gate then compares how
        far updates move the model, at their weight, not how long they are.
        """
        self._planned = planned
        self._rules = rules
        self._steps = steps
        self._most = 1.0 if noisy else math.inf
        self._settings = MergeSettings(max_weight=rules.max_weight, staleness_bound=rules.max_lag or None)
        self._rates = ArrivalRates()
        self._updates: dict[str, int] = {}
        self._members: Mapping[str, int] = {}
        """Samples by member at the last step,"""
        self._examples = 0
        """and of all of them: a leader makes another mapping when they change."""
        self._gate = Gate(salt, GateRules(enabled=rules.gate))

    def step(self, device: str, chunk: Chunk, now: float, members: Mapping[str, int], round_no: int) -> float:
        """The device's weight, scaled or refused by the gate."""
        name, steps = DeviceId(device), self._steps_of(chunk)
        if self._updates.get(device) != chunk.update_no:
            self._updates[device] = chunk.update_no
            self._rates.observe(name, now, steps)
        compensation = self._rates.compensation(name, self._most) if self._rules.compensate_rate else 1.0
        if members is not self._members:
            self._members, self._examples = members, sum(max(1, count) for count in members.values())
        own, total = max(1, members[device]), self._examples
        lag = float(max(0, round_no - chunk.base_round))
        weight = merge_weight(own, total, compensation, lag, self._settings)
        # What noisy steps come to grows with their root.
        whole_training = chunk.read_values() * np.float32(math.sqrt(self._steps / steps))
        if self._planned:
            whole_training *= np.float32(own * len(members) / total)
        admission = self._gate.observe(name, chunk.read_indices(), whole_training)
        return weight * admission.scale if admission.accept else 0.0

    def effort(self, chunk: Chunk) -> float:
        """Training steps behind a chunk, by the share of the model that it tells of."""
        return self._steps_of(chunk) * chunk.count / chunk.size

    def _steps_of(self, chunk: Chunk) -> float:
        """What the device claims, within a whole training."""
        return min(max(1.0, chunk.weight), self._steps)

    def snapshot(self) -> bytes:
        """The gate's accounts."""
        return msgspec.msgpack.encode(_Memory(self._gate.salt, dict(self._gate.records)))

    def restore(self, stored: bytes) -> None:
        """Take the accounts up, so that a restart forgives nobody."""
        memory = msgspec.msgpack.decode(stored, type=_Memory)
        self._gate = Gate(memory.salt, GateRules(enabled=self._rules.gate), memory.records)
