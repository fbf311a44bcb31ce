"""`ofl top`: the fleet as a live table in a terminal, what needs attention first."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ofl_agents.observing import add_view_options, observer_settings, saved_view
from ofl_iot.fleet_view.devices import STATES
from ofl_iot.fleet_view.source import FleetSource
from ofl_iot.fleet_view.terminal import TOP_HEAD, top_head, top_rows
from ofl_iot.fleet_view.view import FleetView
from ofl_iot.runtime.fleet_watch import RecordedFleet, watch_fleet

if TYPE_CHECKING:
    from rich.text import Text

REFRESH_S = 1.0
MARGIN = 4
"""Lines of a terminal that are not devices."""
_STYLES = {"limited": "yellow", "refused": "red", "offline": "dim", "spent": "magenta", "paused": "dim"}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Which devices, and how often."""
    parser.add_argument("--state", choices=STATES, default="", help="only devices in this state")
    parser.add_argument("--find", default="", metavar="TEXT", help="only devices whose name has this in it")
    parser.add_argument(
        "--once", action="store_true", help="print the table once and end; so it does without a terminal"
    )
    add_view_options(parser)
    parser.epilog = "Ends with Ctrl-C. Colours follow the terminal; NO_COLOR turns them off."


def run(options: argparse.Namespace) -> int:
    """Show the table until Ctrl-C."""
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_run(options))
    return 0


async def _run(options: argparse.Namespace) -> None:
    once = options.once or not sys.stdout.isatty()
    if options.view is not None:
        await _show(RecordedFleet(saved_view(options.view)), options, once=once)
        return
    async with watch_fleet(observer_settings(options), options.history) as watch:
        await watch.settled(options.timeout)
        await _show(watch, options, once=once)


async def _show(source: FleetSource, options: argparse.Namespace, *, once: bool) -> None:
    if once:
        view = source.view()
        lines = [line for _, line in top_rows(view, len(view.devices), options.state, options.find)]
        sys.stdout.write("\n".join([top_head(view), TOP_HEAD, *lines]) + "\n")
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False)
    with Live(console=console, auto_refresh=False, screen=True) as live:
        while True:
            view = source.view()
            live.update(_picture(view, console.height, options), refresh=True)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(source.changed(view.seq), REFRESH_S)


def _picture(view: FleetView, height: int, options: argparse.Namespace) -> Text:
    from rich.text import Text

    shown = Text(no_wrap=True, overflow="crop")
    shown.append(f"{top_head(view):<62}Ctrl-C quits\n", "bold")
    shown.append(f"{TOP_HEAD}\n", "dim")
    for line, style in _lines(view, max(1, height - MARGIN), options):
        shown.append(f"{line}\n", style)
    return shown


def _lines(view: FleetView, limit: int, options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    rows = top_rows(view, limit, options.state, options.find)
    yield from ((line, _STYLES.get(device.state, "")) for device, line in rows)
    fitting = len(top_rows(view, len(view.devices), options.state, options.find))
    if fitting > len(rows):
        yield f"  … {fitting - len(rows)} more", "dim"
