"""Why a link has no connection: what the log says of it, and how often."""

from __future__ import annotations

import logging

from ofl_iot.transport.backoff import Outage
from ofl_iot.transport.settings import Address
from ofl_iot.transport.sockets import CLOSED_BY_BROKER

logger = logging.getLogger(__name__)


class Failures:
    """The connections of one link that ended or never began."""

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        self._evictions = 0
        """How often in a row the broker closed a connection that it had accepted."""
        self._outage = Outage()
        self.last = ""
        """Why the last connection ended or never began."""

    def explain(self, reason: str, *, connected: bool) -> str:
        """Name what a broker does not say: it ends a session when another client with the same id connects."""
        if reason != CLOSED_BY_BROKER or not connected:
            self._evictions = 0
            return reason
        self._evictions += 1
        if self._evictions < 2:
            return reason
        return f"{reason} again: another client with this id connected; the id {self._client_id!r} must be unique there"

    def failed(self, address: Address, reason: str, now: float, *, expected: bool) -> None:
        """Log a failure as a warning when an outage begins and once a minute; as debugging if it was `expected`."""
        self.last = reason
        level = logging.WARNING if self._outage.should_complain(now) and not expected else logging.DEBUG
        since_s = self._outage.lasted_s(now)
        logger.log(
            level,
            "no link to the broker, trying again client=%s broker=%s reason=%r since_s=%.0f",
            *(self._client_id, address, reason, since_s),
        )

    def over(self) -> None:
        """There is a connection."""
        self._outage.over()
