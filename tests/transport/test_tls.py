"""A link over TLS 1.3 with certificates on both sides."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path
from typing import Any

import pytest

from ofl_iot.transport.mqtt import MqttLink
from ofl_iot.transport.settings import TlsSettings
from tests.certificates import Authority
from tests.links import Recorder, impatient, linked
from tests.waiting import eventually


class TlsFront:
    """Ends TLS in front of a broker that has none."""

    def __init__(self, context: ssl.SSLContext, target_port: int) -> None:
        self._context = context
        self._target_port = target_port
        self._tasks: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> int:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self._context)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        back_reader, back_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        await asyncio.gather(self._pump(reader, back_writer), self._pump(back_reader, writer))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    authority = Authority(tmp_path)
    authority.issue("broker")
    authority.issue("device")
    Authority(tmp_path / "stranger")
    return tmp_path


def _server_context(folder: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(folder / "ca.pem"))
    context.load_cert_chain(folder / "broker.pem", folder / "broker.key")
    context.verify_mode = ssl.CERT_REQUIRED
    return context


async def test_a_link_speaks_tls_with_its_own_certificate(open_broker: Any, certificates: Path) -> None:
    tls = TlsSettings(
        ca=str(certificates / "ca.pem"), cert=str(certificates / "device.pem"), key=str(certificates / "device.key")
    )

    async with (
        open_broker() as port,
        TlsFront(_server_context(certificates), port) as tls_port,
        linked(tls_port, "a", "t", tls=tls) as (a, heard),
    ):
        sent = [bytes([i]) * 60_000 for i in range(10)]
        for payload in sent:
            assert a.publish("t", payload, qos=1)
        await eventually(lambda: len(heard.deliveries) == 10)
        assert heard.payloads == sent


@pytest.fixture
def linking() -> tuple[Any, Any, Any]:
    return impatient, Recorder, eventually


@pytest.mark.parametrize("fault", ["unknown authority", "old protocol"])
async def test_a_broker_that_cannot_be_trusted_is_refused(
    fault: str, linking: Any, certificates: Path, caplog: pytest.LogCaptureFixture
) -> None:
    impatient, recorder, eventually = linking
    context = _server_context(certificates)
    context.verify_mode = ssl.CERT_NONE
    ca = "stranger/ca" if fault == "unknown authority" else "ca"
    if fault == "old protocol":
        context.maximum_version = ssl.TLSVersion.TLSv1_2

    with caplog.at_level(logging.WARNING, logger="ofl_iot.transport"):
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        async with TlsFront(context, 1) as port:
            link = MqttLink(impatient(port, tls=TlsSettings(ca=str(certificates / f"{ca}.pem"))), "a")
            handler = recorder()
            link.start(handler)
            await eventually(lambda: caplog.records)
            assert handler.events == []
            await link.stop()
    assert ("CERTIFICATE_VERIFY_FAILED" if ca == "stranger/ca" else "SSL") in caplog.text
