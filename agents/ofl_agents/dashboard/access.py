"""Who may see the page: names by which it may be called, a token for whoever is not on this machine.

Another site's page in the operator's browser can make that browser ask us: by a name that it pointed at this address
(DNS rebinding), or across origins. The first is refused by the `Host` header, the second by what browsers say of a
request's origin.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import urlsplit

from ofl_iot.errors import ConfigError

SESSION_S = 12 * 3600.0
MAX_SESSIONS = 256
MIN_TOKEN = 20
"""Characters of a token of one's own: 20 drawn letters and digits are beyond guessing."""


class Forbidden(Exception):  # noqa: N818  # it becomes an answer, not a failure of ours
    """A request that is not answered, and why."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


@dataclass
class Access:
    """Decides which requests are answered. `token` None: whoever reaches this machine's loopback."""

    loopback: bool
    token: str | None
    names: frozenset[str] = frozenset()
    clock: Callable[[], float] = time.monotonic
    _sessions: dict[str, float] = field(default_factory=dict)

    def check_origin(self, host: str, headers: dict[str, str]) -> None:
        """Refuse requests by a foreign name, and those that another site made."""
        if not self._is_ours(host):
            reason = f"this dashboard is not called {host[:80]!r}; if it should be, start it with --allow-host"
            raise Forbidden(HTTPStatus.MISDIRECTED_REQUEST, reason)
        if headers.get("sec-fetch-site", "none") not in {"none", "same-origin"} and not _is_visit(headers):
            raise Forbidden(HTTPStatus.FORBIDDEN, "another site's page asked")
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            raise Forbidden(HTTPStatus.FORBIDDEN, "another site's page asked")

    def check_reader(self, session: str, authorization: str) -> None:
        """Refuse readers without the token, where one is needed."""
        if self.token is None or self._sessions.get(session, 0.0) > self.clock():
            return
        scheme, _, given = authorization.partition(" ")
        if scheme.lower() != "bearer" or not self._is_token(given.strip()):
            raise Forbidden(HTTPStatus.UNAUTHORIZED, "this dashboard asks for its token")

    def admit(self, given: str) -> str:
        """Return a new session for whoever has the token."""
        if not self._is_token(given):
            raise Forbidden(HTTPStatus.UNAUTHORIZED, "that is not the token that `ofl dashboard` printed")
        now = self.clock()
        self._sessions = {name: ends for name, ends in self._sessions.items() if ends > now}
        while len(self._sessions) >= MAX_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        session = secrets.token_urlsafe(24)
        self._sessions[session] = now + SESSION_S
        return session

    def _is_token(self, given: str) -> bool:
        return self.token is not None and hmac.compare_digest(given.encode(), self.token.encode())

    def _is_ours(self, host: str) -> bool:
        """Whether a `Host` header is a name that nobody else can point here: an address, or one that we know."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        try:
            return ipaddress.ip_address(name).is_loopback or not self.loopback
        except ValueError:
            return name == "localhost" or name in self.names


def _is_visit(headers: dict[str, str]) -> bool:
    """Whether somebody followed a link to the page itself."""
    return headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"


def access_for(host: str, token: str | None, allowed: Iterable[str]) -> Access:
    """Return the rules for an address to listen on; beyond loopback a token is drawn if none is given."""
    loopback = is_loopback(host)
    if token is not None and (len(token) < MIN_TOKEN or not token.isascii() or not token.isprintable()):
        raise ConfigError(
            f"a token needs {MIN_TOKEN} printable ASCII characters at least: `openssl rand -hex 16` makes one"
        )
    if token is None and not loopback:
        token = secrets.token_urlsafe(24)
    names = {name.lower() for name in allowed}
    if not loopback:
        names |= {socket.gethostname().lower(), socket.getfqdn().lower(), host.lower()}
    return Access(loopback, token, frozenset(names))


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
