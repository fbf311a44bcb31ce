"""The embedded broker as a program of its own, until SIGTERM or SIGINT."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Sequence

from ofl_broker import DEFAULT_PORT
from ofl_broker.embedded import EmbeddedBroker
from ofl_broker.pulse import BrokerPulse
from ofl_iot.errors import ConfigError
from ofl_iot.ids import FederationId
from ofl_iot.runtime.logs import start_logging
from ofl_iot.runtime.watchdog import Service


async def serve(host: str, port: int, stop: asyncio.Event, federation: FederationId | None = None) -> None:
    """Run a broker until `stop` is set; raises ConfigError if the port cannot be had."""
    bind = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    async with EmbeddedBroker(bind, federation=federation) as broker:
        sys.stdout.write(f"listening host={host} port={broker.port}\n")
        sys.stdout.flush()  # whoever started it with port 0 waits for this line
        service = Service.of(os.environ)
        reporting = asyncio.create_task(service.attend(BrokerPulse(host, broker.port)), name="service")
        await stop.wait()
        reporting.cancel()
        service.stopping()


async def serve_until_signal(host: str, port: int, federation: FederationId | None = None) -> None:
    """Run a broker until the system asks the process to end."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        await serve(host, port, stop, federation)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; the exit code."""
    parser = argparse.ArgumentParser(prog="ofl broker", description="An MQTT broker for demos and tests.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="0: any free one (default: %(default)s)")
    arguments = parser.parse_args(argv)
    start_logging("info")
    try:
        asyncio.run(serve_until_signal(arguments.host, arguments.port))
    except ConfigError as error:
        sys.stderr.write(f"ofl broker: {error}\n")
        return 2
    return 0
