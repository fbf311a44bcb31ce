"""An agent's own care for its identity: renews the certificate in time, fetches the revocation list once a day."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TypeVar

from ofl_agents.enrolment.client import fetch_crl, renew, server_of
from ofl_iot.errors import ConfigError, OflError
from ofl_iot.identity.certificates import DAY_S, Validity
from ofl_iot.identity.dates import shown
from ofl_iot.identity.enrolment import Enrolment
from ofl_iot.transport.identity import IdentityFolder

log = logging.getLogger(__name__)
T = TypeVar("T")

LOOK_S = 3600.0
"""Between two looks at the certificate: clocks are set, and devices sleep."""


def next_look_s(validity: Validity, now: float) -> float:
    """Seconds to the next look: at most an hour, at the time of renewal, then ever more often."""
    if now < validity.renewal:
        return min(LOOK_S, validity.renewal - now)
    return min(LOOK_S, max(1.0, (validity.not_after - now) / 20))


class Renewal:
    """Looks after one identity folder as long as its task runs."""

    def __init__(self, held: IdentityFolder, renewed: Callable[[Enrolment], None]) -> None:
        self._held = held
        self._renewed = renewed
        self._heard_at = 0.0
        """When the revocation list was last fetched."""

    async def attend(self) -> None:
        """Look, renew, wait; failures are logged and tried again."""
        while True:
            pause_s = await self.look()
            await asyncio.sleep(pause_s)

    async def look(self) -> float:
        """Do what is due; seconds to the next look."""
        held, now = self._held, self._held.clock()
        try:
            enrolment = held.load()
        except ConfigError as error:
            log.error("identity cannot be used folder=%s reason=%s", held.path, error)  # noqa: TRY400  # it says all
            return LOOK_S
        validity = enrolment.credential.validity
        if held.handed_over:
            self._remind(validity, now)
            return next_look_s(validity, now)
        if now >= validity.renewal:
            failure = f"certificate not renewed, it expires at {shown(validity.not_after)}"
            new = await self._try(lambda: renew(held), failure)
            if new is not None:
                log.info("certificate renewed party=%s until=%s", new.name, shown(new.credential.validity.not_after))
                validity = new.credential.validity
                self._renewed(new)
        if now - self._heard_at >= DAY_S and server_of(held) is not None:
            crl = await self._try(lambda: fetch_crl(held), "revocation list not fetched", logging.DEBUG)
            self._heard_at = now if crl is not None else self._heard_at
        return next_look_s(validity, now)

    def _remind(self, validity: Validity, now: float) -> None:
        """A copy is renewed by whoever keeps the original, and half of the last third is late for that."""
        if now >= (validity.renewal + validity.not_after) / 2:
            advice = "run `ofl enroll renew` on the folder it is copied from, then restart"
            until = shown(validity.not_after)
            log.warning("certificate is overdue: %s folder=%s expires=%s", advice, self._held.path, until)

    async def _try(self, work: Callable[[], T], what: str, level: int = logging.WARNING) -> T | None:
        """Run in a thread, as it waits for the network; None after a failure, which is told."""
        try:
            return await asyncio.get_running_loop().run_in_executor(None, work)
        except OflError as error:
            log.log(level, "%s folder=%s reason=%s", what, self._held.path, error)
            return None
