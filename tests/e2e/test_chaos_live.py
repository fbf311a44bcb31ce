"""`ofl chaos --live`: real processes are killed, stopped and wiped behind bad links, and every chunk is counted."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

from ofl_agents.chaos.live import ORDER
from ofl_agents.chaos.party import read_journal
from ofl_agents.chaos.proxy import LinkShape, ShapedProxy
from ofl_agents.cli import main


def test_a_minute_of_faults_on_real_processes_loses_and_doubles_nothing(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    assert main(["chaos", "--live", "--minutes", "1", "--json", str(file), "--folder", str(tmp_path / "run")]) == 0
    figures = json.loads(file.read_text())
    assert (figures["lost"], figures["doubled"], figures["rested"]) == (0, 0, True)
    assert figures["released"] > 20
    assert {"wipe leader", "wipe member", "kill coordinator"} <= figures["faults"].keys() <= set(ORDER)
    assert figures["sent_per_settled"].keys() == {"good", "thin", "lossy", "windows"}
    assert "without_key_share" in figures


async def test_a_thin_link_takes_its_time_and_counts_what_passes() -> None:
    received, arrived = bytearray(), asyncio.Event()

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1000):
            received.extend(data)
        arrived.set()
        writer.close()

    server = await asyncio.start_server(swallow, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, ShapedProxy(port, LinkShape(bytes_s=20_000.0)) as proxy:
        _, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        began = time.monotonic()
        writer.write(bytes(10_000))
        writer.write_eof()
        await asyncio.wait_for(arrived.wait(), 20.0)
        assert time.monotonic() - began >= 0.45
        assert len(received) == proxy.sent_bytes == 10_000
        proxy.cut()
        reader, other = await asyncio.open_connection("127.0.0.1", proxy.port)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        other.close()
        writer.close()


def test_a_journal_cut_short_by_a_kill_is_read_up_to_there(tmp_path: Path) -> None:
    journal = tmp_path / "a.journal"
    journal.write_text("intent 0a 1 50 2.0 7.00\ndone 0a 1 50 2.0 7.00\nintent 0a 2 50 3.0 8.00\ndone 0a 2")
    assert [(each.store, each.seq, each.total) for each in read_journal(journal)] == [(b"\n", 1, 2.0)]


def test_a_contact_comes_and_goes() -> None:
    shape = LinkShape(open_s=20.0, every_s=120.0)
    assert [shape.is_open(at) for at in (0.0, 19.9, 20.0, 119.0, 120.0)] == [True, True, False, False, True]
    assert LinkShape().is_open(1e9)
