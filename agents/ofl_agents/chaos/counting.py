"""A federation whose arithmetic shows every chunk that is lost or counted twice.

Each device owns some parameters and training adds 1 to them. Leaders and the coordinator add without weights, and the
numbers are small integers, exact in float32. So when all is quiet the global model holds, for each device, exactly the
sum of what that device durably released: one less and a chunk was lost, one more and it was merged twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec
import numpy as np

from ofl_iot.fleet.assignment import FleetSettings
from ofl_iot.fleet.clustering import ClusteringSettings
from ofl_iot.ids import DeviceId, FederationId
from ofl_iot.protocol.chunks import Chunk, split_update
from ofl_iot.roles.agent import AgentMachine
from ofl_iot.roles.coordinator.claim import CoordinatorClaim
from ofl_iot.roles.coordinator.machine import CoordinatorMachine
from ofl_iot.roles.coordinator.profile import CoordinatorRules, ModelProfile
from ofl_iot.roles.device.machine import DeviceMachine
from ofl_iot.roles.device.privacy_guard import PrivacyRules
from ofl_iot.roles.device.profile import DeviceProfile, DeviceRules
from ofl_iot.roles.events import (
    ContributionProtected,
    Evaluated,
    Event,
    ReleasePrepared,
    RoundAggregated,
    SealingKeyMade,
    Trained,
)
from ofl_iot.roles.job_kinds.base import Job
from ofl_iot.roles.job_kinds.device import PrepareRelease, TrainLocally
from ofl_iot.roles.job_kinds.keys import MakeSealingKey
from ofl_iot.roles.job_kinds.rounds import AggregateRound, EvaluateModel, ProtectContribution
from ofl_iot.roles.keys.holder import KeyHolder
from ofl_iot.roles.leader.machine import LeaderMachine
from ofl_iot.roles.leader.profile import LeaderProfile
from ofl_iot.roles.settings import (
    DownloadRules,
    FleetRules,
    LeaderRules,
    ProtectionRules,
    RoundRules,
    TrainingRules,
    UploadRules,
)
from ofl_iot.roles.store_identity import StoreIdentity

MODEL = b"tally---"
FEDERATION = FederationId("tally")


class Rhythm(Protocol):
    """What devices add at present."""

    @property
    def busy(self) -> bool:
        """Whether training adds anything."""
        ...

    @property
    def step(self) -> float:
        """What training adds to each parameter of the device."""
        ...


@dataclass
class TallyToolbox:
    """Adds a step per training while the federation is busy; sums without weights."""

    size: int
    slot: int | None
    world: Rhythm
    width: int = 1
    """Parameters of one device."""

    def run(self, job: Job) -> Event:
        """Run one job."""
        if isinstance(job, TrainLocally):
            params = job.params.copy()
            if self.world.busy and self.slot is not None:
                params[self.slot * self.width : (self.slot + 1) * self.width] += self.world.step
            return Trained(job.params, params, 0.0, 1, 0.01)
        if isinstance(job, PrepareRelease):
            places = np.flatnonzero(job.update)
            values = job.update[places]
            return ReleasePrepared(tuple(split_update(job.head, places, values, np.abs(values), precision="single")))
        if isinstance(job, ProtectContribution):
            return ContributionProtected(job.round_no, job.update.tobytes())
        if isinstance(job, AggregateRound):
            total = np.zeros(self.size, np.float32)
            for each in job.contributions:
                total += np.frombuffer(each.payload, np.float32)
            return RoundAggregated(job.round_no, total, {each.leader: 1.0 for each in job.contributions}, {})
        if isinstance(job, MakeSealingKey):
            return SealingKeyMade(bytes(32), bytes([1]) * 32)
        if isinstance(job, EvaluateModel):
            return Evaluated(job.round_no, 0.0, 0.0)
        raise TypeError(f"a tally does not run {type(job).__name__}")


class Unweighted:
    """Every chunk counts in full."""

    def step(self, device: str, chunk: Chunk, now: float, members: Mapping[str, int], round_no: int) -> float:
        """Return the chunk's weight."""
        del device, chunk, now, members, round_no
        return 1.0

    def effort(self, chunk: Chunk) -> float:
        """Return what the chunk adds to the sender's record."""
        del chunk
        return 0.0

    def snapshot(self) -> bytes:
        """Return nothing: there is nothing to keep."""
        return b""

    def restore(self, stored: bytes) -> None:
        """Take up nothing."""


class CountingPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The rules under which a federation counts, and how its machines are made."""

    devices: int
    width: int = 1
    rounds: RoundRules = RoundRules(interval_s=2.0, deadline_s=8.0, recluster_every=3)
    fleet: FleetRules = FleetRules(min_devices=2, gather_s=1.0, leader_grace_s=4.0, heartbeat_s=5.0)
    training: TrainingRules = TrainingRules(pause_s=0.5)
    upload: UploadRules = UploadRules(gamma=1.0, values="single", window=2, resend_s=2.0)
    download: DownloadRules = DownloadRules(gamma=1.0, timeout_s=2.0)
    leader: LeaderRules = LeaderRules(block_size=2, snapshot_chunks=4, resend_s=2.0, values="single")
    protection: ProtectionRules = ProtectionRules(mode="clear")
    key_resend_s: float = 2.0
    step: float = 1.0
    """What training adds to each parameter of the device."""

    @property
    def encrypted(self) -> bool:
        """Whether rounds of several clusters are encrypted."""
        return self.protection.mode == "threshold"

    @property
    def size(self) -> int:
        """Parameters of the model."""
        return self.devices * self.width

    def coordinator(self, incarnation: bytes, *, take_over: bool = False) -> CoordinatorMachine:
        """Return a coordinator that adds up."""
        return CoordinatorMachine(
            ModelProfile(MODEL, np.zeros(self.size, np.float32)),
            CoordinatorRules(
                rounds=self.rounds,
                fleet=self.fleet,
                protection=self.protection,
                planning=FleetSettings(clustering=ClusteringSettings(clusters=self.fleet.clusters or None)),
                training=msgspec.structs.replace(self.training, steps=1),
            ),
            CoordinatorClaim(incarnation, take_over=take_over),
        )

    def agent(self, name: DeviceId, drawn: bytes) -> AgentMachine:
        """Return a device whose store, if it is empty, gets the identity `drawn`."""
        identity = StoreIdentity(drawn)
        device = DeviceMachine(
            DeviceProfile(name, MODEL, self.size, self.leader.block_size, 10, heartbeat_s=self.fleet.heartbeat_s),
            DeviceRules(
                training=self.training,
                upload=self.upload,
                download=self.download,
                privacy=PrivacyRules(mode="off"),
                leader=self.leader,
            ),
            identity,
        )
        key_holder = KeyHolder(name, self.key_resend_s, self.protection.server)
        profile = LeaderProfile(
            name, MODEL, device.model.layout, encrypted=self.encrypted, max_energy=self.protection.largest_update
        )
        return AgentMachine(device, LeaderMachine(profile, self.leader, Unweighted(), key_holder, identity), key_holder)
