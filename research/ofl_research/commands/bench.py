"""`ofl bench`: measure the parts that must be fast or right; figures as JSON, and as a table where there is one."""

from __future__ import annotations

import argparse
import inspect
import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from ofl_agents.cli import check_writable
from ofl_iot.errors import ConfigError

BENCHES = {
    "broker": "ofl_research.benches.broker",
    "costs": "ofl_research.benches.costs",
    "capacity": "ofl_research.benches.capacity",
    "opportunity": "ofl_research.benches.opportunity",
    "crypto": "ofl_research.benches.crypto",
    "detection": "ofl_research.benches.detection",
    "exchange": "ofl_research.benches.exchange",
    "fleet": "ofl_research.benches.fleet",
    "round": "ofl_research.benches.round",
    "learning": "ofl_research.benches.learning",
    "training": "ofl_research.benches.training",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Which one, how long, on which data."""
    parser.add_argument("what", choices=sorted(BENCHES))
    parser.add_argument("--json", type=Path, nargs="?", metavar="FILE", help="write the figures there too")
    parser.add_argument(
        "--markdown", type=Path, metavar="FILE", help="write them there as a table (detection, learning)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="fewer seeds, rounds or clients (broker, detection, learning, training)"
    )
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="folder of MNIST's files (detection, learning; default: $OFL_DATA)"
    )


def run(options: argparse.Namespace) -> int:
    """Measure and print."""
    bench = import_module(BENCHES[options.what])
    if options.markdown is not None and not hasattr(bench, "markdown"):
        raise ConfigError(f"ofl bench {options.what} takes no --markdown")
    check_writable("--json", options.json)
    check_writable("--markdown", options.markdown)
    measure = bench.run
    figures = measure(**_arguments(measure, options))
    text = json.dumps(figures, indent=2)
    if options.json is not None:
        options.json.write_text(text + "\n")
    if options.markdown is not None:
        options.markdown.write_text(bench.markdown(figures) + "\n")
    sys.stdout.write(text + "\n")
    return 0


def _arguments(measure: Any, options: argparse.Namespace) -> dict[str, Any]:
    """The options that this bench takes; one that it does not take is refused."""
    taken = inspect.signature(measure).parameters
    data = options.data or os.environ.get("OFL_DATA")
    for name in ("quick", "data"):
        if getattr(options, name) and name not in taken:
            raise ConfigError(f"ofl bench {options.what} takes no --{name}")
    arguments: dict[str, Any] = {}
    if "quick" in taken:
        arguments["quick"] = options.quick
    if "data" in taken and data:
        arguments["data"] = Path(data)
    if "progress" in taken:
        arguments["progress"] = lambda line: sys.stderr.write(line.rstrip() + "\n")
    return arguments
