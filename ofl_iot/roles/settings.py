"""The numbers that steer the role machines; each struct is a section of the settings file."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import msgspec

from ofl_iot.crypto.params import parameter_set
from ofl_iot.ids import COORDINATOR, DECRYPTOR, DeviceId
from ofl_iot.protocol.values import Precision
from ofl_iot.robust.claims import FLEET_RATIO

Positive = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
NotNegative = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Fraction = Annotated[float, msgspec.Meta(ge=0, le=1)]
AtLeastOne = Annotated[int, msgspec.Meta(ge=1, le=2**40)]
AtLeastOnce = Annotated[float, msgspec.Meta(ge=1, le=1e9)]
Number = Annotated[int, msgspec.Meta(ge=0, le=2**40)]


class TrainingRules(msgspec.Struct, frozen=True):
    """Local training: the paper's T_lt steps between releases."""

    steps: AtLeastOne = 10
    longest_s: Positive = 5.0
    """A training that would take longer makes fewer steps: what a slow device learnt must not arrive when it is old."""
    batch_size: AtLeastOne = 16
    learning_rate: Positive = 0.3
    momentum: Fraction = 0.0
    pause_s: NotNegative = 0.0
    """Rest between two trainings."""
    engine: Literal["auto", "layers", "vmap", "loop"] = "auto"
    """How a torch app makes gradients of single records; "vmap" and "loop" keep records apart by construction."""
    device: str = "auto"
    """Where a torch app computes: "auto" is CUDA where it works."""
    max_unreleased: AtLeastOne = 20
    """Trainings without a release (no link, no room, no budget) after which the device waits instead of drifting."""


class UploadRules(msgspec.Struct, frozen=True):
    """What leaves the device, and how it is kept until it is safe."""

    gamma: Fraction = 0.1
    """Largest share of the parameters that one release may hold."""
    density: Literal["none", "histogram", "rare"] = "none"
    """The density estimate of the o-factor (Eq. 5); "none" does least harm."""
    values: Precision = "byte"
    """With its place a parameter takes 2, 3 or 5 bytes; what rounding takes from values waits on the device,
    but in the privacy mode `paper`, where it is lost: it cannot be told from the noise."""
    chunk_bytes: Annotated[int, msgspec.Meta(ge=1024, le=128 * 1024)] = 32 * 1024
    window: AtLeastOne = 8
    """Chunks under way without a receipt."""
    resend_s: Positive = 6.0
    max_outbox_bytes: AtLeastOne = 64 * 1024 * 1024
    """Unsettled chunks beyond this stop releases; training goes on and its work waits in the local model."""


class DownloadRules(msgspec.Struct, frozen=True):
    """What the device asks of its leader."""

    gamma: Fraction = 0.5
    """Largest share of the blocks that one pull asks for."""
    timeout_s: Positive = 4.0
    """How long training waits for an answer."""


class LeaderRules(msgspec.Struct, frozen=True):
    """Merging within a cluster."""

    block_size: AtLeastOne = 256
    """Parameters in a block, the unit of download; the same in the whole federation."""
    snapshot_chunks: AtLeastOne = 64
    """Chunks in the journal after which the cluster model is stored whole."""
    credits: AtLeastOne = 8
    resend_s: Positive = 6.0
    values: Precision = "byte"
    """How blocks travel: what rounding takes is below a hundredth of a block's largest parameter."""
    blocks_bytes: Annotated[int, msgspec.Meta(ge=1024, le=192 * 1024)] = 64 * 1024
    """Of one answer to a pull; blocks that bytes would blur take up to four times that, which a message still holds."""


class ProtectionRules(msgspec.Struct, frozen=True):
    """How cluster updates are hidden from the coordinator, and how poisoned ones are weighed down."""

    mode: Literal["threshold", "clear"] = "threshold"
    """threshold: encrypted under a joint key of the leaders. With a single cluster there is nothing to hide behind."""
    server_dec: Literal["coordinator", "decryptor"] = "coordinator"
    """Who makes ciphertexts fresh for decryption and completes it; the same in the whole federation. An independent
    `ofl decryptor` keeps the randomness of that from the coordinator."""
    params: Literal["lean", "main"] = "main"
    """lean: updates are masked, and leaders open only sums that all contributors signed for. main: updates are
    encrypted; what is decrypted rests on the coordinator's word."""
    threshold: Literal["all", "majority"] | int = "majority"
    """How many leaders must decrypt together; one less may collude and learn nothing."""
    s_factor: Literal["ledger", "mad", "delta", "literal", "mean"] = "ledger"
    max_energy: Positive = 64.0
    """Largest squared norm of an update for which scores are exact; beyond it a projection notices."""
    key_deadline_s: Positive = 60.0
    decryption_deadline_s: Positive = 30.0
    resend_s: Positive = 6.0

    @property
    def largest_update(self) -> float:
        """Largest squared length of an update that is encrypted and scored, whatever its shape.

        No value can then be beyond the bound of the encoding, and the distance, which reaches four times as far as the
        band energies that `max_energy` is about, does not wrap.
        """
        if self.mode == "clear":
            return math.inf
        return min(4 * self.max_energy, 0.999 * parameter_set(self.params).bound ** 2)

    @property
    def server(self) -> DeviceId:
        """Who performs ServerDec: the one party that leaders take requests to decrypt from."""
        return DECRYPTOR if self.server_dec == "decryptor" else COORDINATOR


class RoundRules(msgspec.Struct, frozen=True):
    """Inter-cluster rounds."""

    count: Number = 0
    """Rounds to complete; 0 goes on for ever."""
    interval_s: Positive = 30.0
    """From the end of a round to the opening of the next."""
    idle_interval_s: Positive = 600.0
    """The interval doubles while rounds find too little to merge, up to this."""
    deadline_s: Positive = 60.0
    aggregation_deadline_s: Positive = 600.0
    """From the last contribution to the new model, decryption included."""
    quorum: Fraction = 0.5
    """Share of the leaders that must have contributed at the deadline."""
    recluster_every: Number = 10
    """Rounds between two re-clusterings (the paper's T_rc); 0 = never."""


class FleetRules(msgspec.Struct, frozen=True):
    """Who takes part."""

    min_devices: AtLeastOne = 2
    """The federation begins when so many are online,"""
    gather_s: NotNegative = 10.0
    """and this time has passed since the first one came."""
    clusters: Number = 0
    """0 = round(log2 N)."""
    heartbeat_s: Positive = 60.0
    leader_grace_s: Positive = 30.0
    """How long a leader may be offline before a deputy takes its place."""
    turnover: NotNegative = 0.3
    """Share of the fleet, joined or gone since the last clustering, beyond which it is clustered anew; 0 = never."""
    max_samples_ratio: AtLeastOnce = FLEET_RATIO
    """A device counts with at most so many times the median of all sample counts: nobody can check its claim."""
    away_s: Positive = 3600.0
    """Who is away for longer loses its place at the next clustering, and gets one at once when it returns."""
