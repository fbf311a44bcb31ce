"""`ofl status --local`: how the parties of a state folder fare, asked over their local sockets."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import msgspec

from ofl_iot.errors import ConfigError
from ofl_iot.ids import RESERVED, device_id
from ofl_iot.local.client import LocalError, LocalParty, NotRunningError
from ofl_iot.local.messages import StatusReply

_NOT_WELL = 1


def add_options(parser: argparse.ArgumentParser) -> None:
    """Whose status."""
    parser.add_argument("--local", action="store_true", required=True, help="of parties that run on this machine")
    parser.add_argument("--state", type=Path, metavar="DIR", help="(default: $STATE_DIRECTORY or ./ofl-state)")
    parser.add_argument("--id", metavar="NAME", help="one party (default: all that have a store there)")
    parser.add_argument("--json", action="store_true", help="as JSON, one object a party")
    parser.epilog = "Exit code: 0 if every party runs and makes progress, 1 if one does not."


def run(options: argparse.Namespace) -> int:
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
