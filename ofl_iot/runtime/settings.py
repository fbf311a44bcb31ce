"""All settings of a federation, section by section; `settings_file` reads and shows them."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from ofl_iot.roles.device.privacy_guard import PrivacyRules
from ofl_iot.roles.device.profile import DeviceRules
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

    id: Annotated[str, Meta(description="Name of the federation, the first level of its topics.")] = "demo"
    app: Annotated[
        str,
        Meta(
            description="What is learnt: a built-in app, FILE.py:NAME, MODULE:NAME or the entry point of an "
            "installed package."
        ),
    ] = "machines"
    data: Annotated[
        str,
        Meta(
            description="Where the app's data are on this machine: a device's own, or what the coordinator holds out."
        ),
    ] = ""
    seed: Annotated[
        Number, Meta(description="Seed of the initial model, from which every party derives the same one.")
    ] = 0


class SimulationSettings(msgspec.Struct, frozen=True):
    """`ofl sim`: a whole federation on one machine."""

    devices: Annotated[Annotated[int, Meta(ge=1, le=100_000)], Meta(description="Simulated devices.")] = 16
    rounds: Annotated[AtLeastOne, Meta(description="Rounds to complete.")] = 12
    seed: Annotated[Number, Meta(description="Seed of data, device types, faults and noise.")] = 0
    alpha: Annotated[
        Positive,
        Meta(description="Concentration of the Dirichlet split: the smaller, the more the devices' data differ."),
    ] = 0.5
    step_s: Annotated[
        Positive,
        Meta(
            description="Seconds of a training step on the fastest device type (D); slower types take "
            "proportionally longer."
        ),
    ] = 0.03


class ServiceSettings(msgspec.Struct, frozen=True):
    """A party as a service of its machine; `ofl install` writes the limits into the unit."""

    watchdog_s: Annotated[
        Positive, Meta(description="Seconds without progress after which the service manager restarts the party.")
    ] = 180.0
    job_limit_s: Annotated[
        Positive, Meta(description="Seconds after which a training or another job counts as hung.")
    ] = 3600.0
    app_quiet_s: Annotated[
        Positive,
        Meta(
            description="Seconds without a sign of life after which the app's process is ended; the next job starts "
            "another."
        ),
    ] = 120.0
    app_idle_s: Annotated[
        Positive, Meta(description="Seconds without a job after which the app's process ends and frees its memory.")
    ] = 600.0
    app_memory_mib: Annotated[
        Number, Meta(description="Memory for the app's data in MiB, beside its libraries; 0 = no limit.")
    ] = 0
    model_out_s: Annotated[Positive, Meta(description="Least seconds between two writings of --model-out.")] = 10.0
    cpu_percent: Annotated[
        Number, Meta(description="CPU limit in percent of one core (200 = two cores); 0 = no limit.")
    ] = 0
    memory_mib: Annotated[Number, Meta(description="Memory limit in MiB; 0 = no limit.")] = 0


class LogSettings(msgspec.Struct, frozen=True):
    """How a party logs."""

    format: Annotated[
        LogFormat, Meta(description="`text`: a phrase, then key=value; `json`: one JSON object a line.")
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
