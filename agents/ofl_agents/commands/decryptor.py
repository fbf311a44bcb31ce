"""`ofl decryptor`: performs ServerDec in the coordinator's place (`protection.server_dec`)."""

from __future__ import annotations

import argparse

from ofl_agents import program
from ofl_agents.build import Parties
from ofl_agents.enrolment.holder import identity_of
from ofl_iot.errors import ConfigError
from ofl_iot.ids import DECRYPTOR

add_options = program.add_options


def run(options: argparse.Namespace) -> int:
    """Serve until told to stop."""
    settings = program.settings_of(options)
    if settings.protection.server != DECRYPTOR:
        raise ConfigError(
            "the settings let the coordinator decrypt (protection.server_dec = 'coordinator'): set it to 'decryptor', "
            "for the coordinator and all agents as well, or do without `ofl decryptor`"
        )
    plan = Parties(settings).decryptor()
    identity = identity_of(settings, DECRYPTOR)
    state = program.state_folder(options)
    program.run_party(program.PartyProcess(DECRYPTOR, plan.make, plan.toolbox, settings, state, identity=identity))
    return 0
