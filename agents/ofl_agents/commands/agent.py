"""`ofl agent`: the agent of one device."""

from __future__ import annotations

import argparse
from pathlib import Path

from ofl_agents import program
from ofl_agents.app import open_app, place_of, secrets_of
from ofl_agents.backup import only_agent_in, run_backup
from ofl_agents.build import Parties, card_of
from ofl_agents.cli import add_app_options
from ofl_agents.enrolment.holder import identity_of
from ofl_agents.models import output
from ofl_iot.apps.builtin import Part
from ofl_iot.errors import ConfigError
from ofl_iot.fleet.devices import DEVICE_TYPES
from ofl_iot.ids import device_id
from ofl_iot.jobs.leader_crypto import sealing_key_of
from ofl_iot.jobs.toolbox import TypePace
from ofl_iot.privacy.noise import noise_generator
from ofl_iot.runtime.settings import Settings
from ofl_iot.runtime.telemetry import best_source
from ofl_iot.workloads.base import Workload


def add_options(parser: argparse.ArgumentParser) -> None:
    """Which device, which data."""
    parser.add_argument("action", nargs="?", choices=("backup",), help="copy the store to FILE, running or not")
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help=argparse.SUPPRESS)
    parser.add_argument("--id", help="the device's id, for example truck-017")
    add_app_options(parser)
    parser.add_argument("--part", metavar="K/N", help="train on part K of N of a built-in app's data")
    parser.add_argument(
        "--pace-as", choices=sorted(DEVICE_TYPES), help="slow training down to a device type of the paper"
    )
    parser.add_argument(
        "--accept-new-budget",
        action="store_true",
        help="begin a new privacy budget if the old one is lost or spent; only with the data owner's consent, recorded",
    )
    output.add_options(parser)
    program.add_options(parser)


def run(options: argparse.Namespace) -> int:
    """Serve until told to stop."""
    if options.action == "backup":
        state = program.state_path(options)
        return run_backup(state, device_id(options.id) if options.id else only_agent_in(state), options.file)
    if options.id is None:
        raise ConfigError("an agent needs --id, the device's id, for example truck-017")
    settings = program.settings_of(options)
    name = device_id(options.id)
    part = Part.parse(options.part) if options.part is not None else None
    state = program.state_folder(options)
    app = open_app(settings, secrets_of(settings, state))
    try:
        program.run_party(_party(options, settings, state, app.device(name, part, state=state)))
    finally:
        app.close()
    return 0


def _party(options: argparse.Namespace, settings: Settings, state: Path, workload: Workload) -> program.PartyProcess:
    name = device_id(options.id)
    identity = identity_of(settings, name)
    plan = Parties(settings, light=True).agent(
        name,
        workload,
        options.pace_as or "",
        noise_generator(),
        identity,
        accept_new_budget=options.accept_new_budget,
    )
    step_s = settings.simulation.step_s
    handed_on = output.output_of(options, state)
    return program.PartyProcess(
        plan.name,
        plan.make,
        plan.toolbox,
        settings,
        state,
        will=plan.will,
        meter=best_source(options.pace_as or ""),
        pace=TypePace(step_s / DEVICE_TYPES[options.pace_as].relative_speed) if options.pace_as else None,
        identity=identity,
        enrolled=sealing_key_of,
        card=card_of(workload),
        app=place_of(settings),
        deliver=handed_on.deliver if handed_on else None,
    )
