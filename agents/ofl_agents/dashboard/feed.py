"""Follows a fleet source and hands its changes to any number of pages, at most four times a second."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import AsyncIterator

import msgspec

from ofl_agents.dashboard.shown import ShownView
from ofl_iot.fleet_view.source import FleetSource
from ofl_iot.fleet_view.view import DeviceDetails, DeviceView, RoundView

log = logging.getLogger(__name__)

INTERVAL_S = 0.25
TICK_S = 1.0
"""A page that hears nothing for some of these knows that it is cut off."""
KEPT = 240
"""Changes that are kept for pages whose connection broke: a minute of a busy fleet."""


class Feed:
    """What changed, numbered, so that a page which was away can go on where it stopped."""

    def __init__(self, source: FleetSource) -> None:
        self._source = source
        self._epoch = secrets.token_hex(4)
        view = source.view()
        self._taken = view.seq
        self._shown = ShownView(view)
        self._kept: deque[bytes] = deque(maxlen=KEPT)
        self._position = 0
        self._news = asyncio.Event()
        self._closed = False
        self.broken = False
        """Whether the source has failed."""

    async def run(self) -> None:
        """Take changes until cancelled; when the source fails, end all streams: old numbers must not look alive."""
        try:
            while True:
                await self._source.changed(self._taken)
                self.take()
                await asyncio.sleep(INTERVAL_S)
        except Exception:
            log.exception("the fleet can no longer be followed")
            self.broken = True
            self.close()

    def take(self) -> None:
        """Take the source's present view, and tell the readers."""
        view = self._source.view()
        self._taken = view.seq
        delta = self._shown.update(view)
        self._position += 1
        self._kept.append(msgspec.json.encode({"seq": self._position, **delta}))
        self._wake()

    def close(self) -> None:
        """End all streams."""
        self._closed = True
        self._wake()

    def whole(self) -> bytes:
        """Return the view as JSON, with the position from which its changes go on."""
        view = self._shown.whole()
        return msgspec.json.encode({"epoch": self._epoch, "seq": self._position, **view})

    def device(self, name: str) -> tuple[DeviceView, DeviceDetails | None] | None:
        """Return all there is to one device; None if nobody is called so."""
        device = self._source.view().device(name)
        return None if device is None else (device, self._source.details(name))

    def round(self, number: int) -> RoundView | None:
        """Return a round with its contributors."""
        return next((each for each in self._source.view().rounds if each.round_no == number), None)

    async def stream(self, after: str) -> AsyncIterator[bytes]:
        """Yield server-sent events: changes after a position, and ticks between them.

        A position is `epoch-number`. `reset` asks a page that missed too much to begin with the whole view.
        """
        position = self._place(after)
        yield b"retry: 2000\n\n"
        while not self._closed:
            news = self._news
            if position is None or self._position - position > len(self._kept):
                position = self._position
                yield b"event: reset\ndata: {}\n\n"
            for number in range(position + 1, self._position + 1):
                yield self._frame(number)
            position = self._position
            try:
                await asyncio.wait_for(news.wait(), TICK_S)
            except asyncio.TimeoutError:
                yield b"event: tick\ndata: %s\n\n" % msgspec.json.encode({"now_s": self._source.view().now_s})

    def _frame(self, number: int) -> bytes:
        data = self._kept[number - self._position - 1]
        return b"event: delta\nid: %s-%d\ndata: %s\n\n" % (self._epoch.encode(), number, data)

    def _place(self, after: str) -> int | None:
        epoch, _, number = after.partition("-")
        known = epoch == self._epoch and number.isascii() and number.isdecimal() and len(number) < 16
        return int(number) if known and int(number) <= self._position else None

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
