"""How the cells of a report were made: by which command, from which commits, seeds and data files."""

from __future__ import annotations

import datetime as dt
import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from ofl_iot.workloads.catalogue import DATA_SETS
from ofl_research.reproduction import paper, provenance
from ofl_research.reproduction.cells import Cell, Finished
from ofl_research.reproduction.selection import Options, seeds_text

UNKNOWN = "not recorded"
_NAMED = 6
"""Cells of a commit that are named one by one, at most."""


def command(names: Sequence[str], options: Options, out: Path, cells: Iterable[Cell]) -> str:
    """What anyone would type to compute these cells, or to go on with them: no folder of this machine is in it."""
    data = ["--data", "DIR"] if any(cell.dataset in DATA_SETS for cell in cells) else []
    there = out.name if out.is_absolute() or ".." in out.parts else out.as_posix()
    seeds = [] if options.has_usual_seeds else ["--seeds", seeds_text(options.seeds)]
    only = [word for pattern in options.only for word in ("--only", pattern)]
    quick = ["--quick"] if options.quick else []
    return shlex.join(["ofl", "reproduce", *names, *quick, *data, "--out", there or ".", *seeds, *only])


def facts(typed: str, options: Options, finished: Sequence[Finished]) -> dict[str, str]:
    """For the end of a report."""
    return {
        "Command": typed,
        "Seeds": _seeds(options, finished),
        "Commits": _counted(finished, lambda each: each.commit) or f"none yet; now {provenance.commit_of_code()}",
        "Data files": _data(finished),
        "Versions": ", ".join(sorted({f"{name} {v}" for each in finished for name, v in each.versions.items()})),
        "Machine": _counted(finished, lambda each: each.machine or UNKNOWN),
        "Computing": f"{sum(each.cpu_s for each in finished) / 3600:.2f} processor hours in {len(finished)} cells",
        "Written": dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
    }


def several_commits(finished: Sequence[Finished]) -> str:
    """A warning that names the commits, with the cells of all but the one that computed most; empty if it is one."""
    groups = _grouped(finished, lambda each: each.commit)
    if len(groups) < 2:
        return ""
    (most, main), *rest = groups.items()
    others = [f"{commit} ({_count(cells)}: {_names(cells)})" for commit, cells in rest]
    changed = " A + stands for changed code." if any(commit.endswith("+") for commit in groups) else ""
    return f"The cells come from {len(groups)} commits: {most} ({_count(main)}), {', '.join(others)}.{changed}"


def several_files(finished: Sequence[Finished]) -> list[str]:
    """A warning for each data set whose cells were computed from different files, as far as they say."""
    return [
        f"The cells of {paper.title(dataset)} were computed from different data files: {_files(cells)}."
        for dataset, cells in _from_files(finished).items()
        if len({each.data_files for each in cells} - {""}) > 1
    ]


def settings(finished: Sequence[Finished]) -> str:
    """Each distinct setting once, with the seeds it was run with."""
    seeds: dict[str, list[int]] = {}
    for each in finished:
        plain = json.dumps(_without_seed(each.cell), sort_keys=True)
        seeds.setdefault(plain, []).append(each.cell.seed)
    return "\n".join(f"seeds {sorted(set(known))}: {text}" for text, known in seeds.items())


def _seeds(options: Options, finished: Sequence[Finished]) -> str:
    """Those that are there, and those that are still to come."""
    there = {each.cell.seed for each in finished}
    missing = [str(seed) for seed in options.seeds if seed not in there]
    known = ", ".join(map(str, sorted(there))) or "none yet"
    return f"{known} (not there: {', '.join(missing)})" if missing else known


def _data(finished: Sequence[Finished]) -> str:
    known = (f"{paper.title(dataset)} {_files(cells)}" for dataset, cells in _from_files(finished).items())
    return "; ".join(known) or "none: the bundled digits"


def _files(finished: Sequence[Finished]) -> str:
    return _counted(finished, lambda each: each.data_files or UNKNOWN)


def _from_files(finished: Sequence[Finished]) -> dict[str, list[Finished]]:
    return _grouped([each for each in finished if each.cell.dataset in DATA_SETS], lambda each: each.cell.dataset)


def _counted(finished: Sequence[Finished], key: Callable[[Finished], str]) -> str:
    """The distinct texts, the most frequent first, with the number of cells where there are several."""
    groups = _grouped(finished, key)
    if len(groups) < 2:
        return "".join(groups)
    return ", ".join(f"{text} ({_count(cells)})" for text, cells in groups.items())


def _grouped(finished: Sequence[Finished], key: Callable[[Finished], str]) -> dict[str, list[Finished]]:
    groups: dict[str, list[Finished]] = {}
    for each in finished:
        groups.setdefault(key(each), []).append(each)
    return dict(sorted(groups.items(), key=lambda group: -len(group[1])))


def _count(cells: Sequence[Finished]) -> str:
    return "1 cell" if len(cells) == 1 else f"{len(cells)} cells"


def _names(cells: Sequence[Finished]) -> str:
    names = list(dict.fromkeys(each.cell.name for each in cells))
    return ", ".join(names[:_NAMED]) + (" and others" if len(names) > _NAMED else "")


def _without_seed(cell: Cell) -> Mapping[str, object]:
    plain = dict(cell.settings)
    if isinstance(plan := plain.get("plan"), dict):
        plain["plan"] = {name: value for name, value in plan.items() if name != "seed"}
    return {"dataset": cell.dataset, "system": cell.system, **plain}
