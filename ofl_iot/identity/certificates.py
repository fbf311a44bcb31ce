"""Certificates of a federation: made by its authority, read and verified by everybody.

Keys are ECDSA on P-256: every TLS 1.3 library takes them, and so do the secure elements of small boards.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ofl_iot.crypto.entropy import Entropy
from ofl_iot.errors import ConfigError, CryptoError
from ofl_iot.identity.dates import date_of, shown
from ofl_iot.identity.names import BROKER, ENROLMENT, Bearer
from ofl_iot.ids import FederationId, federation_id

DAY_S: Final = 86_400.0
AUTHORITY_LIFETIME_S: Final = 3650 * DAY_S
LIFETIME_S: Final = 30 * DAY_S
BROKER_LIFETIME_S: Final = 365 * DAY_S
"""A broker takes a new certificate only when somebody tells it to."""
CLOCK_SKEW_S: Final = 300.0
"""Certificates begin this long ago, for devices whose clocks are behind."""
UNREADABLE: Final = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
"""What the parser raises for bytes that are not what they should be."""
_HOST = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?\Z")


@dataclass(frozen=True)
class Validity:
    """From when to when, in seconds since 1970."""

    not_before: float
    not_after: float

    @classmethod
    def beginning(cls, now: float, lifetime_s: float) -> Validity:
        """From just before now."""
        return cls(now - CLOCK_SKEW_S, now + lifetime_s)

    @property
    def renewal(self) -> float:
        """When less than a third is left."""
        return self.not_after - (self.not_after - self.not_before) / 3

    def check(self, now: float, whose: str) -> None:
        """CryptoError unless it is now."""
        if now < self.not_before:
            raise CryptoError(
                f"{whose} is valid from {shown(self.not_before)} only, and here it is {shown(now)}: set the clock"
            )
        if now > self.not_after:
            raise CryptoError(f"{whose} expired at {shown(self.not_after)}, and here it is {shown(now)}")


@dataclass(frozen=True)
class Credential:
    """A certificate that was read: whom it names, until when, with which number."""

    bearer: Bearer
    serial: int
    validity: Validity
    public: bytes
    """The certified TLS key (DER)."""
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Request:
    """A checked request for a certificate."""

    bearer: Bearer
    key: EllipticCurvePublicKey


@dataclass(frozen=True)
class SigningAuthority:
    """The federation's authority with its private key."""

    certificate: x509.Certificate
    key: EllipticCurvePrivateKey = field(repr=False)

    @property
    def federation(self) -> FederationId:
        """Whose authority it is."""
        return federation_of(self.certificate)

    @classmethod
    def found(
        cls, federation: FederationId, key: EllipticCurvePrivateKey, now: float, entropy: Entropy
    ) -> SigningAuthority:
        """A new authority: a self-signed certificate that may sign certificates and revocation lists, nothing else."""
        organisation = x509.NameAttribute(NameOID.ORGANIZATION_NAME, federation)
        name = x509.Name([organisation, x509.NameAttribute(NameOID.COMMON_NAME, "ofl authority")])
        validity = Validity.beginning(now, AUTHORITY_LIFETIME_S)
        builder = _builder(name, key.public_key(), validity, entropy).issuer_name(name)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_usage(authority=True), critical=True)
        builder = builder.add_extension(_key_id(key.public_key()), critical=False)
        return cls(builder.sign(key, SHA256()), key)

    def issue(
        self, request: Request, validity: Validity, entropy: Entropy, hosts: tuple[str, ...] = ()
    ) -> x509.Certificate:
        """Certify a party. Only a broker and the enrolment service are servers; devices cannot pose as one."""
        bearer = request.bearer
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, bearer.name)])
        purposes = {BROKER: [_SERVER, _CLIENT], ENROLMENT: [_SERVER]}.get(bearer.name, [_CLIENT])
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(bearer.uri()), *map(_host_name, hosts)]
        builder = _builder(subject, request.key, validity, entropy).issuer_name(self.certificate.subject)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_usage(authority=False), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        builder = builder.add_extension(_key_id(request.key), critical=False)
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(_key_id(self.key.public_key()))
        return builder.add_extension(issuer, critical=False).sign(self.key, SHA256())

    def revocation_list(
        self, revoked: Iterable[tuple[int, float]], number: int, validity: Validity
    ) -> x509.CertificateRevocationList:
        """The list of (serial, when) that brokers refuse; a later list has a higher number."""
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.certificate.subject)
            .last_update(date_of(validity.not_before))
            .next_update(date_of(validity.not_after))
            .add_extension(x509.CRLNumber(number), critical=False)
        )
        issuer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(_key_id(self.key.public_key()))
        builder = builder.add_extension(issuer, critical=False)
        for serial, at in revoked:
            entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(date_of(at))
            builder = builder.add_revoked_certificate(entry.build())
        return builder.sign(self.key, SHA256())


def fingerprint_of(certificate: x509.Certificate) -> bytes:
    """SHA-256 of the certificate: how an authority is told from another."""
    return hashlib.sha256(certificate.public_bytes(Encoding.DER)).digest()


def federation_of(authority: x509.Certificate) -> FederationId:
    """The federation whose authority this is; ConfigError if it is none of ours."""
    names = authority.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    if len(names) != 1:
        raise ConfigError("this certificate is not that of a federation's authority: see `ofl ca init`")
    return federation_id(str(names[0].value))


