"""A link over TLS 1.3 with certificates on both sides."""

from __future__ import annotations

import asyncio
import datetime as dt
import ipaddress
import logging
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ofl_iot.transport.mqtt import MqttLink
from ofl_iot.transport.settings import TlsSettings


def _issue(folder: Path, name: str, issuer: tuple[Any, Any] | None = None) -> tuple[Any, Any]:
    """A certificate for `name` in `folder/name.pem`, its key in `folder/name.key`; self-signed without issuer."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    signer, signer_name = (key, subject) if issuer is None else (issuer[0], issuer[1].subject)
    now = dt.datetime.now(dt.timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(signer_name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .add_extension(_usage(authority=issuer is None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(signer, hashes.SHA256())
    )
    (folder / f"{name}.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / f"{name}.key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return key, certificate


def _usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


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
    authority = _issue(tmp_path, "ca")
    _issue(tmp_path, "broker", authority)
    _issue(tmp_path, "device", authority)
    _issue(tmp_path, "stranger")
    return tmp_path


def _server_context(folder: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(folder / "ca.pem"))
    context.load_cert_chain(folder / "broker.pem", folder / "broker.key")
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def test_a_link_speaks_tls_with_its_own_certificate(
    open_broker: Any, linked: Any, eventually: Any, certificates: Path
) -> None:
    tls = TlsSettings(
        ca=str(certificates / "ca.pem"), cert=str(certificates / "device.pem"), key=str(certificates / "device.key")
    )

    async def story() -> None:
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

    asyncio.run(story())


@pytest.fixture
def linking(impatient: Any, recorder: Any, eventually: Any) -> tuple[Any, Any, Any]:
    return impatient, recorder, eventually


@pytest.mark.parametrize("fault", ["unknown authority", "old protocol"])
def test_a_broker_that_cannot_be_trusted_is_refused(
    fault: str, linking: Any, certificates: Path, caplog: pytest.LogCaptureFixture
) -> None:
    impatient, recorder, eventually = linking
    context = _server_context(certificates)
    context.verify_mode = ssl.CERT_NONE
    ca = "stranger" if fault == "unknown authority" else "ca"
    if fault == "old protocol":
        context.maximum_version = ssl.TLSVersion.TLSv1_2

    async def story() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        async with TlsFront(context, 1) as port:
            link = MqttLink(impatient(port, tls=TlsSettings(ca=str(certificates / f"{ca}.pem"))), "a")
            handler = recorder()
            link.start(handler)
            await eventually(lambda: caplog.records)
            assert handler.events == []
            await link.stop()

    with caplog.at_level(logging.WARNING, logger="ofl_iot.transport.mqtt"):
        asyncio.run(story())
    assert ("CERTIFICATE_VERIFY_FAILED" if ca == "stranger" else "SSL") in caplog.text
