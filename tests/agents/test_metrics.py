"""The metrics endpoint as a real server: figures at one address, nothing at another."""

from __future__ import annotations

import asyncio
import http.client
import signal
import subprocess
import sys
from pathlib import Path

OFL = Path(sys.executable).with_name("ofl")
RECORDED = Path(__file__).parents[1] / "fleet_view" / "recorded" / "north-depot.json"


def test_prometheus_reads_the_figures_and_ctrl_c_ends_it() -> None:
    command = [str(OFL), "metrics", "--view", str(RECORDED), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 -- our own command
        try:
            assert process.stdout is not None
            address = process.stdout.readline().split("http://")[1].split("/")[0]
            connection = http.client.HTTPConnection(address, timeout=10)
            connection.request("GET", "/metrics")
            answer = connection.getresponse()
            assert (answer.status, answer.headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
            assert b'ofl_observer_up{federation="north-depot"} 1' in answer.read()
            for method, path, status in (("GET", "/", 404), ("POST", "/metrics", 405), ("HEAD", "/metrics", 200)):
                connection.request(method, path)
                answer = connection.getresponse()
                assert (answer.status, answer.read() == b"") == (status, method == "HEAD")
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(10) == 0


async def test_a_request_that_is_too_long_is_dropped() -> None:
    command = [str(OFL), "metrics", "--view", str(RECORDED), "--listen", "127.0.0.1:0"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    port = int((await process.stdout.readline()).decode().rsplit(":", 1)[1].split("/")[0])
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /" + b"x" * 100_000)
        assert await asyncio.wait_for(reader.read(), 15) == b""
        writer.close()
    except ConnectionError:
        pass
    finally:
        process.terminate()
        await process.wait()
