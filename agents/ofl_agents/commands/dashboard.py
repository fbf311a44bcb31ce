"""`ofl dashboard`: a web page that shows the fleet and follows it."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from ofl_agents.cli import add_settings_options
from ofl_agents.dashboard.replay import read_recording
from ofl_agents.observing import observer_settings
from ofl_iot.errors import ConfigError
from ofl_iot.fleet_view.source import FleetSource
from ofl_iot.runtime.fleet_watch import watch_fleet

MAX_TOKEN_FILE = 1024


def add_options(parser: argparse.ArgumentParser) -> None:
    """What to show, where, to whom."""
    parser.add_argument(
        "--history", type=Path, metavar="FILE", help="go on from this history, and keep it (default: none)"
    )
    add_settings_options(parser)
    parser.add_argument(
        "--replay", type=Path, metavar="FILE", help="show a saved view (JSON), or play several (.jsonl)"
    )
    parser.add_argument("--speed", type=float, default=1.0, metavar="X", help="of --replay (default: %(default)s)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s, this machine)")
    parser.add_argument("--port", type=int, default=8420, help="0: any free one (default: %(default)s)")
    parser.add_argument(
        "--token-file", type=Path, metavar="FILE", help="ask for this token (default beyond loopback: a new one)"
    )
    parser.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME", help="another name of this machine"
    )
    parser.add_argument("--certificate", type=Path, metavar="FILE", help="serve over TLS with this certificate (PEM)")
    parser.add_argument("--key", type=Path, metavar="FILE", help="its private key (PEM)")


def run(options: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT."""
    if not 0 < options.speed < float("inf"):
        raise ConfigError(f"--speed {options.speed:g}: it must be above 0")
    if (options.certificate is None) != (options.key is None):
        raise ConfigError("--certificate and --key belong together: give both or neither")
    asyncio.run(_serve(options, _follow(options) if options.replay is None else _replay(options)))
    return 0


@asynccontextmanager
async def _replay(options: argparse.Namespace) -> AsyncIterator[FleetSource]:
    yield read_recording(options.replay, options.speed)


@asynccontextmanager
async def _follow(options: argparse.Namespace) -> AsyncIterator[FleetSource]:
    """Observe the federation of the settings, over its broker."""
    async with watch_fleet(observer_settings(options), options.history) as fleet:
        yield fleet


async def _serve(options: argparse.Namespace, source: AbstractAsyncContextManager[FleetSource]) -> None:
    from ofl_agents.dashboard.server import Place, serving  # needs the extra `dashboard`

    place = Place(
        options.host, options.port, _token(options.token_file), options.allow_host, options.certificate, options.key
    )
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with source as fleet, serving(fleet, place) as served:
        sys.stdout.write(served.invitation() + "\n")
        sys.stdout.flush()
        await stop.wait()


def _token(file: Path | None) -> str | None:
    if file is None:
        return None
    try:
        with file.open("rb") as opened:
            return opened.read(MAX_TOKEN_FILE).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--token-file {file}: it cannot be read ({error})") from error
