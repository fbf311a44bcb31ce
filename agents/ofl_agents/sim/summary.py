"""What a simulation came to: gathered while it runs, summed up, judged and written at its end."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from ofl_agents.sim.fleet_report import Reclustering, TypeService, write_fleet
from ofl_iot.errors import OflError
from ofl_iot.ids import COORDINATOR
from ofl_iot.roles.reports.base import MessageDropped, Report
from ofl_iot.roles.reports.coordinator import Clustered, LeaderReplaced, ModelEvaluated, RoundClosed
from ofl_iot.roles.reports.device import DeviceTrained
from ofl_iot.roles.reports.leader import ChunkMerged
from ofl_iot.runtime.settings import Settings


class SimulationError(OflError):
    """The run did not do what it set out to do."""


class Measurement(msgspec.Struct, frozen=True):
    """What held-out data say of one round's model."""

    round_no: int
    metrics: dict[str, float]

    @property
    def headline(self) -> tuple[str, float] | None:
        """Return the metric that the app names first, the loss if it names none; None if nothing was measured."""
        return next(iter(self.metrics.items()), None)


@dataclass
class Progress:
    """What has happened so far; the display reads it while the run writes."""

    rounds: int
    completed: int = 0
    history: list[Measurement] = field(default_factory=list)
    """What was measured of each round's model."""
    chunks: int = 0
    trainings: int = 0
    clusters: int = 0
    leaders: list[str] = field(default_factory=list)
    dropped: int = 0
    leader_changes: int = 0
    reclusterings: list[Reclustering] = field(default_factory=list)

    def listen(self, name: str, report: Report, _now: float) -> None:
        """Count what a party reports."""
        if isinstance(report, ChunkMerged):
            self.chunks += 1
        elif isinstance(report, DeviceTrained):
            self.trainings += 1
        elif isinstance(report, MessageDropped):
            self.dropped += 1
        elif isinstance(report, RoundClosed) and name == COORDINATOR:
            self.completed = report.completed
        elif isinstance(report, ModelEvaluated):
            self.history.append(Measurement(report.round_no, report.metrics))
        elif isinstance(report, Clustered):
            self._clustered(report)
        elif isinstance(report, LeaderReplaced):
            self.leader_changes += 1
            self.leaders = [*(each for each in self.leaders if each != report.lost), report.leader]

    def _clustered(self, report: Clustered) -> None:
        leaders = list(report.leaders)
        self.clusters = len(leaders)
        if self.leaders:
            new = len(set(leaders).difference(self.leaders))
            self.leader_changes += new
            self.reclusterings.append(
                Reclustering(term=report.term, clusters=len(leaders), churn=report.churn, new_leaders=new)
            )
        self.leaders = leaders


@dataclass(frozen=True)
class DeviceRow:
    """One device in the summary."""

    device: str
    device_type: str
    samples: int
    bytes_up: int
    bytes_down: int
    leader: str


class Costs(msgspec.Struct, frozen=True):
    """What a virtual run took of the broker and of the stores, of all parties together."""

    trainings: int
    messages: int
    """That the broker was given."""
    commits: int
    """Transactions of stores."""
    stored_bytes: int


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What a run came to."""

    accuracy: float | None
    """Accuracy of the last model on held-out data; None if the app does not measure it."""
    metrics: dict[str, float]
    """Everything that was measured of the last model."""
    app: str
    parameters: int
    """That travel."""
    rounds: int
    wall_s: float
    bytes_up_per_device: float
    bytes_down_per_device: float
    clusters: int
    lost_chunks: int
    doubled_chunks: int
    runtime: str
    devices: int
    seed: int
    virtual_s: float | None
    leaders: list[str]
    chunks_merged: int
    messages_dropped: int
    churn: bool
    leader_changes: int
    reclusterings: int
    coordinator_restarts: int
    service_by_type: dict[str, int]
    """Terms in office by device type."""
    services: list[TypeService]
    reclustering_history: list[Reclustering]
    accuracy_by_round: list[tuple[int, float]]
    metrics_by_round: list[Measurement]
    rows: list[DeviceRow]
    costs: Costs | None = None
    """Counted in virtual runs."""


def check(summary: Summary, settings: Settings, chance: float) -> None:
    """Raise unless the run did what it says; `chance` is the accuracy of always naming the most frequent label."""
    if summary.rounds != settings.simulation.rounds:
        raise SimulationError(f"{summary.rounds} rounds were completed, not {settings.simulation.rounds}")
    if summary.lost_chunks or summary.doubled_chunks:
        raise SimulationError(f"{summary.lost_chunks} chunks were lost, {summary.doubled_chunks} counted twice")
    if summary.accuracy is not None and not summary.accuracy > chance + 0.1 * (1 - chance):
        raise SimulationError(f"an accuracy of {summary.accuracy:.3f} is no better than guessing")


def write_results(summary: Summary, settings: Settings, folder: Path) -> None:
    """The summary and the settings that gave it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "summary.json").write_text(json.dumps(msgspec.to_builtins(summary), indent=2) + "\n")
    (folder / "settings.json").write_text(json.dumps(msgspec.to_builtins(settings), indent=2) + "\n")
    names = list(summary.metrics)
    lines = [",".join(["round", *names])]
    for each in summary.metrics_by_round:
        values = [f"{each.metrics[name]:.6f}" if name in each.metrics else "" for name in names]
        lines.append(",".join([str(each.round_no), *values]))
    (folder / "metrics.csv").write_text("\n".join(lines) + "\n")
    write_fleet(summary.services, summary.reclustering_history, folder)
