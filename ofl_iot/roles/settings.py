"""The numbers that steer the role machines; each struct is a section of the settings file."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ofl_iot.crypto.lean.budget import most_leaders
from ofl_iot.crypto.params import parameter_set
from ofl_iot.errors import ConfigError
from ofl_iot.ids import COORDINATOR, DECRYPTOR, DeviceId
from ofl_iot.protocol.values import BlockPrecision, Precision
from ofl_iot.robust.claims import FLEET_RATIO

Positive = Annotated[float, Meta(gt=0, le=1e9)]
NotNegative = Annotated[float, Meta(ge=0, le=1e9)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
AtLeastOne = Annotated[int, Meta(ge=1, le=2**40)]
AtLeastOnce = Annotated[float, Meta(ge=1, le=1e9)]
Number = Annotated[int, Meta(ge=0, le=2**40)]


class TrainingRules(msgspec.Struct, frozen=True):
    """Local training: the paper's T_lt steps between releases."""

    steps: Annotated[AtLeastOne, Meta(description="Training steps between two releases (the paper's T_lt).")] = 10
    start: Annotated[
        Literal["local", "synced"],
        Meta(
            description="What a training starts from: the local model with all unreleased work in it, or the leader's "
            "model as the device knows it; unreleased work then waits apart."
        ),
    ] = "local"
    longest_s: Annotated[
        Positive,
        Meta(
            description="Longest training in seconds: a slower device makes fewer steps, so that its work is not "
            "stale when it arrives."
        ),
    ] = 5.0
    batch_size: Annotated[AtLeastOne, Meta(description="Records in a batch.")] = 16
    learning_rate: Annotated[Positive, Meta(description="Learning rate of local SGD.")] = 0.3
    momentum: Annotated[Fraction, Meta(description="Momentum of local SGD.")] = 0.0
    pause_s: Annotated[NotNegative, Meta(description="Pause between two trainings, in seconds.")] = 0.0
    engine: Annotated[
        Literal["auto", "layers", "vmap", "loop"],
        Meta(
            description='How a torch app makes gradients of single records; "vmap" and "loop" keep records apart by '
            "construction."
        ),
    ] = "auto"
    device: Annotated[str, Meta(description='Where a torch app computes: "auto" is CUDA where it works.')] = "auto"
    max_unreleased: Annotated[
        AtLeastOne,
        Meta(
            description="Trainings without a release (no link, no room, no budget) after which the device waits "
            "instead of drifting away."
        ),
    ] = 20


class UploadRules(msgspec.Struct, frozen=True):
    """What leaves the device, and how it is kept until it is safe."""

    gamma: Annotated[Fraction, Meta(description="Largest share of the parameters in one release.")] = 0.1
    score: Annotated[
        Literal["o-factor", "magnitude"],
        Meta(
            description="What selects the parameters of a release: Eq. 5 or the size of the update alone. Privacy mode "
            "`paper` always selects by Eq. 5."
        ),
    ] = "magnitude"
    density: Annotated[
        Literal["none", "histogram", "rare"],
        Meta(description="Density estimate of the o-factor (Eq. 5); `none` does least harm."),
    ] = "none"
    values: Annotated[
        Precision,
        Meta(
            description="Precision of released values: with its position a parameter takes 1.1 (`nibble`: four bits, "
            "rounded at random; programs before 0.2 do not read it), 2, 3 or 5 bytes. What rounding removes waits on "
            "the device, except in privacy mode `paper`, where it is lost."
        ),
    ] = "byte"
    chunk_bytes: Annotated[
        Annotated[int, Meta(ge=1024, le=128 * 1024)], Meta(description="Target size of a chunk in bytes.")
    ] = 32 * 1024
    window: Annotated[AtLeastOne, Meta(description="Chunks in flight without a receipt.")] = 8
    resend_s: Annotated[Positive, Meta(description="Seconds after which an unconfirmed chunk is sent again.")] = 6.0
    max_outbox_bytes: Annotated[
        AtLeastOne,
        Meta(
            description="Unsettled bytes beyond which releases stop; training continues and its work waits in the "
            "local model."
        ),
    ] = 64 * 1024 * 1024


class DownloadRules(msgspec.Struct, frozen=True):
    """What the device asks of its leader."""

    gamma: Annotated[Fraction, Meta(description="Largest share of the blocks that one pull asks for.")] = 0.5
    timeout_s: Annotated[Positive, Meta(description="Seconds that training waits for the answer to a pull.")] = 4.0


class LeaderRules(msgspec.Struct, frozen=True):
    """Merging within a cluster."""

    block_size: Annotated[
        Annotated[int, Meta(ge=1, le=4096)],
        Meta(description="Parameters in a block, the unit of download; the same in the whole federation."),
    ] = 256
    snapshot_chunks: Annotated[
        AtLeastOne, Meta(description="Chunks in the journal after which the cluster model is stored whole.")
    ] = 64
    credits: Annotated[AtLeastOne, Meta(description="Chunks that a leader lets each device have in flight.")] = 8
    resend_s: Annotated[
        Positive, Meta(description="Seconds after which an unconfirmed part of a contribution is sent again.")
    ] = 6.0
    values: Annotated[
        BlockPrecision,
        Meta(description="Precision of blocks: `byte` loses less than a hundredth of a block's largest parameter."),
    ] = "byte"
    blocks_bytes: Annotated[
        Annotated[int, Meta(ge=1024, le=192 * 1024)],
        Meta(
            description="Bytes of one answer to a pull; blocks that need more precision may take up to four times "
            "as many."
        ),
    ] = 64 * 1024
    publish: Annotated[
        Literal["arrival", "beat"],
        Meta(
            description="`arrival`: each device pulls after its release what was merged until then (Algorithm 2). "
            "`beat`: the leader publishes one sparse change for all members; the same in the whole federation."
        ),
    ] = "arrival"
    beat_s: Annotated[
        Positive,
        Meta(
            description="Longest time between two beats in seconds; the next comes sooner when all members have "
            "reported. Trainings fit into it."
        ),
    ] = 5.0
    beat_gamma: Annotated[
        Fraction,
        Meta(description="Largest share of the parameters in a beat; one that brings a new global model has all."),
    ] = 0.1
    beat_values: Annotated[
        Precision,
        Meta(description="Precision of a beat; what rounding removes comes with a later one."),
    ] = "byte"


