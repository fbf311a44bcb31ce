"""A whole reproduction: which cells, computed, summed up, written."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agents.reproduce import provenance
from agents.reproduce.cells import Cell, CellStore, Finished, write_atomically
from agents.reproduce.document import Section
from agents.reproduce.experiments.base import Experiment, Found, toned
from agents.reproduce.experiments.registry import EXPERIMENTS
from agents.reproduce.report import Cover, render
from agents.reproduce.runner import Board, Failure, Runner, Watcher
from agents.reproduce.selection import Options
from ofl_iot.errors import ConfigError

TITLE = "OFL-IoT: the paper's evaluation, measured again"
LEAD = (
    "Every system runs as machines in the same virtual runtime: the same data, devices, links and clock. Settings "
    "were chosen on validation samples, from a handful of tries; what is shown is of test samples and other seeds,"
    " except that the rules against attackers were made with an eye on seeds of their experiments. All numbers on "
    "this page come from the cells in the folder beside it."
)
QUICK = (
    "A quick run: less data, fewer rounds, one seed. It shows that everything works and roughly how the systems stand "
    "to each other; it is too short for the targets."
)


@dataclass(frozen=True)
class Reproduction:
    """Experiments with their options, in a folder."""

    experiments: tuple[Experiment, ...]
    options: Options
    out: Path
    command: str

    def cells(self) -> list[Cell]:
        """All that are needed; the first experiment's first."""
        cells = [cell for each in self.experiments for cell in self.options.chosen(each.cells(self.options))]
        if not cells:
            raise ConfigError(f"--only {' '.join(self.options.only)}: nothing of these experiments fits")
        return cells

    def compute(self, data: Path | None, jobs: int, watcher: Watcher) -> Board:
        """Compute what is missing."""
        return Runner(CellStore(self.out), self.out, data, jobs, watcher).run(self.cells())

    def write(self, failures: Sequence[Failure] = ()) -> list[Section]:
        """Tables and report of all that is finished, of other experiments in the folder too."""
        found = Found(CellStore(self.out).get)
        shown = [each for each in EXPERIMENTS.values() if each in self.experiments or self._begun(each, found)]
        sections = [each.section(self.options, found) for each in shown]
        for section in sections:
            for name, sheet in section.sheets.items():
                write_atomically(self.out / f"{name}.csv", sheet.text().encode())
            for name, content in section.files.items():
                write_atomically(self.out / name, content.encode())
        cover = self._cover(shown, found, failures)
        write_atomically(self.out / "report.html", render(cover, sections).encode())
        return [section for section in sections if section.name in {each.name for each in self.experiments}]

    def _begun(self, experiment: Experiment, found: Found) -> bool:
        return any(found.finished(cell) for cell in self.options.chosen(experiment.cells(self.options)))

    def _cover(self, shown: Sequence[Experiment], found: Found, failures: Sequence[Failure]) -> Cover:
        cells = [cell for each in shown for cell in self.options.chosen(each.cells(self.options))]
        finished = {cell.digest: done for cell in cells if (done := found.finished(cell))}
        missing = len({cell.digest for cell in cells}) - len(finished)
        warnings = [QUICK] if self.options.quick else []
        if missing:
            count = "one cell is" if missing == 1 else f"{missing} cells are"
            warnings.append(f"Not finished: {count} missing; the same command goes on with what is.")
        targets = [toned(target) for each in shown for target in each.targets(self.options, found)]
        return Cover(
            title=TITLE,
            lead=LEAD,
            facts=tuple(self._facts(list(finished.values())).items()),
            warnings=tuple(warnings),
            targets=tuple(targets),
            failures=tuple((f"{each.cell.name}, seed {each.cell.seed}", each.reason) for each in failures),
            appendix=(("Settings of every cell", _settings(list(finished.values()))),),
        )

    def _facts(self, finished: Sequence[Finished]) -> dict[str, str]:
        return {
            "Command": self.command,
            "Seeds": ", ".join(map(str, self.options.seeds)),
            "Code": ", ".join(sorted({each.commit for each in finished})) or provenance.commit_of_code(),
            "Versions": ", ".join(sorted({f"{name} {v}" for each in finished for name, v in each.versions.items()})),
            "Machine": provenance.machine(),
            "Computing": f"{sum(each.cpu_s for each in finished) / 3600:.2f} processor hours in {len(finished)} cells",
            "Written": dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        }


def _settings(finished: Sequence[Finished]) -> str:
    """Each distinct setting once, with the seeds it was run with."""
    seeds: dict[str, list[int]] = {}
    for each in finished:
        plain = json.dumps(_without_seed(each.cell), sort_keys=True)
        seeds.setdefault(plain, []).append(each.cell.seed)
    return "\n".join(f"seeds {sorted(set(known))}: {text}" for text, known in seeds.items())


def _without_seed(cell: Cell) -> dict[str, object]:
    settings = dict(cell.settings)
    if isinstance(plan := settings.get("plan"), dict):
        settings["plan"] = {name: value for name, value in plan.items() if name != "seed"}
    return {"dataset": cell.dataset, "system": cell.system, **settings}
