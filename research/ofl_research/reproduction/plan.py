"""What an experiment is, and what it comes to: plain frozen values that can be stored as JSON."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ofl_iot.errors import ConfigError


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How one system learns one task."""

    seed: int = 0
    rounds: int = 10
    """Rounds of the system's server: inter-cluster rounds of OFL, versions of an asynchronous server."""
    max_virtual_s: float = 1e7
    """The run ends then, whatever its round."""
    steps: int = 10
    """Local steps between two uploads (the paper's T_lt)."""
    batch_size: int = 32
    learning_rate: float = 0.1
    momentum: float = 0.0
    step_s: float = 0.03
    """Seconds of a local step on device type D; the other types take longer in proportion."""
    round_s: float = 10.0
    """OFL: seconds between two inter-cluster rounds."""
    gamma_up: float = 0.1
    gamma_down: float = 0.1
    privacy: Literal["off", "rigorous", "paper"] = "off"
    epsilon: float = 8.0
    """Rigorous: the budget of record-level DP-SGD, also of the baselines (planned_steps must say for how long)."""
    delta: float = 1e-5
    planned_steps: int = 1000
    clip_norm: float = 1.0
    eps1: float = 1.0
    eps2: float = 1.0
    protection: Literal["clear", "encrypted"] = "encrypted"
    """OFL: how leaders' contributions travel."""
    eval_every: int = 1
    """Rounds from one evaluated model to the next, of the baselines; OFL evaluates every global model."""
    judge: Literal["validation", "test"] = "validation"
    judge_devices: bool = False
    """Whether every device's own model is evaluated in the end, too."""
    limited_links: bool = False
    """Whether links have the rates of the device types (`fleet.devices.LINK_MBPS`); else any upload takes no time."""
    device_types: str = "ABCD"
    """Dealt in this order, again and again."""
    options: dict[str, Any] = {}
    """Options of the system. OFL: sections of its settings; baselines: the fields of their `Options`."""

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.steps < 1 or self.eval_every < 1:
            raise ConfigError("plan: rounds, steps and eval_every must be at least 1")


class Point(msgspec.Struct, frozen=True, array_like=True):
    """A global model on its way."""

    virtual_s: float
    bytes_up_per_device: float
    """Until then."""
    accuracy: float


class Operations(msgspec.Struct, frozen=True, kw_only=True):
    """Work counted, whole run, all parties."""

    trained_steps: int = 0
    merged_parameters: int = 0
    """Values that leaders or heads took into a cluster's model."""
    server_multiply_adds: int = 0
    """On the server: numbers of the models it combined; on ciphertexts, residues of the weighted sum."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What a run came to.

    `accuracy` is the mean over the global models evaluated in the last tenth of the run's virtual time (at least one).
    For systems with several models (CFL, IFCA) a model's accuracy is the mean over the devices of how well the model
    of their cluster does on the judge's samples.
    """

    system: str
    task: str
    seed: int
    judge: str
    accuracy: float
    best_accuracy: float
    curve: tuple[Point, ...]
    bytes_up_per_device: float
    """Everything a device sends, on average: chunks, models, receipts, ciphertexts, shares, telemetry."""
    bytes_up_device_role: float
    """Of it, what it sends as a device;"""
    bytes_up_leader_role: float
    """and what it sends while it leads a cluster;"""
    bytes_down_per_device: float
    device_accuracies: dict[str, float]
    """Accuracies of the devices' own models on the judge's samples; empty unless asked for."""
    leader_terms_by_type: dict[str, int]
    operations: Operations
    parameters: int
    """Of the model."""
    devices: int
    rounds: int
    """Completed."""
    failures: int
    """Jobs that failed: a model that diverges ends in these."""
    virtual_s: float
    wall_s: float
    server_bytes_up: int = 0
    """What the server or coordinator sends, whole run;"""
    server_bytes_down: int = 0
    """and what it receives."""
    bytes_up_in_rounds: float = 0.0
    """OFL: of what a leader sends, ciphertexts or models, decryption shares and keys; the rest goes to its members."""
