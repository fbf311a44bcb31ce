"""All settings of a federation, section by section; `settings_file` reads and shows them."""

from __future__ import annotations

from typing import Annotated

import msgspec

from ofl_iot.roles.device.machine import DeviceRules
from ofl_iot.roles.device.privacy_guard import PrivacyRules
from ofl_iot.roles.device.resources import ResourceRules
from ofl_iot.roles.leader.merging import MergeRules
from ofl_iot.roles.settings import (
    AtLeastOne,
    DownloadRules,
    FleetRules,
    LeaderRules,
    Number,
    Positive,
    ProtectionRules,
    RoundRules,
    TrainingRules,
    UploadRules,
)
from ofl_iot.runtime.logs import LogFormat
from ofl_iot.transport.settings import MqttSettings


class FederationSettings(msgspec.Struct, frozen=True):
    """Which federation, and what it learns."""

    id: str = "demo"
    app: str = "machines"
    """What is learnt: a built-in app, FILE.py:NAME, MODULE:NAME or the entry point of an installed package."""
    data: str = ""
    """Where the app's data are on this machine: a device's own, or what the coordinator holds out."""
    seed: Number = 0
    """Of the initial model, which every party derives alike."""


class SimulationSettings(msgspec.Struct, frozen=True):
    """`ofl sim`: a whole federation on one machine."""

    devices: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 16
    rounds: AtLeastOne = 12
    seed: Number = 0
    alpha: Positive = 0.5
    """Of the Dirichlet split: the smaller, the more the devices' data differ."""
    step_s: Positive = 0.03
    """Seconds a training step takes on the fastest device type (D); slower types take longer in proportion."""


class ServiceSettings(msgspec.Struct, frozen=True):
    """A party as a service of its machine; `ofl install` writes the limits into the unit."""

    watchdog_s: Positive = 180.0
    """Without progress for so long it is started again."""
    job_limit_s: Positive = 3600.0
    """A training or another job that takes longer hangs."""
    app_quiet_s: Positive = 120.0
    """The process of the app that gives no sign of life for so long is ended; the next job starts another."""
    app_idle_s: Positive = 600.0
    """It ends by itself after so long without a job, and its memory is free."""
    app_memory_mib: Number = 0
    """Of the app's data, beside its libraries; 0 = no limit."""
    cpu_percent: Number = 0
    """Of one core, so 200 is two cores; 0 = no limit."""
    memory_mib: Number = 0
    """0 = no limit."""


class LogSettings(msgspec.Struct, frozen=True):
    """How a party logs."""

    format: Annotated[
        LogFormat, msgspec.Meta(description="`text`: a phrase, then key=value; `json`: one JSON object a line.")
    ] = "text"


class Settings(msgspec.Struct, frozen=True):
    """Everything an operator may set."""

    federation: FederationSettings = FederationSettings()
    mqtt: MqttSettings = MqttSettings()
    training: TrainingRules = TrainingRules()
    privacy: PrivacyRules = PrivacyRules()
    resources: ResourceRules = ResourceRules()
    upload: UploadRules = UploadRules()
    download: DownloadRules = DownloadRules()
    leader: LeaderRules = LeaderRules()
    merge: MergeRules = MergeRules()
    round: RoundRules = RoundRules()
    protection: ProtectionRules = ProtectionRules()
    fleet: FleetRules = FleetRules()
    service: ServiceSettings = ServiceSettings()
    log: LogSettings = LogSettings()
    simulation: SimulationSettings = SimulationSettings()

    def device_rules(self) -> DeviceRules:
        """What concerns a device."""
        return DeviceRules(
            training=self.training,
            upload=self.upload,
            download=self.download,
            privacy=self.privacy,
            resources=self.resources,
            leader=self.leader,
        )
