"""The federation's authority: a folder with its key, its books and its revocation list.

    ca.key        the private key, readable by its owner alone: whoever has it admits whom he likes
    ca.pem        the certificate, which every party trusts
    books.sqlite  tokens (hashed) and certificates
    crl.pem       the revocation list, for the brokers

Every decision takes `now`, in seconds since 1970.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from ofl_agents.enrolment.files import make_private_folder, new_tls_key, pem_of, write_private
from ofl_agents.enrolment.registry import CertificateRecord, Registry, TokenRecord
from ofl_iot.crypto.entropy import SystemEntropy
from ofl_iot.errors import ConfigError, CryptoError, RefusedError
from ofl_iot.identity.certificates import (
    BROKER_LIFETIME_S,
    DAY_S,
    LIFETIME_S,
    Credential,
    Request,
    SigningAuthority,
    Validity,
    certificate_from,
    checked_host,
    fingerprint_of,
    public_bytes,
    read,
    read_request,
    verify,
)
from ofl_iot.identity.dates import shown
from ofl_iot.identity.names import BROKER, ENROLMENT, PARTIES, Bearer
from ofl_iot.identity.tokens import JoinToken, hash_of
from ofl_iot.ids import DeviceId, FederationId

if TYPE_CHECKING:
    from cryptography import x509

KEY, CERTIFICATE, BOOKS, CRL = "ca.key", "ca.pem", "books.sqlite", "crl.pem"
CRL_LIFETIME_S = 90 * DAY_S
"""A broker refuses everybody once its list is older than this; the enrolment service writes a new one every day."""
SERVICE_LIFETIME_S = 7 * DAY_S
KEPT_S = 90 * DAY_S
"""How long expired certificates and tokens stay in the books, for those who ask what happened."""
MAX_LIFETIME_S = 825 * DAY_S


class Authority:
    """An authority, open for business."""

    def __init__(self, folder: Path) -> None:
        """Open the folder that `found` made."""
        self.folder = folder
        key = folder / KEY
        try:
            mode = key.stat().st_mode & 0o777
            if mode & 0o077:
                raise ConfigError(f"{key} is open to others (mode {mode:o}): run chmod 600 {key}")
            private = load_pem_private_key(key.read_bytes(), password=None)
            certificate = certificate_from((folder / CERTIFICATE).read_bytes())
        except FileNotFoundError as error:
            raise ConfigError(f"there is no {error.filename}: make the authority with `ofl ca init`") from error
        except (OSError, ValueError, CryptoError) as error:
            raise ConfigError(f"the authority in {folder} cannot be used: {error}") from error
        if not isinstance(private, EllipticCurvePrivateKey):
            raise ConfigError(f"{key} holds no ECDSA key: restore it from your backup")
        self._signer = SigningAuthority(certificate, private)
        self._entropy = SystemEntropy()
        self.books = Registry(folder / BOOKS)

    @classmethod
    def found(cls, folder: Path, federation: FederationId, now: float) -> Authority:
        """Make a new authority; an existing one is never overwritten."""
        if (folder / KEY).exists():
            raise ConfigError(f"{folder} already holds an authority: choose another folder, or use that one")
        make_private_folder(folder)
        key = new_tls_key()
        signer = SigningAuthority.found(federation, key, now, SystemEntropy())
        write_private(folder / BOOKS, b"")
        write_private(folder / CERTIFICATE, signer.certificate.public_bytes(Encoding.PEM), 0o644)
        write_private(folder / KEY, pem_of(key))
        authority = cls(folder)
        authority.write_crl(now)
        return authority

    def close(self) -> None:
        """Release the books."""
        self.books.close()

    @property
    def certificate(self) -> x509.Certificate:
        """What every party trusts."""
        return self._signer.certificate

    @property
    def federation(self) -> FederationId:
        """Whose authority this is."""
        return self._signer.federation

    @property
    def fingerprint(self) -> bytes:
        """How parties know it."""
        return fingerprint_of(self.certificate)

    # --- admission

    def make_token(
        self,
        name: DeviceId | None,
        now: float,
        valid_s: float,
        *,
        lifetime_s: float | None = None,
        hosts: Sequence[str] = (),
    ) -> JoinToken:
        """A token for one admission within `valid_s`; without a name for any device that is not enrolled yet."""
        hosts = tuple(map(checked_host, hosts))
        if (name == BROKER) != bool(hosts):
            raise ConfigError(f"host names belong to the {BROKER}, and it needs some: `--id {BROKER} --host NAME`")
        lifetime_s = lifetime_s or default_lifetime_s(name)
        if not 0 < lifetime_s <= MAX_LIFETIME_S:
            raise ConfigError(f"a certificate is valid for at most {MAX_LIFETIME_S / DAY_S:.0f} days")
        if not valid_s > 0:
            raise ConfigError("a token must be valid for some time: choose a positive number of minutes")
        token = JoinToken.generate(self.fingerprint, name, self._entropy)
        with self.books.transaction():
            self.books.add_token(TokenRecord(hash_of(token.secret), name, hosts, lifetime_s, now + valid_s))
        return token

    def admit(self, secret: bytes, request_pem: bytes, now: float) -> bytes:
        """The certificate (PEM) for whoever shows a token; RefusedError says why not.

        A token is used once. The same request again, because the answer was lost, gets the same answer.
        """
        request = self._readable(request_pem)
        with self.books.transaction():
            token = self.books.token(hash_of(secret))
            if token is None:
                raise RefusedError("this token is unknown here: ask for a new one (`ofl enroll token`)")
            if token.name is not None and token.name != request.bearer.name:
                raise RefusedError(f"this token is for {token.name}, not for {request.bearer.name}")
            if now > token.expires_at:
                raise RefusedError(f"this token expired at {shown(token.expires_at)}: ask for a new one")
            if token.serial is not None:
                return self._same_answer(token.serial, request)
            if token.name is None:
                self._check_newcomer(request.bearer.name, now)
            superseded = self._supersede(request.bearer.name, now)
            issued = self._issue(request, now, token.lifetime_s, token.hosts)
            self.books.use_token(token.hash, issued.serial)
        if superseded:
            self.write_crl(now)
        return issued.pem

    def sign(
        self,
        name: DeviceId,
        request_pem: bytes,
        now: float,
        lifetime_s: float | None = None,
        hosts: Sequence[str] = (),
    ) -> bytes:
        """The certificate (PEM) for a request that the operator carried here in a file, for the party he expects."""
        asking = self._readable(request_pem).bearer.name
        if asking != name:
            raise RefusedError(
                f"this request is of {asking}, not of {name}: nothing was signed; find out who made it before you "
                f"sign it with `--id {asking}`"
            )
        token = self.make_token(name, now, valid_s=60.0, lifetime_s=lifetime_s, hosts=hosts)
        return self.admit(token.secret, request_pem, now)

    def renew(self, shown_certificate: bytes, now: float) -> bytes:
        """A certificate (PEM) for the keys and names of a valid one (DER), whose bearer is connected by it.

        Until half of its lifetime has passed that is the newest one there is: however often somebody asks, a party
        has two valid certificates at most. So an answer that was lost is given again, too.
        """
        credential = self._known(shown_certificate, now)
        key = certificate_from(shown_certificate).public_key()
        request = Request(credential.bearer, key)  # type: ignore[arg-type]  # `read` saw that it is on P-256
        with self.books.transaction():  # nobody is revoked between the look and the certificate
            old = self.books.certificate(credential.serial)
            if old is None:
                raise RefusedError(f"the certificate of {credential.bearer.name} is not in the authority's books")
            if old.revoked_at is not None:
                raise RefusedError(f"the certificate of {old.name} was revoked: ask for a token if that was a mistake")
            newest = max(self._like(old, now), key=lambda each: each.not_after)
            if now < newest.not_after - newest.lifetime_s / 2:
                return newest.pem
            return self._issue(request, now, old.lifetime_s, old.hosts).pem

    def service_certificate(self, now: float) -> bytes:
        """A fresh key and certificate (PEM) for the enrolment service itself."""
        key = new_tls_key()
        request = Request(Bearer(self.federation, ENROLMENT), key.public_key())
        validity = Validity.beginning(now, SERVICE_LIFETIME_S)
        certificate = self._signer.issue(request, validity, self._entropy, (ENROLMENT,))
        return pem_of(key) + certificate.public_bytes(Encoding.PEM)

    # --- revocation

    def revoke(self, name: str, now: float, reason: str = "") -> list[CertificateRecord]:
        """Take back every valid certificate of a party; ConfigError if it has none."""
        with self.books.transaction():
            valid = [each for each in self.books.certificates(name) if each.valid(now)]
            if not valid:
                raise ConfigError(f"{name!r} has no valid certificate: see `ofl enroll list`")
            for each in valid:
                self.books.revoke(each.serial, now, reason)
        self.write_crl(now)
        return valid

    def write_crl(self, now: float) -> None:
        """Sign a new revocation list; certificates that expired anyway are left out."""
        with self.books.transaction():  # no other process writes an older list after this one
            revoked = self.books.revoked(now)
            validity = Validity.beginning(now, CRL_LIFETIME_S)
            listed = self._signer.revocation_list(revoked, self.books.next_crl_number(), validity)
            write_private(self.folder / CRL, listed.public_bytes(Encoding.PEM), 0o644)

    def crl(self) -> bytes:
        """The revocation list (PEM) as it was last written."""
        return (self.folder / CRL).read_bytes()

    def tidy(self, now: float) -> None:
        """Forget what expired long ago; a fleet that renews every few weeks fills books."""
        with self.books.transaction():
            self.books.forget(now - KEPT_S)

    # --- inside

    def _readable(self, request_pem: bytes) -> Request:
        try:
            request = read_request(request_pem)
        except CryptoError as error:
            raise RefusedError(str(error)) from error
        bearer = request.bearer
        if bearer.federation != self.federation:
            raise RefusedError(f"this is the authority of {self.federation}, not of {bearer.federation}")
        if bearer.name == ENROLMENT:
            raise RefusedError(f"the id {ENROLMENT!r} belongs to the enrolment service")
        return request

    def _known(self, certificate: bytes, now: float) -> Credential:
        try:
            return verify(certificate_from(certificate), self.certificate, now)
        except CryptoError as error:
            raise RefusedError(str(error)) from error

    def _check_newcomer(self, name: DeviceId, now: float) -> None:
        if name in PARTIES:
            raise RefusedError(f"{name} needs a token of its own: `ofl enroll token --id {name}`")
        if any(each.valid(now) for each in self.books.certificates(name)):
            raise RefusedError(f"{name} is enrolled already: revoke it, or make a token with `--id {name}`")

    def _same_answer(self, serial: int, request: Request) -> bytes:
        issued = self.books.certificate(serial)
        if issued is not None and issued.revoked_at is None:
            credential = read(certificate_from(issued.pem))
            if (credential.bearer, credential.public) == (request.bearer, public_bytes(request.key)):
                return issued.pem
        raise RefusedError("this token was used before: ask for a new one (`ofl enroll token`)")

    def _supersede(self, name: DeviceId, now: float) -> bool:
        """A party that is admitted again has one identity: the earlier ones end. Whether there were any."""
        earlier = [each for each in self.books.certificates(name) if each.valid(now)]
        for each in earlier:
            self.books.revoke(each.serial, now, "superseded")
        return bool(earlier)

    def _like(self, old: CertificateRecord, now: float) -> list[CertificateRecord]:
        """The valid certificates of the same party and key, at least this one."""
        key = read(certificate_from(old.pem)).public
        valid = [each for each in self.books.certificates(old.name) if each.valid(now)]
        return [old, *(each for each in valid if read(certificate_from(each.pem)).public == key)]

    def _issue(self, request: Request, now: float, lifetime_s: float, hosts: tuple[str, ...]) -> CertificateRecord:
        validity = Validity.beginning(now, lifetime_s)
        certificate = self._signer.issue(request, validity, self._entropy, hosts)
        pem = certificate.public_bytes(Encoding.PEM)
        record = CertificateRecord(
            certificate.serial_number, request.bearer.name, hosts, lifetime_s, validity.not_after, pem
        )
        self.books.add_certificate(record)
        return record


def default_lifetime_s(name: DeviceId | None) -> float:
    """Short for everyone who renews by itself."""
    return BROKER_LIFETIME_S if name == BROKER else LIFETIME_S
