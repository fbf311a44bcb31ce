"""The enrolment service: a small TLS server that lets devices in by token and renews by certificate."""

from __future__ import annotations

import asyncio
import logging
import signal
import ssl
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.serialization import Encoding

from ofl_agents.enrolment.authority import CERTIFICATE, SERVICE_LIFETIME_S, Authority
from ofl_agents.enrolment.files import write_private
from ofl_agents.enrolment.messages import (
    LENGTH_BYTES,
    Answer,
    AskAuthority,
    AskRevoked,
    AuthorityIs,
    Issued,
    Join,
    Refused,
    Revoked,
    ShareRequest,
    frame,
    length_of,
    read_question,
)
from ofl_iot.errors import ConfigError, OflError, ProtocolError
from ofl_iot.identity.certificates import certificate_from, read
from ofl_iot.identity.dates import shown

if TYPE_CHECKING:
    from typing_extensions import Self

log = logging.getLogger(__name__)

PATIENCE_S = 10.0
"""For the handshake, and again for the question."""
ANSWER_S = 60.0
"""For the answer: a revocation list may be long and a link slow."""
MAX_CONNECTIONS = 100
"""Whoever has not asked yet makes room for the next: idle connections cannot keep others out."""
UPKEEP_S = 86_400.0
SERVICE = "enrolment.pem"


class EnrolmentService:
    """The service, as long as the `async with` block lasts."""

    def __init__(self, authority: Authority, host: str, port: int, clock: Callable[[], float] = time.time) -> None:
        self._authority = authority
        self._address = (host, port)
        self._clock = clock
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_3
        self._context.load_verify_locations(authority.folder / CERTIFICATE)
        self._context.verify_mode = ssl.CERT_OPTIONAL  # newcomers have none yet
        self._open = 0
        self._idle: dict[asyncio.Task[bytes], None] = {}
        """Connections that have not asked yet, the oldest first."""
        self.port = 0

    async def __aenter__(self) -> Self:
        """Listen."""
        self.keep_up()
        host, port = self._address
        try:
            self._server = await asyncio.start_server(
                self._serve, host, port, ssl=self._context, ssl_handshake_timeout=PATIENCE_S, limit=1 << 16
            )
        except OSError as error:
            raise ConfigError(f"cannot listen on {host} port {port}: {error.strerror}; choose another") from error
        self.port = self._server.sockets[0].getsockname()[1]
        self._upkeep = asyncio.create_task(self._keep_up_daily(), name="enrolment upkeep")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop listening."""
        self._upkeep.cancel()
        self._server.close()
        await asyncio.gather(self._upkeep, return_exceptions=True)

    def keep_up(self) -> None:
        """A fresh certificate for the service and a fresh revocation list, which expire otherwise; tidy books."""
        now = self._clock()
        file = self._authority.folder / SERVICE
        write_private(file, self._authority.service_certificate(now))
        self._context.load_cert_chain(file)  # connections from now on see the new one
        self._authority.write_crl(now)
        self._authority.tidy(now)

    async def _keep_up_daily(self) -> None:
        while True:
            await asyncio.sleep(min(UPKEEP_S, SERVICE_LIFETIME_S / 3))
            try:
                self.keep_up()
            except OflError:
                log.exception("upkeep failed, trying again later")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= MAX_CONNECTIONS or self._make_room():
                await self._converse(reader, writer)
        except (asyncio.TimeoutError, asyncio.IncompleteReadError, OSError) as error:
            log.debug("connection broken off reason=%r", error)
        finally:
            self._open -= 1
            writer.close()

    def _make_room(self) -> bool:
        """End the connection that has been silent for longest; False if all others are being answered."""
        oldest = next(iter(self._idle), None)
        if oldest is None:
            return False
        del self._idle[oldest]
        oldest.cancel()
        return True

    async def _question(self, reader: asyncio.StreamReader) -> bytes:
        """What the peer asks; until it has, it may have to make room."""
        waiting = asyncio.ensure_future(self._read(reader))
        self._idle[waiting] = None
        try:
            return await asyncio.wait_for(waiting, PATIENCE_S)
        except asyncio.CancelledError:
            if waiting.cancelled() and waiting not in self._idle:
                raise asyncio.TimeoutError from None  # it made room
            raise
        finally:
            self._idle.pop(waiting, None)

    @staticmethod
    async def _read(reader: asyncio.StreamReader) -> bytes:
        return await reader.readexactly(length_of(await reader.readexactly(LENGTH_BYTES)))

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tls = writer.get_extra_info("ssl_object")
        certificate = tls.getpeercert(binary_form=True) if tls is not None else None
        try:
            question = read_question(await self._question(reader))
            answer = self._answer(question, certificate)
        except ProtocolError as error:
            log.warning("refused peer=%s reason=%s", writer.get_extra_info("peername"), error)
            answer = Refused(str(error)[:500])
        except OflError:
            log.exception("cannot answer")
            answer = Refused("the enrolment service cannot do that now: try again later")
        writer.write(frame(answer))
        await asyncio.wait_for(writer.drain(), ANSWER_S)

    def _answer(self, question: ShareRequest, certificate: bytes | None) -> Answer:
        authority, now = self._authority, self._clock()
        if isinstance(question, AskAuthority):
            return AuthorityIs(authority.certificate.public_bytes(Encoding.PEM))
        if isinstance(question, AskRevoked):
            return Revoked(authority.crl())
        if isinstance(question, Join):
            return _issued("admitted", authority.admit(question.secret, question.request, now))
        if certificate is None:
            return Refused("a renewal needs the present certificate; without one join with a token")
        return _issued("renewed", authority.renew(certificate, now))


def _issued(what: str, pem: bytes) -> Issued:
    """The answer, and a line for whoever looks after the authority."""
    credential = read(certificate_from(pem))
    until = shown(credential.validity.not_after)
    log.info("%s party=%s serial=%x until=%s", what, credential.bearer.name, credential.serial, until)
    return Issued(pem)


async def serve_until_signal(authority: Authority, host: str, port: int) -> None:
    """Run the service until the system asks the process to end."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with EnrolmentService(authority, host, port) as service:
        sys.stdout.write(f"listening host={host} port={service.port}\n")
        sys.stdout.flush()  # whoever started it with port 0 waits for this line
        await stop.wait()
