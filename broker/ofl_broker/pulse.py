"""The broker's pulse: it accepts a connection on its own port and answers its CONNECT, or it makes no progress."""

from __future__ import annotations

import asyncio
import os

from ofl_iot.runtime.watchdog import Health

PATIENCE_S = 10.0
_NAME = b"ofl-pulse-%d"
_CONNACK = 0x20
_DISCONNECT = b"\xe0\x00"


class BrokerPulse:
    """Knocks at a broker of this machine; implements `ofl_iot.runtime.watchdog.Watched`."""

    def __init__(self, host: str, port: int, *, patience_s: float = PATIENCE_S) -> None:
        everywhere = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104  # reached from within
        self._host = everywhere.get(host, host)
        self._port = port
        self._patience_s = patience_s

    async def pulse(self) -> Health:
        """Whether it answered; a refusal is an answer too."""
        try:
            await asyncio.wait_for(self._knock(), self._patience_s)
        except (OSError, EOFError, asyncio.TimeoutError) as error:
            return Health(ready=False, overdue=f"no answer on port {self._port} ({type(error).__name__})")
        return Health(ready=True, status=f"listening on port {self._port}")

    async def _knock(self) -> None:
        reader, writer = await asyncio.open_connection(self._host, self._port)
        try:
            writer.write(_connect(_NAME % os.getpid()))
            answer = await reader.readexactly(4)
            if answer[0] != _CONNACK:
                raise EOFError
            writer.write(_DISCONNECT)
            await writer.drain()
        finally:
            writer.close()


def _connect(name: bytes) -> bytes:
    """CONNECT of MQTT 3.1.1: clean session, `name` as client id and user name, no keep-alive."""
    text = len(name).to_bytes(2, "big") + name
    body = b"\x00\x04MQTT\x04\x82\x00\x00" + text + text
    return b"\x10" + bytes([len(body)]) + body
