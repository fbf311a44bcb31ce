"""Drops the session that a broker keeps for a client."""

from __future__ import annotations

from typing import Any

from ofl_iot.transport.connection import Client, Connection
from ofl_iot.transport.settings import Address, MqttSettings
from ofl_iot.transport.waiting import first_of


async def drop_session(client: Client, address: Address, settings: MqttSettings) -> bool:
    """Connect for once with a clean client; the broker forgets its session, and this one when it ends.

    Returns whether the broker accepted.
    """
    connection, accepted = Connection(client, lambda: None), False

    def on_connect(*_: Any) -> None:
        nonlocal accepted
        accepted = True
        client.disconnect()

    client.on_connect = on_connect
    try:
        connection.open(address, settings.keepalive_s)
        await first_of(connection.ended, timeout_s=settings.connect_timeout_s)
    finally:
        client.abandon()
    return accepted
