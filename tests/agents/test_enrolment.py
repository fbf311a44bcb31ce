"""Joining, renewing and revoking over real sockets; the folder that results; what goes wrong and is told."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from ofl_agents.enrolment import client
from ofl_agents.enrolment.authority import Authority
from ofl_agents.enrolment.client import Newcomer, ask, fetch_crl, parse_server, renew, server_of, trusting
from ofl_agents.enrolment.messages import (
    Answer,
    AskAuthority,
    AuthorityIs,
    Join,
    Refused,
    ShareRequest,
    frame,
    length_of,
    read_answer,
    read_question,
)
from ofl_agents.enrolment.service import MAX_CONNECTIONS, EnrolmentService
from ofl_iot.crypto.entropy import SystemEntropy
from ofl_iot.errors import ConfigError, CryptoError, DecodeError, ProtocolError, RefusedError, TransportError
from ofl_iot.identity.certificates import LIFETIME_S, Validity, serials_revoked_in
from ofl_iot.identity.names import ENROLMENT
from ofl_iot.identity.tokens import JoinToken
from ofl_iot.ids import DeviceId
from ofl_iot.transport.identity import CA, CERTIFICATE, CRL, KEY, IdentityFolder
from ofl_iot.transport.settings import Address
from tests.identity.certs import FEDERATION

HOUR_S = 3600.0
TRUCK = DeviceId("truck-1")


@dataclass
class Running:
    """An authority with its service, in a thread of its own; `ahead_s` moves the service's clock."""

    folder: Path
    ahead_s: float = 0.0
    address: Address = field(default=Address("127.0.0.1", 0))
    ca: Authority = field(init=False)

    def now(self) -> float:
        return time.time() + self.ahead_s

    def token(self, name: str | None = TRUCK, **more: Any) -> JoinToken:
        return self.ca.make_token(DeviceId(name) if name else None, self.now(), HOUR_S, **more)


@contextlib.contextmanager
def serving(folder: Path, ahead_s: float = 0.0) -> Iterator[Running]:
    running = Running(folder, ahead_s)
    running.ca = Authority.found(folder, FEDERATION, time.time())
    up, loop = threading.Event(), asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        async with EnrolmentService(running.ca, "127.0.0.1", 0, running.now) as service:
            running.address = Address("127.0.0.1", service.port)
            up.set()
            await stop.wait()
        await asyncio.sleep(0)

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert up.wait(20)
        yield running
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(20)
        loop.close()
        running.ca.close()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Running]:
    with serving(tmp_path / "ca") as running:
        yield running


@pytest.fixture
def enrolled(service: Running, tmp_path: Path) -> IdentityFolder:
    Newcomer(tmp_path / "truck", TRUCK).join(service.address, service.token())
    return IdentityFolder(tmp_path / "truck")


# --- joining


def test_a_device_joins_with_keys_of_its_own_and_files_that_others_cannot_read(
    service: Running, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    token = service.token()
    with caplog.at_level("DEBUG"):
        enrolment = Newcomer(tmp_path / "truck", TRUCK).join(service.address, token)
    folder = tmp_path / "truck"
    assert enrolment.name == TRUCK
    assert enrolment == IdentityFolder(folder).load()
    assert (folder.stat().st_mode & 0o777) == 0o700
    assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o600}
    assert server_of(IdentityFolder(folder)) == service.address
    secrets = [token.text(), token.secret.hex(), (folder / KEY).read_text(), enrolment.sealing_private.hex()]
    assert not any(secret in caplog.text for secret in secrets)
    books = b"".join(file.read_bytes() for file in service.ca.folder.iterdir())
    assert (folder / KEY).read_bytes().split(b"\n")[1] not in books
    assert enrolment.sealing_private not in books


def test_a_lost_answer_is_given_again_and_a_second_device_does_not_get_in(service: Running, tmp_path: Path) -> None:
    token = service.token(None)
    newcomer = Newcomer(tmp_path / "truck", TRUCK)
    first = newcomer.join(service.address, token)
    (tmp_path / "truck" / CERTIFICATE).unlink()
    assert newcomer.join(service.address, token) == first
    with pytest.raises(RefusedError, match="used before"):
        Newcomer(tmp_path / "thief", DeviceId("truck-2")).join(service.address, token)
    assert not (tmp_path / "thief" / CERTIFICATE).exists()


def test_an_enrolled_folder_is_not_enrolled_again(service: Running, enrolled: IdentityFolder) -> None:
    before = {file: file.read_bytes() for file in enrolled.path.iterdir()}
    with pytest.raises(ConfigError, match="ofl enroll renew"):
        Newcomer(enrolled.path, TRUCK).join(service.address, service.token())
    assert {file: file.read_bytes() for file in enrolled.path.iterdir()} == before


