"""A certificate authority for tests: PEM files of whoever is asked for."""

from __future__ import annotations

import datetime as dt
import ipaddress
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ofl_iot.transport.settings import TlsSettings

HOUR = dt.timedelta(hours=1)


class Authority:
    """Issues certificates into one folder: `NAME.pem`, `NAME.key`, and its own `ca.pem`, `ca.key`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.key, self.certificate = self._write("ca", "ca", None)

    def issue(self, name: str, *, file: str = "", valid: bool = True) -> TlsSettings:
        """A certificate with this common name for 127.0.0.1, and the settings of a party that bears it."""
        file = file or name
        self._write(name, file, (self.key, self.certificate), valid=valid)
        return TlsSettings(ca=self.path("ca.pem"), cert=self.path(f"{file}.pem"), key=self.path(f"{file}.key"))

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def revoke(self, *names: str) -> Path:
        """A list of revoked certificates, in `ca.crl`."""
        now = dt.datetime.now(dt.timezone.utc)
        builder = x509.CertificateRevocationListBuilder().issuer_name(self.certificate.subject)
        builder = builder.last_update(now - HOUR).next_update(now + HOUR)
        for name in names:
            certificate = x509.load_pem_x509_certificate((self.folder / f"{name}.pem").read_bytes())
            entry = x509.RevokedCertificateBuilder().serial_number(certificate.serial_number).revocation_date(now)
            builder = builder.add_revoked_certificate(entry.build())
        file = self.folder / "ca.crl"
        file.write_bytes(builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        return file

    def _write(self, name: str, file: str, issuer: tuple[Any, Any] | None, *, valid: bool = True) -> tuple[Any, Any]:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        signer, signer_name = (key, subject) if issuer is None else (issuer[0], issuer[1].subject)
        now = dt.datetime.now(dt.timezone.utc)
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(signer_name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 2 * HOUR)
            .not_valid_after(now + HOUR if valid else now - HOUR)
            .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
            .add_extension(_usage(authority=issuer is None), critical=True)
            .add_extension(x509.SubjectAlternativeName([address]), critical=False)
            .sign(signer, hashes.SHA256())
        )
        secret = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        (self.folder / f"{file}.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        (self.folder / f"{file}.key").write_bytes(key.private_bytes(*secret))
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
