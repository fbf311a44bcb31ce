"""`ofl new`: writes a project to start from."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ofl_agents.new.project import write_project


def add_options(parser: argparse.ArgumentParser) -> None:
    """What it is called and what it learns."""
    parser.add_argument("name", type=Path, metavar="NAME", help="folder and name of the project, such as pump-monitor")
    parser.add_argument("--task", choices=("classify", "regress", "anomaly"), default="classify", help="(%(default)s)")
    library = parser.add_mutually_exclusive_group()
    library.add_argument(
        "--torch", dest="library", action="store_const", const="torch", help="a PyTorch model (default)"
    )
    library.add_argument("--numpy", dest="library", action="store_const", const="numpy", help="a model without torch")
    parser.set_defaults(library="torch")


def run(options: argparse.Namespace) -> int:
    """Write the files and say what comes next."""
    for file in write_project(options.name, options.task, options.library):
        sys.stdout.write(f"{file}\n")
    sys.stdout.write(
        f"\ncd {options.name}\npython make_data.py data\nofl sim --app app.py:app --data data --devices 8 --rounds 10\n"
    )
    return 0
