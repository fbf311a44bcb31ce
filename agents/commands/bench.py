"""`ofl bench`: measure the parts that must be fast or right; figures as JSON."""

from __future__ import annotations

import argparse
import json
import sys
from importlib import import_module
from pathlib import Path

from agents.cli import check_writable

BENCHES = {
    "opportunity": "agents.bench_opportunity",
    "crypto": "agents.bench_crypto",
    "detection": "agents.bench_detection",
    "fleet": "agents.bench_fleet",
    "learning": "agents.bench_learning",
    "robust": "agents.bench_robust",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Which one."""
    parser.add_argument("what", choices=sorted(BENCHES))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")


def run(options: argparse.Namespace) -> int:
    """Measure and print."""
    check_writable("--json", options.json)
    figures = import_module(BENCHES[options.what]).run()
    text = json.dumps(figures, indent=2)
    if options.json is not None:
        options.json.write_text(text + "\n")
    sys.stdout.write(text + "\n")
    return 0
