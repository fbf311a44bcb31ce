"""The device's side: make keys, be admitted, renew. Private keys never leave the folder."""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding

from ofl_agents.enrolment.files import make_private_folder, new_tls_key, pem_of, write_private
from ofl_agents.enrolment.messages import (
    LENGTH_BYTES,
    MAX_ANSWER_BYTES,
    MAX_BYTES,
    Answer,
    AskAuthority,
    AskRevoked,
    AuthorityIs,
    Issued,
    Join,
    Refused,
    Renew,
    Revoked,
    ShareRequest,
    frame,
    length_of,
    read_answer,
)
from ofl_iot.errors import ConfigError, CryptoError, ProtocolError, RefusedError, TransportError
from ofl_iot.identity.certificates import (
    Credential,
    certificate_from,
    federation_of,
    fingerprint_of,
    make_request,
    public_bytes,
    serials_revoked_in,
    verify,
)
from ofl_iot.identity.dates import shown
from ofl_iot.identity.enrolment import Enrolment
from ofl_iot.identity.names import BROKER, ENROLMENT, Bearer
from ofl_iot.identity.tokens import JoinToken
from ofl_iot.ids import DeviceId, FederationId
from ofl_iot.transport.identity import CA, CERTIFICATE, CRL, KEY, SEALING, IdentityFolder
from ofl_iot.transport.settings import Address

SERVER = "enrolment.json"
TIMEOUT_S = 15.0


@dataclass(frozen=True)
class Newcomer:
    """A party that is about to be enrolled in a folder."""

    folder: Path
    name: DeviceId
    clock: Callable[[], float] = time.time

    def join(self, server: Address, token: JoinToken) -> Enrolment:
        """Be admitted with a token; when the answer was lost, the same again gets the same answer."""
        if token.name is not None and token.name != self.name:
            raise ConfigError(f"this token is for {token.name}, not for {self.name}: ask for another")
        self.check_free()
        authority = fetch_authority(server, token.fingerprint)
        make_private_folder(self.folder)
        write_private(self.folder / CA, authority)
        (self.folder / CRL).unlink(missing_ok=True)  # of an earlier authority, perhaps
        request = self.request(federation_of(certificate_from(authority)))
        answer = ask(server, Join(token.secret, request), trusting(self.folder / CA))
        if not isinstance(answer, Issued):
            raise _unexpected(server, answer)
        enrolment = self.accept(answer.certificate)
        write_private(self.folder / SERVER, json.dumps({"server": str(server)}).encode() + b"\n")
        return enrolment

    def check_free(self) -> None:
        """ConfigError if the folder already has an identity that is still good."""
        held = IdentityFolder(self.folder, self.clock)
        if not held.complete:
            return
        try:
            until = held.load().credential.validity.not_after
        except ConfigError:
            return  # expired or damaged: joining mends it
        raise ConfigError(
            f"{self.folder} is enrolled until {shown(until)}: renew it with `ofl enroll renew`, or remove the folder "
            "to begin with new keys"
        )

    def request(self, federation: FederationId) -> bytes:
        """A request for a certificate (PEM), with keys that are made now or were made before."""
        make_private_folder(self.folder)
        held = IdentityFolder(self.folder, self.clock)
        if not (self.folder / KEY).exists():
            write_private(self.folder / KEY, pem_of(new_tls_key()))
        sealing = b""
        if self.name != BROKER:
            if not (self.folder / SEALING).exists():
                write_private(self.folder / SEALING, pem_of(X25519PrivateKey.generate()))
            sealing = held.sealing_key().public_key().public_bytes_raw()
        return make_request(Bearer(federation, self.name, sealing), held.private_key())

    def accept(self, certificate: bytes) -> Enrolment:
        """Check the authority's answer and keep it: from now on the folder is an identity."""
        held = IdentityFolder(self.folder, self.clock)
        credential = _checked(certificate, self.folder, self.clock())
        if credential.bearer.name != self.name or credential.public != public_bytes(held.private_key().public_key()):
            raise ConfigError(f"the certificate is not for {self.name} and the key in {self.folder}: ask again")
        write_private(self.folder / CERTIFICATE, certificate)
        return held.load()


