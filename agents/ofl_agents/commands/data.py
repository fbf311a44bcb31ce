"""`ofl data`: check and fetch the public data sets, and show how one is dealt to devices."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import get_args

import numpy as np

from ofl_agents.cli import check_writable
from ofl_agents.data_fetch import fetch
from ofl_agents.split_figure import Counts, draw_split
from ofl_iot.errors import ConfigError
from ofl_iot.workloads.catalogue import DATA_SETS
from ofl_iot.workloads.graph_views import GraphSplit
from ofl_iot.workloads.idx import VARIABLE, data_folder
from ofl_iot.workloads.planetoid import Labelled
from ofl_iot.workloads.splits import Split, SplitKind
from ofl_iot.workloads.tasks import TASKS, load_task


def add_options(parser: argparse.ArgumentParser) -> None:
    """What to do, with which data set."""
    actions = parser.add_subparsers(metavar="ACTION", required=True, dest="action")
    check = actions.add_parser("check", help="say which data sets are there and whether their files are the published")
    check.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(DATA_SETS)} (default: all)")
    get = actions.add_parser("fetch", help="download data sets from where they are published")
    get.add_argument("names", nargs="+", metavar="NAME", help=", ".join(DATA_SETS))
    get.add_argument("--from", dest="home", metavar="URL", help="another place that has the same files")
    split = actions.add_parser("split", help="show how many samples of each class every device gets")
    split.add_argument("names", nargs=1, choices=TASKS, metavar="NAME", help=", ".join(TASKS))
    split.add_argument("--devices", type=int, default=16, help="(default: %(default)s)")
    split.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    split.add_argument("--kind", choices=get_args(SplitKind), default="dirichlet", help="(default: %(default)s)")
    split.add_argument("--alpha", type=float, default=0.5, help="of the Dirichlet split (default: %(default)s)")
    split.add_argument("--labelled", choices=get_args(Labelled), default="full", help="nodes of a graph to train on")
    split.add_argument("--regions", action="store_true", help="graphs: give each device a connected region")
    split.add_argument("--figure", type=Path, metavar="FILE", help="draw it (.png, .svg, .pdf)")
    for action in (check, get, split):
        action.add_argument("--data", type=Path, metavar="DIR", help=f"folder of the data sets (default: ${VARIABLE})")


def run(options: argparse.Namespace) -> int:
    """Do it."""
    folder = data_folder(options.data)
    if options.action == "split":
        return _split(options, folder)
    unknown = [name for name in options.names if name not in DATA_SETS]
    if unknown:
        raise ConfigError(f"unknown data set {', '.join(unknown)}: use {', '.join(DATA_SETS)}")
    if folder is None:
        raise ConfigError(f"name the folder of the data sets with --data DIR or {VARIABLE}")
    if options.action == "fetch":
        for name in options.names:
            fetch(DATA_SETS[name], folder, options.home, _say)
        return 0
    return _check(options.names or list(DATA_SETS), folder)


def _check(names: list[str], folder: Path) -> int:
    """One line a data set; the exit code is 0 if all of them can be used."""
    verdicts = [_verdict(name, folder) for name in names]
    for name, (_, words) in zip(names, verdicts, strict=True):
        _say(f"{name}: {words}")
    return 0 if all(usable for usable, _ in verdicts) else 1


def _verdict(name: str, folder: Path) -> tuple[bool, str]:
    """Whether a data set can be used, and what to say about it."""
    try:
        blobs = DATA_SETS[name].read(folder)
    except ConfigError as error:
        return False, str(error)
    published = all(file.matches(blobs[file.name]) for file in DATA_SETS[name].files)
    return True, "as published" if published else "of the published layout, but not the published files"


def _split(options: argparse.Namespace, folder: Path | None) -> int:
    (name,) = options.names
    check_writable("--figure", options.figure)
    task = load_task(
        name,
        folder,
        devices=options.devices,
        seed=options.seed,
        split=Split(options.kind, options.alpha),
        graph_split=GraphSplit(labelled=options.labelled, regions=options.regions),
    )
    counts = np.array([device.label_histogram() for device in task.devices])
    _say(_table(counts))
    if options.figure is not None:
        draw_split(counts, _title(name, options), options.figure)
    return 0


def _table(counts: Counts) -> str:
    head = f"{'device':>6}" + "".join(f"{label:>7}" for label in range(counts.shape[1])) + f"{'all':>8}"
    lines = [
        f"{row:>6}" + "".join(f"{count:>7}" for count in own) + f"{own.sum():>8}" for row, own in enumerate(counts)
    ]
    return "\n".join([head, *lines])


def _title(name: str, options: argparse.Namespace) -> str:
    kind = f"Dirichlet({options.alpha:g})" if options.kind == "dirichlet" else options.kind
    if name in {"cora", "citeseer", "pubmed"}:
        kind = f"{'regions' if options.regions else kind}, {options.labelled} split"
    return f"{name}: {options.devices} devices, {kind}, seed {options.seed}"


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
