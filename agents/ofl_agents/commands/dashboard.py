"""`ofl dashboard`: a web page that shows the fleet and follows it."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from pathlib import Path

from ofl_agents.dashboard.replay import read_recording
from ofl_iot.errors import ConfigError
from ofl_iot.fleet_view.source import FleetSource

MAX_TOKEN_FILE = 1024


def add_options(parser: argparse.ArgumentParser) -> None:
    """What to show, where, to whom."""
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
    if options.replay is None:
        raise ConfigError("nothing to show: name a saved view with --replay FILE")
    if not 0 < options.speed < float("inf"):
        raise ConfigError(f"--speed {options.speed:g}: it must be above 0")
    source = read_recording(options.replay, options.speed)
    asyncio.run(_serve(source, options))
    return 0


async def _serve(source: FleetSource, options: argparse.Namespace) -> None:
    from ofl_agents.dashboard.server import Place, serving  # needs the extra `dashboard`

    if (options.certificate is None) != (options.key is None):
        raise ConfigError("--certificate and --key belong together: give both or neither")
    place = Place(
        options.host, options.port, _token(options.token_file), options.allow_host, options.certificate, options.key
    )
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with serving(source, place) as served:
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