def test_a_token_for_another_is_not_even_shown(service: Running, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="for truck-9, not for truck-1"):
        Newcomer(tmp_path / "truck", TRUCK).join(service.address, service.token("truck-9"))


def test_an_expired_token_is_refused(service: Running, tmp_path: Path) -> None:
    token = service.token()
    service.ahead_s = 2 * HOUR_S
    with pytest.raises(RefusedError, match="expired at"):
        Newcomer(tmp_path / "truck", TRUCK).join(service.address, token)


def test_a_service_of_another_authority_never_sees_the_token(
    service: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[ShareRequest] = []
    real = client.ask

    def listening(server: Address, question: ShareRequest, context: ssl.SSLContext) -> Answer:
        asked.append(question)
        return real(server, question, context)

    monkeypatch.setattr(client, "ask", listening)
    with serving(tmp_path / "impostor") as impostor, pytest.raises(CryptoError, match="somebody may be in between"):
        Newcomer(tmp_path / "truck", TRUCK).join(impostor.address, service.token())
    assert asked == [AskAuthority()]
    assert not (tmp_path / "truck").exists()


def test_an_impostor_that_shows_the_right_certificate_without_its_key_is_found_out(
    service: Running, tmp_path: Path
) -> None:
    """It relays the authority's public certificate, but cannot hold a TLS connection in its name."""
    token = service.token()
    with serving(tmp_path / "impostor") as impostor:
        ca = tmp_path / "ca.pem"
        ca.write_bytes((service.ca.folder / "ca.pem").read_bytes())
        with pytest.raises(CryptoError, match="not to be trusted"):
            ask(impostor.address, Join(token.secret, b""), trusting(ca))


def test_a_device_cannot_pose_as_the_enrolment_service(service: Running, enrolled: IdentityFolder) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(enrolled.path / CERTIFICATE, enrolled.path / KEY)

    def pose(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            context.wrap_socket(listener.accept()[0], server_side=True).close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=pose, args=(listener,))
        thread.start()
        with pytest.raises(CryptoError, match="not to be trusted"):
            ask(Address(*listener.getsockname()), AskAuthority(), trusting(enrolled.path / CA))
        thread.join(20)


def test_nobody_there_and_somebody_else_there_are_told(free_port: int, tmp_path: Path) -> None:
    token = JoinToken.generate(bytes(32), TRUCK, SystemEntropy())
    with pytest.raises(TransportError, match="no answer from the enrolment service"):
        Newcomer(tmp_path / "truck", TRUCK).join(Address("127.0.0.1", free_port), token)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up() -> None:
            listener.accept()[0].close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        with pytest.raises(TransportError):
            Newcomer(tmp_path / "truck", TRUCK).join(Address(*listener.getsockname()), token)
        thread.join(20)


# --- renewing, revoking


def test_a_renewed_certificate_lasts_longer_for_the_same_keys(service: Running, enrolled: IdentityFolder) -> None:
    before = enrolled.load()
    service.ahead_s = LIFETIME_S / 2
    later = IdentityFolder(enrolled.path, service.now)
    after = renew(later)
    assert after == later.load()
    assert after.credential.validity.not_after > before.credential.validity.not_after + LIFETIME_S / 3
    assert (after.credential.bearer, after.sealing_private) == (before.credential.bearer, before.sealing_private)


def test_a_revoked_device_is_not_renewed_and_others_hear_of_it(
    service: Running, enrolled: IdentityFolder, tmp_path: Path
) -> None:
    other = IdentityFolder(tmp_path / "truck-2")
    Newcomer(other.path, DeviceId("truck-2")).join(service.address, service.token("truck-2"))
    service.ca.revoke(TRUCK, service.now())
    with pytest.raises(RefusedError, match="was revoked"):
        renew(enrolled)
    fetch_crl(other)
    assert other.load().revoked == {enrolled.load().credential.serial}
    assert serials_revoked_in((other.path / CRL).read_bytes(), service.ca.certificate)


def test_a_renewal_needs_a_certificate_that_is_still_good(service: Running, enrolled: IdentityFolder) -> None:
    with pytest.raises(RefusedError, match="needs the present certificate"):
        ask(service.address, client.Renew(), trusting(enrolled.path / CA))
    with pytest.raises(ConfigError, match="expired at"):
        renew(IdentityFolder(enrolled.path, lambda: time.time() + 2 * LIFETIME_S))


def test_a_certificate_of_another_authority_is_not_renewed(
    service: Running, enrolled: IdentityFolder, tmp_path: Path
) -> None:
    with serving(tmp_path / "other") as other:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(other.ca.folder / "ca.pem")
        context.load_cert_chain(enrolled.path / CERTIFICATE, enrolled.path / KEY)
        with pytest.raises(TransportError, match="still good"):
            ask(other.address, client.Renew(), context)
    assert renew(enrolled)


def test_an_expired_device_joins_again_in_its_folder_with_a_new_token(service: Running, tmp_path: Path) -> None:
    folder = tmp_path / "truck"
    first = Newcomer(folder, TRUCK).join(service.address, service.token(lifetime_s=600.0))
    service.ahead_s = HOUR_S
    again = Newcomer(folder, TRUCK, service.now).join(service.address, service.token())
    assert again.credential.public == first.credential.public
    assert again.credential.serial != first.credential.serial


def test_a_folder_that_was_enrolled_by_file_says_how_to_renew(enrolled: IdentityFolder) -> None:
    (enrolled.path / client.SERVER).unlink()
    with pytest.raises(ConfigError, match="--server"):
        renew(enrolled)
    with pytest.raises(ConfigError, match="--server"):
        fetch_crl(enrolled)
    (enrolled.path / client.SERVER).write_text("[]")
    with pytest.raises(ConfigError, match="--server"):
        server_of(enrolled)


# --- the service holds out


def test_silence_and_nonsense_do_not_stop_the_service(service: Running, tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    idle = [socket.create_connection(service.address) for _ in range(5)]
    for junk in (
        b"\x00\x00\x00\x03abc",
        b"\xff\xff\xff\xff",
        frame(AskAuthority())[:4] + b"\x92\x09\x91\xa1x" + bytes(9),
    ):
        with context.wrap_socket(socket.create_connection(service.address)) as tls:
            tls.sendall(junk)
            assert b"refused" in tls.recv(1000)
    assert Newcomer(tmp_path / "truck", TRUCK).join(service.address, service.token()).name == TRUCK
    for each in idle:
        each.close()


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x92\x02\x91\xa5renew", b"\x92\x01\x91\xa4what", b"\x91\x01"])
def test_what_is_no_message_is_refused(body: bytes) -> None:
    with pytest.raises(DecodeError):
        read_question(body)
    with pytest.raises(DecodeError):
        read_answer(body)


def test_an_answer_that_was_not_asked_for_is_refused(
    enrolled: IdentityFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "ask", lambda *_: client.Revoked(b""))
    tries: list[Callable[[], object]] = [
        lambda: renew(enrolled),
        lambda: client.fetch_authority(Address("x", 1), bytes(32)),
    ]
    for attempt in tries:
        with pytest.raises(ProtocolError, match="was not asked"):
            attempt()
    monkeypatch.setattr(client, "ask", lambda *_: AuthorityIs(b""))
    with pytest.raises(ProtocolError, match="was not asked"):
        fetch_crl(enrolled)


@pytest.mark.parametrize("text", ["", "host", "host:", ":1", "host:0", "host:99999", "host:x"])
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="host:port"):
        parse_server(text)
    assert parse_server("[::1]:2") == Address("::1", 2)


def idle_connections(service: Running, count: int, stack: contextlib.ExitStack) -> None:
    """Connections that finish their handshake and never say anything."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    for _ in range(count):
        raw = stack.enter_context(socket.create_connection(service.address, timeout=20))
        stack.enter_context(context.wrap_socket(raw))


def test_a_hundred_idle_connections_do_not_silence_the_service(service: Running, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        idle_connections(service, MAX_CONNECTIONS + 20, stack)
        assert Newcomer(tmp_path / "truck", TRUCK).join(service.address, service.token()).name == TRUCK


def test_what_is_no_text_is_answered_in_words(service: Running, enrolled: IdentityFolder) -> None:
    """The attack: a tag that is not UTF-8 raised in the service."""
    tag = b"\xff\xfe\n forged"
    body = b"\x92\x01\x91" + bytes([0xA0 + len(tag)]) + tag
    with (
        socket.create_connection(service.address, timeout=20) as raw,
        trusting(enrolled.path / CA).wrap_socket(raw, server_hostname=ENROLMENT) as tls,
    ):
        tls.sendall(len(body).to_bytes(4, "big") + body)
        length = length_of(tls.recv(4))
        answer = read_answer(tls.recv(length))
    assert isinstance(answer, Refused)
    assert "not a message of the enrolment" in answer.reason
    assert answer.reason.isprintable()


def test_a_revocation_list_of_more_than_a_mebibyte_is_fetched(service: Running, enrolled: IdentityFolder) -> None:
    now, signer = service.now(), service.ca._signer
    serials = [(number + 1, now) for number in range(40_000)]
    listed = signer.revocation_list(serials, 10**6, Validity.beginning(now, LIFETIME_S)).public_bytes(Encoding.PEM)
    assert len(listed) > 1 << 20
    (service.ca.folder / CRL).write_bytes(listed)
    assert fetch_crl(enrolled) == listed


async def test_a_port_that_is_taken_is_told(service: Running, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot listen"):
        await EnrolmentService(service.ca, *service.address).__aenter__()
