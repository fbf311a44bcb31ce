"""`ofl coordinator`: the coordinator of a federation."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ofl_agents import program
from ofl_agents.app import open_app, place_of, secrets_of
from ofl_agents.backup import run_backup
from ofl_agents.build import Parties, card_of
from ofl_agents.cli import add_app_options
from ofl_agents.enrolment.holder import identity_of
from ofl_agents.models import output
from ofl_agents.models.initial import initial_from
from ofl_iot.errors import ConfigError
from ofl_iot.ids import COORDINATOR
from ofl_iot.models.files import TENSOR_FILES
from ofl_iot.roles.base import Machine
from ofl_iot.roles.coordinator.machine import CoordinatorMachine
from ofl_iot.runtime.settings import Settings
from ofl_iot.workloads.base import Workload


def add_options(parser: argparse.ArgumentParser) -> None:
    """What every party takes, and what to do about another coordinator's traces."""
    parser.add_argument("action", nargs="?", choices=("backup",), help="copy the store to FILE, running or not")
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help=argparse.SUPPRESS)
    add_app_options(parser)
    program.add_options(parser)
    parser.add_argument(
        "--take-over",
        nargs="?",
        const="model",
        choices=("model", "anew"),
        help="follow another coordinator whose state folder is lost: with its model from the broker, or anew",
    )
    parser.add_argument(
        "--initial",
        type=Path,
        metavar="FILE",
        help=f"pre-trained weights to start from ({', '.join(TENSOR_FILES)}), by the names of the app's tensors",
    )
    output.add_options(parser)


def run(options: argparse.Namespace) -> int:
    """Serve until the last round is closed (`round.count`) or until told to stop."""
    if options.action == "backup":
        return run_backup(program.state_path(options), COORDINATOR, options.file)
    settings = program.settings_of(options)
    state = program.state_folder(options)
    app = open_app(settings, secrets_of(settings, state))
    try:
        return _serve(options, settings, state, app.judge())
    finally:
        app.close()


def _serve(options: argparse.Namespace, settings: Settings, state: Path, judge: Workload) -> int:
    if options.initial and options.take_over == "model":
        raise ConfigError("--initial begins a model, --take-over goes on with one: use --take-over anew, or drop one")
    initial = initial_from(options.initial, judge, state) if options.initial else None
    plan = Parties(settings).coordinator(
        judge,
        take_over=bool(options.take_over),
        discard_model=options.take_over == "anew",
        initial=initial.values if initial else None,
    )
    handed_on = output.output_of(options, state)
    last: list[CoordinatorMachine] = []

    def finished(machine: Machine) -> bool:
        if isinstance(machine, CoordinatorMachine):
            last[:] = [machine]
            return machine.finished
        return False

    identity = identity_of(settings, COORDINATOR)
    program.run_party(
        program.PartyProcess(
            COORDINATOR,
            plan.make,
            plan.toolbox,
            settings,
            state,
            finished=finished,
            identity=identity,
            card=card_of(judge),
            app=place_of(settings, held_out=True),
            remember=(initial.remember,) if initial else (),
            deliver=handed_on.deliver if handed_on else None,
        )
    )
    if last and last[0].finished:
        machine = last[0]
        judged = " ".join(f"{name}={value:.4f}" for name, value in judge.evaluate(machine.model).measured.items())
        sys.stdout.write(
            f"rounds={machine.counter.completed} {judged} doubled_chunks={machine.doubled_chunks}\n".replace("  ", " ")
        )
    return 0
