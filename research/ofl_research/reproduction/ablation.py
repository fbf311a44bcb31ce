"""What each learning rule of OFL is worth on validation samples, one change at a time, in the size of a quick run.

    python -m ofl_research.reproduction.ablation --data FOLDER --datasets mnist --seeds 1 --out ablation.jsonl

Rounds are in the clear, privacy and gate are off, test samples are never looked at. A row that is in `--out` already is
not run again, so an ended command goes on where it was.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from ofl_iot.workloads.tasks import TASKS, load_task
from ofl_research.reproduction.federations import run_system
from ofl_research.reproduction.plan import Plan, Result
from ofl_research.reproduction.settings import dealing_for, plan_for

Sections = Mapping[str, Mapping[str, Any]]
Key = tuple[str, str, int]

BEATS: Sections = {
    "upload": {"score": "magnitude"},
    "training": {"start": "synced", "steps": 26},
    "leader": {"publish": "beat", "beat_s": 0.8},
}
"""Twenty steps of a device of mean speed a beat, as many as FedAvg's devices make between two uploads."""

NIBBLES: Sections = {
    **BEATS,
    "upload": {"score": "magnitude", "values": "nibble"},
    "leader": {**BEATS["leader"], "beat_values": "nibble"},
}


@dataclass(frozen=True)
class Variant:
    """What a run differs in."""

    sections: Sections = field(default_factory=dict)
    """Of OFL's settings."""
    rounds: int | None = None
    """Inter-cluster rounds in the same time; None as in the plan."""
    system: str = "ofl"


VARIANTS: Mapping[str, Variant] = {
    "fedavg": Variant(system="fedavg"),
    "as it is": Variant(),
    "magnitude": Variant({"upload": {"score": "magnitude"}}),
    "synced": Variant({"training": {"start": "synced"}}),
    "magnitude, synced": Variant({"upload": {"score": "magnitude"}, "training": {"start": "synced"}}),
    "magnitude, synced, all blocks": Variant(
        {"upload": {"score": "magnitude"}, "training": {"start": "synced"}, "download": {"gamma": 1.0}}
    ),
    "magnitude, synced, all blocks, 6 rounds": Variant(
        {"upload": {"score": "magnitude"}, "training": {"start": "synced"}, "download": {"gamma": 1.0}}, rounds=6
    ),
    "beats": Variant(BEATS),
    "beats, 6 rounds": Variant(BEATS, rounds=6),
    "beats, o-factor, 6 rounds": Variant({**BEATS, "upload": {"score": "o-factor"}}, rounds=6),
    "beats, nibbles, 6 rounds": Variant(NIBBLES, rounds=6),
}


CLEAR_STRETCH = 1.33
"""Rounds in the clear take no time, so that devices train less than a plan for encrypted rounds expects; with rounds so
much further apart OFL's devices make as many steps as FedAvg's (200 on images)."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One variant on one data set with one seed."""

    dataset: str
    variant: str
    plan: Plan
    result: Result

    @property
    def key(self) -> Key:
        """What makes two rows the same."""
        return self.dataset, self.variant, self.plan.seed


def plan_with(dataset: str, variant: str, seed: int) -> Plan:
    """A quick run's plan with the sections of the variant on top."""
    chosen = VARIANTS[variant]
    system, sections = chosen.system, chosen.sections
    plan = plan_for(dataset, system, quick=True)
    if system == "ofl":
        rounds = chosen.rounds or plan.rounds
        stretch = CLEAR_STRETCH * plan.rounds / rounds
        plan = msgspec.structs.replace(plan, rounds=rounds, round_s=plan.round_s * stretch)
    options = {name: dict(values) for name, values in plan.options.items()} if system == "ofl" else plan.options
    for name, values in sections.items():
        options[name] = {**options.get(name, {}), **values}
    return msgspec.structs.replace(
        plan, protection="clear", judge="validation", seed=seed, judge_devices=system == "ofl", options=options
    )


def rows(dataset: str, variants: Sequence[str], seed: int, data: Path | None, known: set[Key]) -> Iterator[Row]:
    """Run what is not known yet, one after the other."""
    missing = [variant for variant in variants if (dataset, variant, seed) not in known]
    if not missing:
        return
    dealing = dealing_for(dataset, quick=True)
    task = load_task(dataset, data, devices=dealing.devices, seed=seed, samples=dealing.samples, hidden=dealing.hidden)
    for variant in missing:
        plan = plan_with(dataset, variant, seed)
        yield Row(dataset=dataset, variant=variant, plan=plan, result=run_system(VARIANTS[variant].system, task, plan))


def line(row: Row) -> str:
    """One row for people."""
    result = row.result
    own = sorted(result.device_accuracies.values())
    return (
        f"{row.dataset:13} {row.variant:40} seed {row.plan.seed} accuracy {result.accuracy:.4f} "
        f"devices {f'{own[0]:.3f} to {own[-1]:.3f}' if own else '-':14} "
        f"steps {result.operations.trained_steps / result.devices:4.0f} "
        f"bytes up/parameter {result.bytes_up_per_device / result.parameters:6.2f} {result.wall_s:4.0f} s"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, keep."""
    parser = argparse.ArgumentParser(
        prog="python -m ofl_research.reproduction.ablation", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="data sets; else OFL_DATA")
    parser.add_argument("--datasets", nargs="+", choices=TASKS, default=["digits"])
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--out", type=Path, metavar="FILE", help="a line of JSON for each row is added here")
    options = parser.parse_args(arguments)
    known = _known(options.out)
    for dataset in options.datasets:
        for seed in options.seeds:
            for row in rows(dataset, options.variants, seed, options.data, known):
                sys.stdout.write(line(row) + "\n")
                sys.stdout.flush()
                if options.out:
                    with options.out.open("ab") as file:
                        file.write(msgspec.json.encode(row) + b"\n")
    return 0


def _known(out: Path | None) -> set[Key]:
    if out is None or not out.exists():
        return set()
    return {msgspec.json.decode(each, type=Row).key for each in out.read_bytes().splitlines()}


if __name__ == "__main__":
    sys.exit(main())
