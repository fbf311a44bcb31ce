"""What a device is, and the rules it goes by."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from ofl_iot.ids import DeviceId
from ofl_iot.roles.device.privacy_guard import PrivacyRules
from ofl_iot.roles.device.resources import ResourceRules
from ofl_iot.roles.settings import DownloadRules, LeaderRules, TrainingRules, UploadRules

TRAINED_SHARE = 0.9
"""Of the time between two beats; the rest is for what comes between a training and the next beat."""


@dataclass(frozen=True)
class DeviceProfile:
    """What a device is, whatever it learns."""

    device: DeviceId
    model: bytes
    size: int
    block_size: int
    sample_count: int
    device_type: str = ""
    heartbeat_s: float = 60.0
    card: bytes = b""
    """What its model is (`protocol/model_card.py`), to compare with the federation's; empty: nothing is compared."""
    live: bool = False
    """Whether records may come and go while the device runs: then it looks before each training."""
    balance: float = 1.0
    """How even the labels of its samples are (`label_balance`): a resource of its plan where privacy is off."""
    accept_new_budget: bool = False
    """Whether the operator accepts a new privacy budget where the old one is lost or spent."""
    software: str = ""
    """Version of ofl-iot that it runs, for its status."""
    edges: tuple[int, ...] = ()
    """Where tensors begin in the model: nothing shares a scale across them."""


class DeviceRules(msgspec.Struct, frozen=True):
    """The sections of the settings that concern a device."""

    training: TrainingRules = TrainingRules()
    upload: UploadRules = UploadRules()
    download: DownloadRules = DownloadRules()
    privacy: PrivacyRules = PrivacyRules()
    resources: ResourceRules = ResourceRules()
    leader: LeaderRules = LeaderRules()
    """What leaders do, and with it what a download takes."""

    @property
    def paced_training(self) -> TrainingRules:
        """Rules of training by which one fits, with its upload, between two beats of a leader."""
        if self.leader.publish != "beat":
            return self.training
        return msgspec.structs.replace(
            self.training, longest_s=min(self.training.longest_s, TRAINED_SHARE * self.leader.beat_s)
        )
