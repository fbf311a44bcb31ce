"""`ofl agent`: the agent of one device."""

from __future__ import annotations

import argparse

from ofl_agents import program
from ofl_agents.build import Parties
from ofl_agents.enrolment.holder import identity_of
from ofl_iot.errors import ConfigError
from ofl_iot.fleet.devices import DEVICE_TYPES
from ofl_iot.ids import device_id
from ofl_iot.jobs.leader_crypto import sealing_key_of
from ofl_iot.jobs.toolbox import TypePace
from ofl_iot.privacy.noise import noise_generator
from ofl_iot.runtime.telemetry import best_source
from ofl_iot.workloads.digits import digits_federation


def add_options(parser: argparse.ArgumentParser) -> None:
    """Which device, which data."""
    parser.add_argument("--id", required=True, help="the device's id, for example truck-017")
    parser.add_argument("--part", required=True, metavar="K/N", help="train on part K of N of the workload's data")
    parser.add_argument(
        "--pace-as", choices=sorted(DEVICE_TYPES), help="slow training down to a device type of the paper"
    )
    program.add_options(parser)


def run(options: argparse.Namespace) -> int:
    """Serve until told to stop."""
    settings = program.settings_of(options)
    part, parts = _part(options.part)
    simulation = settings.simulation
    workloads, _ = digits_federation(parts, simulation.seed, model=settings.federation.model, alpha=simulation.alpha)
    name = device_id(options.id)
    identity = identity_of(settings, name)
    plan = Parties(settings, light=True).agent(
        name, workloads[part - 1], options.pace_as or "", noise_generator(), identity
    )
    pace = TypePace(simulation.step_s / DEVICE_TYPES[options.pace_as].relative_speed) if options.pace_as else None
    program.run_party(
        program.PartyProcess(
            plan.name,
            plan.make,
            plan.toolbox,
            settings,
            program.state_folder(options),
            will=plan.will,
            meter=best_source(options.pace_as or ""),
            pace=pace,
            identity=identity,
            enrolled=sealing_key_of,
        )
    )
    return 0


def _part(text: str) -> tuple[int, int]:
    part, _, parts = text.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        raise ConfigError(f"--part {text!r}: write it as K/N with K from 1 to N, for example 3/16")
    return int(part), int(parts)
