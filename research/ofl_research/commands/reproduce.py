"""`ofl reproduce`: the paper's tables and figures, measured, beside the paper's numbers."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from ofl_iot.errors import ConfigError
from ofl_iot.workloads.idx import data_folder
from ofl_research.reproduction.document import Section, Table
from ofl_research.reproduction.experiments.base import Experiment
from ofl_research.reproduction.experiments.registry import EXPERIMENTS
from ofl_research.reproduction.reproduction import Reproduction
from ofl_research.reproduction.selection import Options, parse_only, parse_seeds, usual_seeds
from ofl_research.reproduction.show import Show

ALL = "all"
EXIT_INCOMPLETE = 1


def add_options(parser: argparse.ArgumentParser) -> None:
    """Which experiments, how large, from where, to where."""
    parser.add_argument("what", nargs="+", choices=[*EXPERIMENTS, ALL], metavar="WHAT", help=_choices())
    parser.add_argument("--quick", action="store_true", help="less data, fewer rounds, one seed: minutes, not hours")
    parser.add_argument("--seeds", metavar="S", help="as 1,2,3 or 1-3 (default: 1-3, with --quick 1)")
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of the data sets (default: $OFL_DATA)")
    parser.add_argument("--out", type=Path, metavar="DIR", default=Path("ofl-results"), help="(default: %(default)s)")
    parser.add_argument(
        "--only", action="append", default=[], metavar="DATASET/SYSTEM", help="only these cells, such as 'mnist/*'"
    )
    parser.add_argument("--jobs", type=int, metavar="N", help="cells at once (default: one for each core)")
    parser.add_argument("--render", action="store_true", help="compute nothing, write the report of what is finished")


def run(options: argparse.Namespace) -> int:
    """Compute, write, say what was found; 0 only if every cell is there."""
    reproduction = Reproduction(_chosen(options.what), _options(options), options.out)
    jobs = os.cpu_count() or 1 if options.jobs is None else options.jobs
    if jobs < 1:
        raise ConfigError(f"--jobs {jobs}: at least one is needed")
    reproduction.cells()  # refuses what fits nothing before anything is written
    failures = []
    if not options.render:
        try:
            with Show(f"ofl reproduce {' '.join(options.what)}") as show:
                failures = reproduction.compute(data_folder(options.data), jobs, show).failures
        except KeyboardInterrupt:
            sys.stderr.write(f"stopped: finished cells are kept in {options.out}, the same command goes on with them\n")
            reproduction.write()
            raise
    for section in reproduction.write(failures):
        _print(section)
    for failure in failures:
        sys.stderr.write(f"failed: {failure.cell.name} seed {failure.cell.seed}: {failure.reason}\n")
    sys.stdout.write(f"report: {options.out / 'report.html'}\n")
    return EXIT_INCOMPLETE if failures else 0


def _chosen(names: list[str]) -> tuple[Experiment, ...]:
    return tuple(each for each in EXPERIMENTS.values() if ALL in names or each.name in names)


def _options(options: argparse.Namespace) -> Options:
    seeds = parse_seeds(options.seeds) if options.seeds else usual_seeds(quick=options.quick)
    return Options(seeds=seeds, quick=options.quick, only=parse_only(options.only))


def _choices() -> str:
    return ", ".join([*EXPERIMENTS, ALL])


def _print(section: Section) -> None:
    """The section's tables on the terminal."""
    from ofl_research.reproduction.show import print_table

    for block in section.blocks:
        if isinstance(block, Table):
            print_table(section.title, block)
