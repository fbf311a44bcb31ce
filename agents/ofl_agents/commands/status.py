"""`ofl status`: the fleet at a glance; with `--local` the parties of a state folder, asked over their sockets."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import msgspec

from ofl_agents.observing import add_view_options, view_of
from ofl_iot.errors import ConfigError, TransportError
from ofl_iot.fleet_view.terminal import status_lines
from ofl_iot.fleet_view.view import FleetView, encode_view
from ofl_iot.ids import RESERVED, device_id
from ofl_iot.local.client import LocalError, LocalParty, NotRunningError
from ofl_iot.local.messages import StatusReply

_NOT_WELL = 1
LOOK_AT, ACT_ON, NO_WORD = 1, 2, 3
"""Exit codes of a fleet's status."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Whose status."""
    parser.add_argument("--local", action="store_true", help="of parties that run on this machine")
    parser.add_argument("--state", type=Path, metavar="DIR", help="--local: (default: $STATE_DIRECTORY or ./ofl-state)")
    parser.add_argument("--id", metavar="NAME", help="--local: one party (default: all that have a store there)")
    parser.add_argument("--json", action="store_true", help="the whole view as JSON; --local: one object a party")
    add_view_options(parser)
    parser.epilog = (
        "Exit code: 0 all is well, 1 something to look at, 2 something to act on, 3 no word from the fleet. "
        "--local: 0 if every party runs and makes progress, 1 if one does not."
    )


def run(options: argparse.Namespace) -> int:
    """Tell how the fleet fares, or the parties on this machine."""
    if options.local:
        return _run_local(options)
    if options.state is not None or options.id is not None:
        raise ConfigError("--state and --id are about parties on this machine: add --local")
    try:
        view = view_of(options)
    except TransportError as error:
        sys.stderr.write(f"ofl: {error}\n")
        return NO_WORD
    if options.json:
        sys.stdout.write(msgspec.json.format(encode_view(view)).decode() + "\n")
    else:
        sys.stdout.write("\n".join(status_lines(view)) + "\n")
    return exit_code(view)


def exit_code(view: FleetView) -> int:
    """Return how urgent a look at the fleet is."""
    if not view.devices and not view.rounds:
        return NO_WORD
    severities = {each.severity for each in view.alerts}
    return ACT_ON if "critical" in severities else LOOK_AT if "warning" in severities else 0


def _run_local(options: argparse.Namespace) -> int:
    """Ask each party and tell what it said."""
    state = options.state or Path(os.environ.get("STATE_DIRECTORY", "ofl-state"))
    answers = {name: _ask(state, name) for name in _names(state, options.id)}
    if options.json:
        plain = {
            name: each if isinstance(each, str) else msgspec.structs.asdict(each) for name, each in answers.items()
        }
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(plain)).decode() + "\n")
    else:
        for name, answer in answers.items():
            _tell(name, answer)
    well = all(isinstance(answer, StatusReply) and not answer.overdue for answer in answers.values())
    return 0 if well else _NOT_WELL


def _names(state: Path, given: str | None) -> list[str]:
    if given:
        return [given if given in RESERVED else device_id(given)]
    names = sorted(path.stem for path in state.glob("*.sqlite"))
    if not names:
        raise ConfigError(f"{state} holds no store: name the state folder with --state")
    return names


def _ask(state: Path, name: str) -> StatusReply | str:
    """Return what a party says, or why it says nothing."""
    try:
        return LocalParty(state, name, timeout_s=5.0).status()
    except (NotRunningError, LocalError) as error:
        return str(error)


def _plain(answer: StatusReply | str) -> object:
    return answer if isinstance(answer, str) else msgspec.structs.asdict(answer)


def _tell(name: str, answer: StatusReply | str) -> None:
    if isinstance(answer, str):
        sys.stdout.write(f"{name}: {answer}\n")
        return
    overdue = f"  NO PROGRESS: {answer.overdue}\n" if answer.overdue else ""
    details = ", ".join(f"{key} {value}" for key, value in answer.details.items() if value is not None)
    sys.stdout.write(
        f"{name}: {answer.role}, up {answer.up_s:.0f} s, process {answer.pid}, ofl-iot {answer.version}\n{overdue}"
        f"  {answer.said}\n  {details}\n"
    )
