"""`ofl broker`: the embedded broker alone; `ofl broker profile`: configurations of production brokers."""

from __future__ import annotations

import argparse
import asyncio

from ofl_agents.commands import broker_profile
from ofl_broker import DEFAULT_PORT
from ofl_iot.ids import federation_id


def add_options(parser: argparse.ArgumentParser) -> None:
    """Where to listen, or which configuration to write."""
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="0: any free one (default: %(default)s)")
    parser.add_argument("--federation", metavar="ID", help="keep this federation's access policy (default: none)")
    parser.set_defaults(profile=None)
    actions = parser.add_subparsers(metavar="profile")
    summary = "write the configuration of a production broker"
    broker_profile.add_options(actions.add_parser("profile", help=summary, description=summary.capitalize() + "."))


def run(options: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT, or write a profile."""
    if options.profile is not None:
        return broker_profile.run(options)
    from ofl_broker.program import serve_until_signal  # needs the extra `sim`; profiles do not

    federation = federation_id(options.federation) if options.federation else None
    asyncio.run(serve_until_signal(options.host, options.port, federation))
    return 0
