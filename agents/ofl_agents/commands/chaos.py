"""`ofl chaos`: break a counting federation on purpose, and count what is lost and what is doubled."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

import msgspec

from ofl_agents.chaos.audit import Figures, fault_figures
from ofl_agents.chaos.live import LiveRun
from ofl_agents.chaos.schedules import Outcome, Schedule, draw_schedule, run_schedule, shrink
from ofl_agents.cli import check_writable
from ofl_iot.errors import ConfigError

SCHEDULES = 2000


def add_options(parser: argparse.ArgumentParser) -> None:
    """Virtual or live, how much, and where the figures go."""
    parser.add_argument("--schedules", type=int, default=SCHEDULES, metavar="N", help="seeds (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="the first seed (default: %(default)s)")
    parser.add_argument("--live", action="store_true", help="real processes, a real broker, a proxy before every party")
    parser.add_argument("--minutes", type=float, default=10.0, metavar="M", help="of faults, with --live")
    parser.add_argument("--no-faults", action="store_true", help="with --live: shaped links only, nobody is killed")
    parser.add_argument("--encrypted", action="store_true", help="encrypted rounds instead of clear ones")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="with --live: where logs and states stay")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")


def run(options: argparse.Namespace) -> int:
    """Run, print a table, and fail if a chunk was lost or doubled."""
    check_writable("--json", options.json)
    if options.schedules < 1:
        raise ConfigError(f"--schedules {options.schedules}: name at least one")
    if options.minutes <= 0:
        raise ConfigError(f"--minutes {options.minutes:g}: choose more than 0")
    figures = _live(options) if options.live else _virtual(options)
    if options.json:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(figures), indent=2) + b"\n")
    print(describe(figures))
    return 1 if figures.failed else 0


def _live(options: argparse.Namespace) -> Figures:
    def go(folder: Path) -> Figures:
        live = LiveRun(
            folder.absolute(), options.minutes, options.seed, not options.no_faults, options.encrypted, say=_say
        )
        return asyncio.run(live.run())

    if options.folder:
        if options.folder.exists() and any(options.folder.iterdir()):
            raise ConfigError(f"--folder {options.folder} is not empty: a run begins with empty states; name another")
        options.folder.mkdir(parents=True, exist_ok=True)
        return go(options.folder)
    with tempfile.TemporaryDirectory(prefix="ofl-chaos-") as folder:
        return go(Path(folder))


def _virtual(options: argparse.Namespace) -> Figures:
    lost = doubled = released = refused = 0
    rested = True
    recoveries: list[tuple[str, float | None]] = []
    for seed in range(options.seed, options.seed + options.schedules):
        schedule = draw_schedule(seed)
        outcome = run_schedule(schedule)
        if outcome.failed:
            _say(_minimal(schedule, outcome))
        lost, doubled, released = lost + outcome.lost, doubled + outcome.doubled, released + outcome.released
        refused += bool(outcome.refused)
        rested = rested and (outcome.rested or bool(outcome.refused))
        recoveries += [
            (_name(fault.kind, fault.party), seconds)
            for fault, seconds in zip(schedule.faults, outcome.recovered_s, strict=False)
        ]
    return Figures(
        mode="virtual",
        runs=options.schedules,
        released=released,
        lost=lost,
        doubled=doubled,
        rested=rested,
        refused=refused,
        faults=fault_figures(recoveries, lost, doubled),
    )


def _name(kind: str, party: str) -> str:
    return f"{kind} coordinator" if party == "coordinator" else f"{kind} device"


def _minimal(schedule: Schedule, outcome: Outcome) -> str:
    """Return a failing seed's smallest failing part, for people."""
    small = shrink(schedule.faults, lambda faults: run_schedule(Schedule(schedule.seed, tuple(faults))).failed)
    lines = "".join(f"\n  {fault}" for fault in small) or "\n  (fails without any fault)"
    rest = "" if outcome.rested else ", does not come to rest"
    return f"seed {schedule.seed}: lost {outcome.lost}, doubled {outcome.doubled}{rest}; it takes no more than{lines}"


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def describe(figures: Figures) -> str:
    """Return the figures as a Markdown table with a line of totals."""
    rows = [
        f"| {kind} | {each.times} | {each.lost} | {each.doubled} | {_seconds(each.recovered_median_s)} | "
        f"{_seconds(each.recovered_max_s)} |"
        for kind, each in figures.faults.items()
    ]
    head = [
        "| fault | times | lost | doubled | recovered in (median) | (longest) |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    runs = (
        f"{figures.runs} schedules" if figures.mode == "virtual" else f"{figures.rounds} rounds over {figures.broker}"
    )
    refused = f", {figures.refused} successors refused" if figures.refused else ""
    rest = "" if figures.rested else "; NOT everything was settled in time"
    total = f"{runs}: {figures.released} chunks, {figures.lost} lost, {figures.doubled} doubled{refused}{rest}"
    links = [
        f"{link}: {sent} bytes sent a byte settled, {figures.settled[link]} chunks settled, the first after "
        f"{_seconds(figures.first_settled_s[link])}"
        for link, sent in figures.sent_per_settled.items()
    ]
    if figures.windows.offered:
        links.append(f"contacts of 20 s in 120: {figures.windows.used} of {figures.windows.offered} used")
    return "\n".join([*head, *rows, "", total, *links])


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:g} s"
