"""Runs the dashboard's web server beside whatever else its loop does."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import AsyncIterator, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from ofl_agents.dashboard.access import access_for, is_loopback
from ofl_agents.dashboard.app import make_app
from ofl_agents.dashboard.feed import Feed
from ofl_iot.errors import ConfigError
from ofl_iot.fleet_view.source import FleetSource

DEFAULT_PORT = 8420
MAX_CONNECTIONS = 256
GRACE_S = 2


@dataclass(frozen=True)
class Place:
    """Where the page is served, and to whom."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    token: str | None = None
    allowed: Sequence[str] = ()
    certificate: Path | None = None
    key: Path | None = None
    option: str = "--port"
    """How the operator chose the port."""


@dataclass(frozen=True)
class Served:
    """A page that can be opened."""

    url: str
    token: str | None
    in_clear: bool
    """Whether page and token cross a network without TLS."""

    def invitation(self) -> str:
        """Return what to tell whoever started it."""
        lines = [f"dashboard: {self.url}/" + (f"#token={self.token}" if self.token else "")]
        if self.in_clear:
            lines.append(
                "without TLS whoever is on the way reads it: give --certificate and --key, or use an SSH tunnel"
            )
        return "\n".join(lines)


class _Server(uvicorn.Server):
    """Leaves signals to the program it is part of."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


@contextlib.asynccontextmanager
async def serving(source: FleetSource, place: Place) -> AsyncIterator[Served]:
    """Serve the page as long as the block lasts, or raise ConfigError."""
    access = access_for(place.host, place.token, place.allowed)
    with contextlib.closing(_listen(place)) as listening:
        port = listening.getsockname()[1]
        feed = Feed(source)
        secure = place.certificate is not None
        app = make_app(feed, access, cookie=f"ofl_dashboard_{port}", secure=secure)
        server = _Server(_config(app, place))
        tasks = [
            asyncio.create_task(feed.run(), name="dashboard-feed"),
            asyncio.create_task(server.serve([listening]), name="dashboard-server"),
        ]
        address = f"{'https' if secure else 'http'}://{_name(place.host)}:{port}"
        try:
            yield Served(address, access.token, in_clear=not secure and not is_loopback(place.host))
        finally:
            feed.close()
            tasks[0].cancel()
            server.should_exit = True
            await asyncio.gather(*tasks, return_exceptions=True)


def _name(host: str) -> str:
    """Return how others call an address that is listened on."""
    if host in {"0.0.0.0", "::"}:  # noqa: S104  # what the operator asked for
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host


def _listen(place: Place) -> socket.socket:
    if not 0 <= place.port <= 65535:
        raise ConfigError(f"{place.option} {place.port}: a port is a number up to 65535; 0 takes any free one")
    family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
    try:
        return socket.create_server((place.host, place.port), family=family, backlog=128)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"port {place.port} on {place.host} is in use: choose another with {place.option} (0: any)"
            ) from error
        raise ConfigError(f"cannot listen on {place.host}:{place.port} ({error}): choose another address") from error


def _config(app: object, place: Place) -> uvicorn.Config:
    config = uvicorn.Config(
        app,  # type: ignore[arg-type]
        http="h11",
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=GRACE_S,
        ssl_certfile=str(place.certificate) if place.certificate else None,
        ssl_keyfile=str(place.key) if place.key else None,
    )
    try:
        config.load()
    except OSError as error:
        raise ConfigError(f"--certificate {place.certificate} and --key {place.key} cannot be used: {error}") from error
    return config
