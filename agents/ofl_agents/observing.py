"""What all commands that look at a fleet share: where the view comes from, and how long to wait for it."""

from __future__ import annotations

import argparse
import asyncio
import difflib
from pathlib import Path

from ofl_agents.cli import add_settings_options
from ofl_agents.program import settings_of
from ofl_iot.errors import ConfigError
from ofl_iot.fleet_view.view import DeviceView, FleetView, decode_view
from ofl_iot.ids import OBSERVER
from ofl_iot.runtime.fleet_watch import watch_fleet
from ofl_iot.runtime.settings import Settings
from ofl_iot.transport.identity import IdentityFolder

MAX_VIEW_BYTES = 256 * 2**20


def add_view_options(parser: argparse.ArgumentParser) -> None:
    """Where the view comes from."""
    parser.add_argument(
        "--view", type=Path, metavar="FILE", help="a saved view (`ofl status --json > FILE`) instead of a broker"
    )
    parser.add_argument(
        "--history", type=Path, metavar="FILE", help="go on from this history, and keep it (default: none)"
    )
    parser.add_argument(
        "--timeout",
        type=positive_seconds,
        default=10.0,
        metavar="S",
        help="seconds to wait for the broker (default: 10)",
    )
    add_settings_options(parser)


def positive_seconds(text: str) -> float:
    """Read a number of seconds above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no time to wait: give seconds above 0")
    return value


def observer_settings(options: argparse.Namespace) -> Settings:
    """Return the settings under which to observe; an identity of another kind is refused with advice."""
    settings = settings_of(options)
    if settings.mqtt.identity is not None:
        name = IdentityFolder(Path(settings.mqtt.identity)).load().name
        if name != OBSERVER:
            raise ConfigError(
                f"mqtt.identity names {name!r}, which may not read what observers read: enrol one with "
                "`ofl enroll token --id observer` and `ofl enroll join`"
            )
    return settings


def view_of(options: argparse.Namespace) -> FleetView:
    """Return the fleet's view: from a file, or read at the broker."""
    if options.view is not None:
        return saved_view(options.view)
    return asyncio.run(_look(observer_settings(options), options.history, options.timeout))


def saved_view(file: Path) -> FleetView:
    """Return a view that was saved, or ConfigError."""
    try:
        if file.stat().st_size > MAX_VIEW_BYTES:
            raise ConfigError(f"--view {file}: more than {MAX_VIEW_BYTES >> 20} MiB, which is no fleet view")
        data = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"--view {file}: it cannot be read ({error.strerror})") from error
    return decode_view(data)


def device_in(view: FleetView, name: str) -> DeviceView:
    """Return a device, or ConfigError with names that are near."""
    device = view.device(name)
    if device is not None:
        return device
    near = difflib.get_close_matches(name, [each.id for each in view.devices], n=3, cutoff=0.5)
    meant = f"; did you mean {', '.join(near)}?" if near else f"; the fleet has {len(view.devices)} devices"
    raise ConfigError(f"no device is called {name!r}{meant}")


async def _look(settings: Settings, history: Path | None, timeout_s: float) -> FleetView:
    async with watch_fleet(settings, history) as watch:
        return await watch.settled(timeout_s)