def renew(held: IdentityFolder, server: Address | None = None) -> Enrolment:
    """A new certificate for the same keys, from the service that gave the present one."""
    before = held.load()
    server = server or server_of(held)
    if server is None:
        raise ConfigError(
            f"{held.path} was enrolled by file and knows no enrolment service: name one with --server, or carry "
            "a request to the authority again"
        )
    answer = ask(server, Renew(), held.context())
    if not isinstance(answer, Issued):
        raise _unexpected(server, answer)
    credential = _checked(answer.certificate, held.path, held.clock())
    if (credential.bearer, credential.public) != (before.credential.bearer, before.credential.public):
        raise CryptoError("the enrolment service answered with a certificate for other names or keys: it was not kept")
    write_private(held.path / CERTIFICATE, answer.certificate)
    return held.load()


def fetch_crl(held: IdentityFolder, server: Address | None = None) -> bytes:
    """The revocation list, checked and kept in the folder."""
    server = server or server_of(held)
    if server is None:
        raise ConfigError(f"{held.path} knows no enrolment service: name one with --server")
    answer = ask(server, AskRevoked(), trusting(held.path / CA))
    if not isinstance(answer, Revoked):
        raise _unexpected(server, answer)
    serials_revoked_in(answer.crl, certificate_from((held.path / CA).read_bytes()))
    write_private(held.path / CRL, answer.crl, 0o644)
    return answer.crl


def server_of(held: IdentityFolder) -> Address | None:
    """The service that the folder was enrolled by; None if it was enrolled by file."""
    try:
        return parse_server(json.loads((held.path / SERVER).read_text())["server"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{held.path / SERVER} cannot be read: name the service with --server") from error


def parse_server(text: str) -> Address:
    """Read `host:port`."""
    host, _, port = str(text).rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 1 <= int(port) <= 65_535:
        raise ConfigError(f"enrolment service {text!r}: write it as host:port, for example ca.example:8884")
    return Address(host, int(port))


def fetch_authority(server: Address, fingerprint: bytes) -> bytes:
    """The authority's certificate (PEM), from a stranger, checked against the fingerprint of the token.

    Nothing secret is said on this connection: whom it leads to is known only afterwards.
    """
    stranger = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    stranger.minimum_version = ssl.TLSVersion.TLSv1_3
    stranger.check_hostname = False
    stranger.verify_mode = ssl.CERT_NONE
    answer = ask(server, AskAuthority(), stranger)
    if not isinstance(answer, AuthorityIs):
        raise _unexpected(server, answer)
    certificate = certificate_from(answer.certificate)
    if fingerprint_of(certificate) != fingerprint:
        raise CryptoError(
            f"{server} does not go by the authority that made this token: somebody may be in between, or the token "
            "is of another federation"
        )
    return certificate.public_bytes(Encoding.PEM)


def trusting(authority: Path) -> ssl.SSLContext:
    """A context that believes the enrolment service of this authority and nobody else."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(authority)
    return context


def ask(server: Address, question: ShareRequest, context: ssl.SSLContext) -> Answer:
    """One question, one answer; RefusedError with the service's reason, TransportError if it cannot be reached."""
    most = MAX_BYTES if context.verify_mode == ssl.CERT_NONE else MAX_ANSWER_BYTES
    try:
        with (
            socket.create_connection(server, timeout=TIMEOUT_S) as raw,
            context.wrap_socket(raw, server_hostname=ENROLMENT) as tls,
        ):
            tls.sendall(frame(question))
            answer = read_answer(_exactly(tls, length_of(_exactly(tls, LENGTH_BYTES), most)))
    except ssl.SSLCertVerificationError as error:
        raise CryptoError(
            f"the enrolment service {server} is not to be trusted ({error.verify_message}): check the address and "
            "this device's clock"
        ) from error
    except ssl.SSLError as error:
        reason = str(error.reason or error).replace("_", " ").lower()
        raise TransportError(
            f"the enrolment service {server} broke off ({reason}): is this party's certificate still good?"
        ) from error
    except OSError as error:
        raise TransportError(f"no answer from the enrolment service {server}: {error.strerror or error}") from error
    if isinstance(answer, Refused):
        raise RefusedError(f"the enrolment service refuses: {answer.reason}")
    return answer


def _exactly(tls: ssl.SSLSocket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        piece = tls.recv(count - len(data))
        if not piece:
            raise TransportError(
                "the enrolment service closed the connection before it had answered: try again, and if that does not "
                "help see whether this party's certificate is still good"
            )
        data += piece
    return bytes(data)


def _checked(certificate: bytes, folder: Path, now: float) -> Credential:
    authority = certificate_from((folder / CA).read_bytes())
    return verify(certificate_from(certificate), authority, now)


def _unexpected(server: Address, answer: Answer) -> ProtocolError:
    return ProtocolError(f"{server} answered {type(answer).__name__}, which was not asked: is it an enrolment service?")
