"""A fleet source that was recorded: one view, or a recording of several that is played."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from ofl_iot.errors import ConfigError
from ofl_iot.fleet_view.view import DeviceDetails, FleetView, decode_view

MAX_BYTES = 256 * 1024 * 1024


class _Recorded(msgspec.Struct):
    details: dict[str, DeviceDetails] = {}


class Replay:
    """Plays recorded views one after the other, as far apart as they were made. Implements `FleetSource`."""

    def __init__(self, views: list[FleetView], pages: dict[str, DeviceDetails], speed: float = 1.0) -> None:
        self._views = views
        self._pages = pages
        self._speed = speed
        self._at = 0

    def view(self) -> FleetView:
        """Return the view that is shown now; its `seq` is its place in the recording."""
        return msgspec.structs.replace(self._views[self._at], seq=self._at + 1)

    def details(self, device: str) -> DeviceDetails | None:
        """Return the recorded details of a device, if there are any."""
        return self._pages.get(device)

    async def changed(self, after: int) -> int:
        """Wait for the next view; after the last one, for ever."""
        while self._at + 1 <= after:
            if self._at + 1 == len(self._views):
                await asyncio.Event().wait()
            gap_s = self._views[self._at + 1].now_s - self._views[self._at].now_s
            await asyncio.sleep(max(0.0, gap_s / self._speed))
            self._at += 1
        return self._at + 1


def read_recording(file: Path, speed: float = 1.0) -> Replay:
    """Read a view (JSON), or several, one a line (.jsonl), or raise ConfigError."""
    try:
        if file.stat().st_size > MAX_BYTES:
            raise ConfigError(f"--replay {file}: larger than {MAX_BYTES >> 20} MiB; replay a part of it")
        data = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"--replay {file}: it cannot be read ({error.strerror})") from error
    texts = [line for line in data.splitlines() if line.strip()] if file.suffix == ".jsonl" else [data]
    if not texts:
        raise ConfigError(f"--replay {file}: there is no view in it; write one with `ofl status --json`")
    read = [
        _read(text, f"--replay {file}" + (f", line {number}" if len(texts) > 1 else ""))
        for number, text in enumerate(texts, 1)
    ]
    return Replay([view for view, _ in read], {name: page for _, pages in read for name, page in pages.items()}, speed)


def _read(text: bytes, place: str) -> tuple[FleetView, dict[str, DeviceDetails]]:
    try:
        return decode_view(text), msgspec.json.decode(text, type=_Recorded).details
    except (ConfigError, msgspec.DecodeError) as error:
        raise ConfigError(f"{place}: {error}") from error
