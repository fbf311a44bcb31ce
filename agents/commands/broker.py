"""`ofl broker`: the embedded broker alone."""

from __future__ import annotations

import argparse
import asyncio

from broker.program import DEFAULT_PORT, serve_until_signal


def add_options(parser: argparse.ArgumentParser) -> None:
    """Where to listen."""
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="0: any free one (default: %(default)s)")


def run(options: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT."""
    asyncio.run(serve_until_signal(options.host, options.port))
    return 0
