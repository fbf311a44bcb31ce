"""What a simulation came to: gathered while it runs, summed up, judged and written at its end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from ofl_agents.sim.fleet_report import Reclustering, TypeService, write_fleet
from ofl_iot.errors import OflError
from ofl_iot.ids import COORDINATOR
from ofl_iot.roles.commands import Tell
from ofl_iot.runtime.settings import Settings


class SimulationError(OflError):
    """The run did not do what it set out to do."""


@dataclass
class Progress:
    """What has happened so far; the display reads it while the run writes."""

    rounds: int
    completed: int = 0
    accuracy: float = 0.0
    history: list[tuple[int, float]] = field(default_factory=list)
    chunks: int = 0
    trainings: int = 0
    clusters: int = 0
    leaders: list[str] = field(default_factory=list)
    dropped: int = 0
    leader_changes: int = 0
    reclusterings: list[Reclustering] = field(default_factory=list)

    def listen(self, name: str, told: Tell, _now: float) -> None:
        """Take in what a party tells."""
        fields = told.fields
        if told.what == "merged":
            self.chunks += 1
        elif told.what == "trained":
            self.trainings += 1
        elif told.what == "message dropped":
            self.dropped += 1
        elif name == COORDINATOR and told.what == "round closed":
            self.completed = int(str(fields["completed"]))
        elif told.what == "evaluated":
            self.accuracy = float(str(fields["accuracy"]))
            self.history.append((int(str(fields["round_no"])), self.accuracy))
        elif told.what == "clustered":
            self._clustered(fields)
        elif told.what == "leader replaced":
            self.leader_changes += 1
            self.leaders = [each for each in self.leaders if each != fields["lost"]] + [str(fields["leader"])]

    def _clustered(self, fields: Mapping[str, object]) -> None:
        leaders = [str(leader) for leader in fields["leaders"]]  # type: ignore[attr-defined]
        self.clusters = len(leaders)
        if self.leaders:
            new = len(set(leaders).difference(self.leaders))
            self.leader_changes += new
            term, churn = int(str(fields["term"])), float(str(fields["churn"]))
            self.reclusterings.append(Reclustering(term=term, clusters=len(leaders), churn=churn, new_leaders=new))
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


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What a run came to."""

    accuracy: float
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
    rows: list[DeviceRow]


def check(summary: Summary, settings: Settings) -> None:
    """Raise unless the run did what it says."""
    if summary.rounds != settings.simulation.rounds:
        raise SimulationError(f"{summary.rounds} rounds were completed, not {settings.simulation.rounds}")
    if summary.lost_chunks or summary.doubled_chunks:
        raise SimulationError(f"{summary.lost_chunks} chunks were lost, {summary.doubled_chunks} counted twice")
    chance = 0.1
    if not summary.accuracy > 2 * chance:
        raise SimulationError(f"an accuracy of {summary.accuracy:.3f} is no better than guessing")


def write_results(summary: Summary, settings: Settings, folder: Path) -> None:
    """The summary and the settings that gave it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "summary.json").write_text(json.dumps(msgspec.to_builtins(summary), indent=2) + "\n")
    (folder / "settings.json").write_text(json.dumps(msgspec.to_builtins(settings), indent=2) + "\n")
    lines = ["round,accuracy", *(f"{round_no},{accuracy:.6f}" for round_no, accuracy in summary.accuracy_by_round)]
    (folder / "accuracy.csv").write_text("\n".join(lines) + "\n")
    write_fleet(summary.services, summary.reclustering_history, folder)
