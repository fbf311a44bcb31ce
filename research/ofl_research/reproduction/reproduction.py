"""A whole reproduction: which cells, computed, summed up, written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ofl_iot.errors import ConfigError
from ofl_research.reproduction import facts
from ofl_research.reproduction.cells import Cell, CellStore, Finished, write_atomically
from ofl_research.reproduction.document import Findings, Section, Toned
from ofl_research.reproduction.experiments.base import Experiment, Found, toned
from ofl_research.reproduction.experiments.registry import EXPERIMENTS
from ofl_research.reproduction.report import Cover, render
from ofl_research.reproduction.runner import Board, Failure, Runner, Watcher
from ofl_research.reproduction.selection import OTHER_SYSTEMS, Options, known_datasets

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

    def cells(self) -> list[Cell]:
        """All that are needed; the first experiment's first."""
        cells = list(self._cells(self.experiments).values())
        if not cells:
            names = " and ".join(each.name for each in self.experiments)
            raise ConfigError(f"--only {' '.join(self.options.only)}: {names} has no such cells; {self._choice()}")
        return cells

    def compute(self, data: Path | None, jobs: int, watcher: Watcher) -> Board:
        """Compute what is missing."""
        return Runner(CellStore(self.out), self.out, data, jobs, watcher).run(self.cells())

    def write(self, failures: Sequence[Failure] = ()) -> list[Section]:
        """Tables and report of all that is finished, of other experiments in the folder too."""
        found = Found(CellStore(self.out).get)
        shown = [each for each in EXPERIMENTS.values() if self._asked(each) or self._begun(each, found)]
        sections = [self._section(each, found) for each in shown]
        for section in sections:
            for name, sheet in section.sheets.items():
                write_atomically(self.out / f"{name}.csv", sheet.text().encode())
            for name, content in section.files.items():
                write_atomically(self.out / name, content.encode())
        cover = self._cover(shown, found, failures)
        write_atomically(self.out / "report.html", render(cover, sections).encode())
        return [section for section in sections if section.name in {each.name for each in self.experiments}]

    def _section(self, experiment: Experiment, found: Found) -> Section:
        """Before all else it warns of cells of several commits."""
        section = experiment.section(self.options, found)
        warning = facts.several_commits(self._finished([experiment], found))
        note = (Findings((Toned(warning, "open"),)),) if warning else ()
        return replace(section, blocks=(*note, *section.blocks))

    def _cells(self, experiments: Sequence[Experiment]) -> dict[str, Cell]:
        cells = [cell for each in experiments for cell in self.options.chosen(each.cells(self.options))]
        return {cell.digest: cell for cell in cells}

    def _finished(self, experiments: Sequence[Experiment], found: Found) -> list[Finished]:
        return [done for cell in self._cells(experiments).values() if (done := found.finished(cell))]

    def _asked(self, experiment: Experiment) -> bool:
        """Whether it was named, and `--only` leaves something of it."""
        return experiment in self.experiments and bool(self._cells([experiment]))

    def _choice(self) -> str:
        """What `--only` can choose of these experiments, for people."""
        patterns = [(), *((name,) for name in known_datasets()), *((f"*/{name}",) for name in OTHER_SYSTEMS)]
        offers = [replace(self.options, only=only) for only in patterns]
        cells = [c for offer in offers for each in self.experiments for c in offer.chosen(each.cells(offer))]
        datasets = ", ".join(dict.fromkeys(cell.dataset for cell in cells))
        systems = ", ".join(dict.fromkeys(cell.system for cell in cells))
        return f"choose a data set ({datasets}), a system ({systems}) or dataset/system"

    def _begun(self, experiment: Experiment, found: Found) -> bool:
        """Whether a cell that only it needs is finished; others may be there for what was asked for."""
        asked = self._cells(self.experiments)
        return any(done.cell.digest not in asked for done in self._finished([experiment], found))

    def _command(self, shown: Sequence[Experiment]) -> str:
        """That computes all that is shown."""
        names = ["all"] if len(shown) == len(EXPERIMENTS) else [each.name for each in shown]
        return facts.command(names, self.options, self.out, self._cells(shown).values())

    def _cover(self, shown: Sequence[Experiment], found: Found, failures: Sequence[Failure]) -> Cover:
        finished = self._finished(shown, found)
        missing = len(self._cells(shown)) - len(finished)
        warnings = [*([QUICK] if self.options.quick else []), *facts.several_files(finished)]
        if missing:
            count = "one cell is" if missing == 1 else f"{missing} cells are"
            warnings.append(f"Not finished: {count} missing; the same command goes on with what is.")
        targets = [toned(target) for each in shown for target in each.targets(self.options, found)]
        return Cover(
            title=TITLE,
            lead=LEAD,
            facts=tuple(facts.facts(self._command(shown), self.options, finished).items()),
            warnings=tuple(warnings),
            targets=tuple(targets),
            failures=tuple((f"{each.cell.name}, seed {each.cell.seed}", each.reason) for each in failures),
            appendix=(("Settings of every cell", facts.settings(finished)),),
        )
