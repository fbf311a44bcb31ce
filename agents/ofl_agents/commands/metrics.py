"""`ofl metrics`: watches the fleet and serves its figures to Prometheus."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys

from ofl_agents.observing import add_view_options, observer_settings, saved_view
from ofl_iot.errors import ConfigError
from ofl_iot.fleet_view.metrics import CONTENT_TYPE, DEVICES_MAX, exposition
from ofl_iot.fleet_view.source import FleetSource
from ofl_iot.runtime.fleet_watch import RecordedFleet, watch_fleet

MAX_REQUEST_BYTES = 16 * 1024
REQUEST_S = 10.0
_NOT_FOUND = b"ofl: the figures are at /metrics\n"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Where to serve."""
    parser.add_argument(
        "--listen",
        default="127.0.0.1:9464",
        metavar="HOST:PORT",
        help="address; port 0: any free one (default: %(default)s)",
    )
    parser.add_argument("--once", action="store_true", help="print the figures and end")
    parser.add_argument(
        "--devices-max", type=int, default=DEVICES_MAX, metavar="N",
        help="no figures of single devices in a larger fleet (default: %(default)s)",
    )  # fmt: skip
    add_view_options(parser)
    parser.epilog = "docs/operating.md lists the names; docs/grafana.json is a dashboard for Grafana."


def run(options: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT."""
    host, colon, port = options.listen.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65_535:
        raise ConfigError(f"--listen {options.listen!r}: write it as HOST:PORT, for example 127.0.0.1:9464")
    asyncio.run(_run(options, host.strip("[]"), int(port)))
    return 0


async def _run(options: argparse.Namespace, host: str, port: int) -> None:
    if options.view is not None:
        await _serve(RecordedFleet(saved_view(options.view)), options, host, port)
        return
    async with watch_fleet(observer_settings(options), options.history) as watch:
        if options.once:
            await watch.settled(options.timeout)
        await _serve(watch, options, host, port)


async def _serve(source: FleetSource, options: argparse.Namespace, host: str, port: int) -> None:
    if options.once:
        sys.stdout.write(exposition(source.view(), options.devices_max))
        return
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), REQUEST_S)
            writer.write(_response(request, source, options.devices_max))
            await asyncio.wait_for(writer.drain(), REQUEST_S)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.TimeoutError):
            pass
        finally:
            writer.close()

    try:
        server = await asyncio.start_server(answer, host, port, limit=MAX_REQUEST_BYTES)
    except OSError as error:
        raise ConfigError(f"cannot listen on {options.listen}: {error.strerror}; choose another port") from error
    async with server:
        bound = server.sockets[0].getsockname()
        sys.stdout.write(f"metrics at http://{options.listen.rpartition(':')[0]}:{bound[1]}/metrics\n")
        sys.stdout.flush()
        await stop.wait()


def _response(request: bytes, source: FleetSource, devices_max: int) -> bytes:
    words = request.split(b"\r\n", 1)[0].split(b" ")
    if len(words) != 3 or words[0] not in (b"GET", b"HEAD"):
        return _http("405 Method Not Allowed", b"ofl: GET /metrics\n", "text/plain")
    if words[1].split(b"?")[0] != b"/metrics":
        return _http("404 Not Found", _NOT_FOUND, "text/plain")
    body = exposition(source.view(), devices_max).encode()
    return _http("200 OK", body, CONTENT_TYPE, shown=words[0] == b"GET")


def _http(status: str, body: bytes, kind: str, *, shown: bool = True) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        "X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (body if shown else b"")
