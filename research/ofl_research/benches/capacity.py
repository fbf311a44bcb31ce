"""What a federation of N devices asks of its broker and its leaders: a model, from measured costs.

With P parameters, a release and a pull of each device every T seconds, k clusters:

    up = 2.0 γ P bytes in u = ceil(up / chunk) chunks, each with a receipt
    down = 1.0 γ_d P bytes in d = ceil(down / blocks) answers to one pull
    messages a second = N ((2u + d + 1) / T + 1 / heartbeat + 1 / echo)
    bytes a second, in and out alike = N (up + down) / T
    a leader's bytes a second, in and out together = N / k · (up + down) / T

The processor time of a message is a + b · KiB, fitted to telemetry (300 bytes) and chunks (16 KiB) of
`ofl bench broker`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ofl_iot.protocol.chunks import BYTES_PER_PARAMETER
from ofl_iot.protocol.values import BYTES_PER_VALUE
from ofl_iot.roles.settings import DownloadRules, FleetRules, LeaderRules, UploadRules
from ofl_iot.transport.settings import MqttSettings

SIZES = (10, 100, 1_000, 10_000, 100_000, 1_000_000)
SMALL_KIB = 0.3
"""Receipts, pulls, telemetry."""


@dataclass(frozen=True)
class BrokerCost:
    """What one broker takes, measured here."""

    message_us: float
    """Processor time of a message however small: a."""
    kib_us: float
    """Cost of each KiB of it: b."""
    connection_kib: float
    connect_ms: float


MOSQUITTO_TLS = BrokerCost(message_us=35.0, kib_us=4.5, connection_kib=54.0, connect_ms=2.2)
"""The production profile: mutual TLS 1.3 and access rules."""


@dataclass(frozen=True)
class Demand:
    """What a fleet asks for."""

    devices: int
    clusters: int
    messages_per_s: float
    mbit_per_s: float
    """In each direction at the broker."""
    broker_cores: float
    broker_mib: float
    reconnect_s: float
    """Processor time in which the broker takes everybody back after its restart."""
    leader_mbit_per_s: float
    leader_chunks_per_s: float


def demand(
    devices: int, parameters: int = 1_000_000, period_s: float = 600.0, cost: BrokerCost = MOSQUITTO_TLS
) -> Demand:
    """The model's figures for one federation with default settings."""
    upload, download, leader, fleet, mqtt = UploadRules(), DownloadRules(), LeaderRules(), FleetRules(), MqttSettings()
    clusters = max(1, round(math.log2(devices)))
    up = BYTES_PER_PARAMETER[upload.values] * upload.gamma * parameters
    down = BYTES_PER_VALUE[leader.values] * download.gamma * parameters
    chunks, answers = math.ceil(up / upload.chunk_bytes), math.ceil(down / leader.blocks_bytes)
    often = 1 / fleet.heartbeat_s + 1 / mqtt.echo_interval_s
    small_per_s = (chunks + 1) / period_s + often
    large_per_s = (chunks + answers) / period_s
    bytes_per_s = (up + down) / period_s
    busy_us = (small_per_s + large_per_s) * cost.message_us
    busy_us += (small_per_s * SMALL_KIB + bytes_per_s / 1024) * cost.kib_us
    return Demand(
        devices=devices,
        clusters=clusters,
        messages_per_s=devices * (small_per_s + large_per_s),
        mbit_per_s=devices * bytes_per_s * 8 / 1e6,
        broker_cores=devices * busy_us / 1e6,
        broker_mib=devices * cost.connection_kib / 1024,
        reconnect_s=devices * cost.connect_ms / 1000,
        leader_mbit_per_s=devices / clusters * bytes_per_s * 8 / 1e6,
        leader_chunks_per_s=devices / clusters * chunks / period_s,
    )


def table() -> str:
    """The figures as in docs/scaling.md."""
    broker = ["messages/s", "Mbit/s each way", "broker cores", "broker MiB", "all reconnect, core s"]
    heads = ["devices", "clusters", *broker, "a leader's Mbit/s", "a leader's chunks/s"]
    lines = [f"| {' | '.join(heads)} |", "|" + " ---: |" * len(heads)]
    for size in SIZES:
        each = demand(size)
        figures = (each.messages_per_s, each.mbit_per_s, each.broker_cores, each.broker_mib, each.reconnect_s)
        leader = (each.leader_mbit_per_s, each.leader_chunks_per_s)
        shown = " | ".join(f"{_rounded(value)}" for value in (*figures, *leader))
        lines.append(f"| {each.devices:,} | {each.clusters} | {shown} |")
    return "\n".join(lines)


def _rounded(value: float) -> str:
    """Two digits: a model has no more."""
    return f"{float(f'{value:.2g}'):,.10g}"


def run(*, progress: Callable[[str], None] = print) -> dict[str, dict[str, float]]:
    """The model's figures of each size; tells the table."""
    progress(table())
    return {str(size): {key: float(value) for key, value in vars(demand(size)).items()} for size in SIZES}