class ProtectionRules(msgspec.Struct, frozen=True):
    """How cluster updates are hidden from the coordinator, and how poisoned ones are weighed down."""

    mode: Annotated[
        Literal["threshold", "clear"],
        Meta(
            description="`threshold` encrypts cluster updates under a joint key of the leaders; `clear` does not. A "
            "single cluster has nothing to hide behind."
        ),
    ] = "threshold"
    server_dec: Annotated[
        Literal["coordinator", "decryptor"],
        Meta(
            description="Who re-randomises ciphertexts and completes decryption; the same in the whole federation. "
            "An independent `ofl decryptor` keeps that randomness from the coordinator; with `params = main` only."
        ),
    ] = "coordinator"
    params: Annotated[
        Literal["lean", "main"],
        Meta(
            description="`lean`: updates are masked, and leaders open only sums that all contributors signed for. "
            "`main`: updates are encrypted; what is decrypted rests on the coordinator's word."
        ),
    ] = "lean"
    threshold: Annotated[
        Literal["all", "majority"] | int,
        Meta(
            description="Leaders that must decrypt together: `all`, `majority` or a number. One fewer may collude "
            "and learn nothing."
        ),
    ] = "majority"
    s_factor: Annotated[
        Literal["ledger", "mad", "delta", "literal", "mean"],
        Meta(
            description="How contributions are weighed against poisoning: `ledger` collects evidence over rounds, "
            "`mad`, `delta` and `literal` judge one round, `mean` weighs by data alone."
        ),
    ] = "ledger"
    max_energy: Annotated[
        Positive,
        Meta(
            description="Largest squared norm of an update for which scores are exact; a projection notices larger "
            "ones."
        ),
    ] = 64.0
    key_deadline_s: Annotated[
        Positive, Meta(description="Seconds without progress until a key generation is abandoned.")
    ] = 60.0
    key_failure_memory_s: Annotated[
        NotNegative,
        Meta(
            description="Seconds for which a device that failed in a key generation is elected only where there is "
            "nobody else."
        ),
    ] = 1800.0
    decryption_deadline_s: Annotated[
        Positive, Meta(description="Seconds that leaders have to answer a decryption request.")
    ] = 30.0
    resend_s: Annotated[Positive, Meta(description="Seconds after which an unconfirmed part is sent again.")] = 6.0

    def __post_init__(self) -> None:
        if self.mode == "threshold" and self.params == "lean" and self.server_dec == "decryptor":
            raise ConfigError(
                "server_dec = 'decryptor' goes with params = 'main': in lean rounds leaders open the sum and compute "
                "score requests themselves, and nothing is entrusted; set params = 'main', or leave server_dec out"
            )

    @property
    def most_leaders(self) -> int | None:
        """Leaders whose joint key may still be asked for scores; None without a limit."""
        return most_leaders(self.threshold) if self.mode == "threshold" and self.params == "lean" else None

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

    count: Annotated[Number, Meta(description="Rounds to complete; 0 = no end.")] = 0
    interval_s: Annotated[Positive, Meta(description="Seconds from the end of a round to the opening of the next.")] = (
        30.0
    )
    idle_interval_s: Annotated[
        Positive,
        Meta(description="The interval doubles while rounds find too little to merge, up to this many seconds."),
    ] = 600.0
    deadline_s: Annotated[Positive, Meta(description="Seconds that leaders have to contribute to an open round.")] = (
        60.0
    )
    aggregation_deadline_s: Annotated[
        Positive, Meta(description="Seconds from the last contribution to the new model, decryption included.")
    ] = 600.0
    quorum: Annotated[
        Fraction, Meta(description="Share of the leaders that must have contributed at the deadline.")
    ] = 0.5
    recluster_every: Annotated[
        Number, Meta(description="Rounds between two re-clusterings (the paper's T_rc); 0 = never.")
    ] = 10


class FleetRules(msgspec.Struct, frozen=True):
    """Who takes part."""

    min_devices: Annotated[
        AtLeastOne, Meta(description="Devices that must be online before the federation begins.")
    ] = 2
    gather_s: Annotated[
        NotNegative, Meta(description="Seconds after the first device came before the federation begins.")
    ] = 10.0
    clusters: Annotated[Number, Meta(description="Number of clusters; 0 = round(log2 N).")] = 0
    heartbeat_s: Annotated[Positive, Meta(description="Seconds between two status messages of a device.")] = 60.0
    leader_grace_s: Annotated[
        Positive, Meta(description="Seconds that a leader may be offline before a deputy takes its place.")
    ] = 30.0
    turnover: Annotated[
        NotNegative,
        Meta(
            description="Share of the fleet, joined or gone since the last clustering, beyond which it is clustered "
            "anew; 0 = never."
        ),
    ] = 0.3
    max_samples_ratio: Annotated[
        AtLeastOnce,
        Meta(
            description="A device counts with at most so many times the median of all sample counts: nobody can "
            "check its claim."
        ),
    ] = FLEET_RATIO
    away_s: Annotated[
        Positive,
        Meta(
            description="Seconds after which an absent device loses its place at the next clustering; it gets one "
            "at once when it returns."
        ),
    ] = 3600.0
