"""A broker's pulse: an answer on its own port, refusals included; silence and closed doors are none."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ofl_broker.pulse import BrokerPulse


async def test_a_broker_that_answers_is_ready(open_broker: Any) -> None:
    async with open_broker() as port:
        for host in ("127.0.0.1", "0.0.0.0"):  # noqa: S104
            health = await BrokerPulse(host, port).pulse()
            assert health.ready
            assert not health.overdue
            assert health.status == f"listening on port {port}"


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n", None])
async def test_a_port_that_is_closed_silent_or_not_a_broker_s_is_no_progress(answer: bytes | None) -> None:
    closed = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if answer is not None:
            writer.write(answer)
        else:
            await reader.read()
        writer.close()
        closed.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        health = await BrokerPulse("127.0.0.1", port, patience_s=0.2).pulse()
        assert not health.ready
        assert f"no answer on port {port}" in health.overdue
        await asyncio.wait_for(closed.wait(), 10)


async def test_a_port_where_nobody_listens_is_no_progress(free_port: int) -> None:
    assert "ConnectionRefusedError" in (await BrokerPulse("127.0.0.1", free_port).pulse()).overdue