def make_request(bearer: Bearer, key: EllipticCurvePrivateKey) -> bytes:
    """Ask for a certificate (PEM); signed, so that the authority sees that the key is the asker's."""
    names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(bearer.uri())])
    builder = x509.CertificateSigningRequestBuilder().subject_name(
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, bearer.name)])
    )
    return builder.add_extension(names, critical=False).sign(key, SHA256()).public_bytes(Encoding.PEM)


def read_request(data: bytes) -> Request:
    """Check a request; CryptoError if it is none, is not signed by its own key, or contradicts itself."""
    try:
        request = x509.load_pem_x509_csr(data)
        key = request.public_key()
        signed = request.is_signature_valid
        bearer = _bearer_in(request.subject, request.extensions)
    except UNREADABLE as error:
        raise CryptoError(f"this is no request for a certificate: {error}") from error
    if not signed:
        raise CryptoError("the request is not signed by the key that it names")
    return Request(bearer, _on_p256(key))


def read(certificate: x509.Certificate) -> Credential:
    """Read a certificate without judging it; CryptoError if it is none of ours."""
    try:
        bearer = _bearer_in(certificate.subject, certificate.extensions)
        key = _on_p256(certificate.public_key())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except UNREADABLE as error:
        raise CryptoError(f"the certificate cannot be read: {error}") from error
    hosts = [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]
    validity = Validity(certificate.not_valid_before_utc.timestamp(), certificate.not_valid_after_utc.timestamp())
    return Credential(bearer, certificate.serial_number, validity, public_bytes(key), tuple(hosts))


def verify(certificate: x509.Certificate, authority: x509.Certificate, now: float) -> Credential:
    """Read a certificate that must be the authority's, of its federation, and valid now; CryptoError otherwise."""
    credential = read(certificate)
    whose = f"the certificate of {credential.bearer.name}"
    try:
        certificate.verify_directly_issued_by(authority)
    except (*UNREADABLE, InvalidSignature) as error:
        raise CryptoError(f"{whose} was not issued by this federation's authority") from error
    if credential.bearer.federation != federation_of(authority):
        raise CryptoError(f"{whose} is of the federation {credential.bearer.federation}")
    credential.validity.check(now, whose)
    return credential


def public_bytes(key: EllipticCurvePublicKey) -> bytes:
    """A public key as bytes that can be compared (DER)."""
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def checked_host(text: str) -> str:
    """Check a broker's host name or address as it will stand in its certificate."""
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        pass
    if _HOST.match(text) is None or text == ENROLMENT:
        raise ConfigError(f"host {text!r}: give a lower-case host name such as broker.example, or an address")
    return text


_SERVER, _CLIENT = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH


def _host_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _bearer_in(subject: x509.Name, extensions: x509.Extensions) -> Bearer:
    """The one bearer that both the subject and the alternative name tell."""
    common = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    try:
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound as error:
        raise CryptoError("the certificate or request has no alternative name: it was not made by `ofl`") from error
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    if len(common) != 1 or len(list(subject)) != 1 or len(uris) != 1:
        raise CryptoError("the certificate or request does not name one party: it was not made by `ofl`")
    bearer = Bearer.parse(uris[0])
    if common[0].value != bearer.name:
        raise CryptoError(f"the certificate or request names {common[0].value!r} and {bearer.name!r}")
    return bearer


def _on_p256(key: object) -> EllipticCurvePublicKey:
    if not isinstance(key, EllipticCurvePublicKey) or not isinstance(key.curve, SECP256R1):
        raise CryptoError("the key is not an ECDSA key on P-256")
    return key


def _builder(
    subject: x509.Name, key: EllipticCurvePublicKey, validity: Validity, entropy: Entropy
) -> x509.CertificateBuilder:
    serial = int.from_bytes(entropy.random_bytes(16), "big") | 1  # RFC 5280: positive, at most 20 bytes
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key)
        .serial_number(serial)
        .not_valid_before(date_of(validity.not_before))
        .not_valid_after(date_of(validity.not_after))
    )


def _key_id(key: EllipticCurvePublicKey) -> x509.SubjectKeyIdentifier:
    return x509.SubjectKeyIdentifier.from_public_key(key)


def _usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def serials_revoked_in(data: bytes, authority: x509.Certificate) -> frozenset[int]:
    """The serials of a revocation list (PEM) that the authority signed; CryptoError otherwise."""
    try:
        listed = x509.load_pem_x509_crl(data)
    except UNREADABLE as error:
        raise CryptoError(f"this is no revocation list: {error}") from error
    key = authority.public_key()
    if not isinstance(key, EllipticCurvePublicKey) or not listed.is_signature_valid(key):
        raise CryptoError("the revocation list was not signed by this federation's authority")
    return frozenset(entry.serial_number for entry in listed)


def certificate_from(data: bytes) -> x509.Certificate:
    """Read the first certificate of a PEM file, or one in DER; CryptoError if there is none."""
    try:
        pem = data.lstrip().startswith(b"-----")
        return x509.load_pem_x509_certificate(data) if pem else x509.load_der_x509_certificate(data)
    except UNREADABLE as error:
        raise CryptoError(f"this is no certificate: {error}") from error
