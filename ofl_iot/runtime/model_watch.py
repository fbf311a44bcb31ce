"""Hands each new model of a running party on, the newest only, and never faster than it is taken."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from ofl_iot.errors import OflError
from ofl_iot.local.messages import ModelReply
from ofl_iot.local.server import Answer
from ofl_iot.roles.reports.base import Report
from ofl_iot.roles.reports.coordinator import RoundClosed, TakeoverDone
from ofl_iot.roles.reports.device import ModelDownloaded
from ofl_iot.runtime.desk import NoModelError, PartyDesk

log = logging.getLogger(__name__)

Deliver: TypeAlias = Callable[[ModelReply, bytes], Awaitable[None]]
"""What is to be done with a model: what it is, and its values."""

NEWS = (ModelDownloaded, RoundClosed, TakeoverDone)
"""What parties report when their model has changed."""


class ModelWatch:
    """Delivers a party's model after it changed, at most every `every_s` seconds.

    A failing delivery is told once, until one succeeds again; it never stops the party.
    """

    def __init__(self, deliver: Deliver, every_s: float) -> None:
        self._deliver = deliver
        self._every_s = every_s
        self._changed = asyncio.Event()
        self._last = b""
        """Digest of the values that were delivered last."""
        self._complained = False

    def listen(self, _party: str, report: Report, _now: float) -> None:
        """Take in what the party reports."""
        if isinstance(report, NEWS):
            self._changed.set()

    async def attend(self, desk: PartyDesk) -> None:
        """Deliver until cancelled; what a stopped party had downloaded before counts too."""
        self._changed.set()
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self.deliver_news(desk)
            await asyncio.sleep(self._every_s)

    async def deliver_news(self, desk: PartyDesk) -> None:
        """Deliver the model if it is another one than last time."""
        try:
            answer = desk.model("federation")
        except NoModelError:
            return
        digest, body = await asyncio.to_thread(_taken, answer)
        if digest == self._last:
            return
        assert isinstance(answer.reply, ModelReply)  # noqa: S101  # it was asked for
        try:
            await self._deliver(answer.reply, body)
        except OflError as error:
            if not self._complained:
                log.warning("the new model was not handed on, it is tried again with the next party=%s reason=%s",
                            desk.party.name, error)  # fmt: skip
            self._complained = True
            return
        self._last, self._complained = digest, False

    async def flush(self, desk: PartyDesk) -> None:
        """Deliver what changed since, as a last act."""
        if self._changed.is_set():
            await self.deliver_news(desk)


def _taken(answer: Answer) -> tuple[bytes, bytes]:
    """Return the digest of the values and the values themselves."""
    body = bytes(answer.body)
    return hashlib.blake2b(body, digest_size=16).digest(), body
