"""`ofl coordinator`: the coordinator of a federation."""

from __future__ import annotations

import argparse
import sys

from ofl_agents import program
from ofl_agents.build import Parties
from ofl_agents.enrolment.holder import identity_of
from ofl_iot.ids import COORDINATOR
from ofl_iot.roles.base import Machine
from ofl_iot.roles.coordinator.machine import CoordinatorMachine
from ofl_iot.workloads.digits import digits_federation


def add_options(parser: argparse.ArgumentParser) -> None:
    """What every party takes, and what to do about another coordinator's traces."""
    program.add_options(parser)
    parser.add_argument(
        "--take-over",
        nargs="?",
        const="model",
        choices=("model", "anew"),
        help="follow another coordinator whose state folder is lost: with its model from the broker, or anew",
    )


def run(options: argparse.Namespace) -> int:
    """Serve until the last round is closed (`round.count`) or until told to stop."""
    settings = program.settings_of(options)
    _, judge = digits_federation(1, settings.simulation.seed, model=settings.federation.model)
    plan = Parties(settings).coordinator(
        judge, take_over=bool(options.take_over), discard_model=options.take_over == "anew"
    )
    last: list[CoordinatorMachine] = []

    def finished(machine: Machine) -> bool:
        if isinstance(machine, CoordinatorMachine):
            last[:] = [machine]
            return machine.finished
        return False

    state = program.state_folder(options)
    identity = identity_of(settings, COORDINATOR)
    program.run_party(
        program.PartyProcess(
            COORDINATOR, plan.make, plan.toolbox, settings, state, finished=finished, identity=identity
        )
    )
    if last and last[0].finished:
        machine = last[0]
        accuracy = judge.evaluate(machine.model).accuracy
        sys.stdout.write(
            f"rounds={machine.counter.completed} accuracy={accuracy:.4f} doubled_chunks={machine.doubled_chunks}\n"
        )
    return 0
