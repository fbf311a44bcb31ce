"""Finds how each system learns best on validation samples: the same number of tries and of training steps for each.

    python -m ofl_research.reproduction.tuning --data FOLDER --datasets mnist cora --systems ofl --out tuning.jsonl

What it finds is entered by hand into `ofl_research.reproduction.settings`. Test samples are never looked at.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from ofl_iot.workloads.tasks import TASKS, load_task
from ofl_research.reproduction.federations import SYSTEMS, run_system
from ofl_research.reproduction.plan import Result
from ofl_research.reproduction.settings import CHOSEN, DEVICES, Choice, budget_for, plan_of

PACES = ((0.02, 0.9), (0.05, 0.5), (0.1, 0.5))
"""Learning rate and momentum, for any task;"""
STEPS = (10, 20)
"""local steps between two uploads."""


class Try(msgspec.Struct, frozen=True, kw_only=True):
    """One try and what it came to."""

    dataset: str
    system: str
    choice: Choice
    result: Result


def choices(dataset: str, system: str) -> Iterator[Choice]:
    """What is tried: every pace with every number of local steps, the rest as it is chosen now."""
    now = CHOSEN.get(f"{dataset}/{system}") or CHOSEN.get(dataset) or Choice()
    for steps in STEPS:
        for learning_rate, momentum in PACES:
            yield msgspec.structs.replace(now, steps=steps, learning_rate=learning_rate, momentum=momentum)


def tries(dataset: str, system: str, data: Path | None, *, quick: bool, hidden: int | None = None) -> Iterator[Try]:
    """Run them one after the other, in the clear: encryption adds the same numbers."""
    task = load_task(dataset, data, devices=DEVICES, seed=0, hidden=hidden)
    for choice in choices(dataset, system):
        plan = plan_of(choice, system, budget_for(dataset, quick=quick))
        plan = msgspec.structs.replace(plan, protection="clear", judge="validation", seed=0)
        yield Try(dataset=dataset, system=system, choice=choice, result=run_system(system, task, plan))


def line(each: Try) -> str:
    """One try for people."""
    choice, result = each.choice, each.result
    return (
        f"{each.dataset:13} {each.system:7} steps {choice.steps:3} rate {choice.learning_rate:<5} "
        f"momentum {choice.momentum:<4} accuracy {result.accuracy:.4f} best {result.best_accuracy:.4f} "
        f"bytes up/parameter {result.bytes_up_per_device / result.parameters:6.1f} {result.wall_s:5.0f} s"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Try, print, keep."""
    parser = argparse.ArgumentParser(
        prog="python -m ofl_research.reproduction.tuning", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="data sets; else OFL_DATA")
    parser.add_argument("--datasets", nargs="+", choices=TASKS, default=["digits"])
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=["fedavg", "cfl", "rfl-ha", "ofl"])
    parser.add_argument("--quick", action="store_true", help="as many steps as in a quick run")
    parser.add_argument("--hidden", type=int, help="units of the dense layer, to find the region cheaply")
    parser.add_argument("--out", type=Path, metavar="FILE", help="a line of JSON for each try is added here")
    options = parser.parse_args(arguments)
    for dataset in options.datasets:
        for system in options.systems:
            for each in tries(dataset, system, options.data, quick=options.quick, hidden=options.hidden):
                sys.stdout.write(line(each) + "\n")
                sys.stdout.flush()
                if options.out:
                    with options.out.open("ab") as file:
                        file.write(msgspec.json.encode(each) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
