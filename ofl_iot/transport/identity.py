"""The folder of an enrolled party: what `ofl enroll join` leaves there, checked whenever it is used.

ca.pem            the federation's authority
certificate.pem   this party's certificate; replaced when it is renewed
key.pem           the private key of it, made here; readable by its owner alone
sealing.pem       the private X25519 key that the certificate names; likewise
crl.pem           the authority's revocation list, where it was fetched
"""

from __future__ import annotations

import hashlib
import os
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ofl_iot.errors import ConfigError, CryptoError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    from ofl_iot.identity.enrolment import Enrolment

CA, CERTIFICATE, KEY, SEALING, CRL = "ca.pem", "certificate.pem", "key.pem", "sealing.pem", "crl.pem"
NO_LIST = b"none"
"""What our units hand over in place of a revocation list that was not fetched yet."""
_ENROL = "enrol with `ofl enroll join`"


@dataclass(frozen=True)
class IdentityFolder:
    """A folder that names a party."""

    path: Path
    clock: Callable[[], float] = time.time

    @property
    def complete(self) -> bool:
        """Whether the party was enrolled; its certificate may have expired since."""
        return all((self.path / name).is_file() for name in (CA, CERTIFICATE, KEY))

    @property
    def handed_over(self) -> bool:
        """Whether a service manager laid the files out for this process: they are a copy, and not to be changed."""
        return str(self.path) == os.environ.get("CREDENTIALS_DIRECTORY")

    def load(self) -> Enrolment:
        """Read and check everything; ConfigError says which file is wrong and what to do about it."""
        from cryptography.hazmat.primitives.serialization import Encoding

        from ofl_iot.identity.certificates import certificate_from, public_bytes, verify
        from ofl_iot.identity.enrolment import Enrolment

        try:
            authority = certificate_from(self._read(CA))
            certificate = certificate_from(self._read(CERTIFICATE))
            credential = verify(certificate, authority, self.clock())
            revoked = self.revoked()
        except CryptoError as error:
            raise ConfigError(f"identity {self.path}: {error}; renew it in time, or {_ENROL} again") from error
        signing = self.private_key()
        if public_bytes(signing.public_key()) != credential.public:
            raise ConfigError(f"identity {self.path}: {KEY} is not the key of {CERTIFICATE}; {_ENROL} in a new folder")
        sealing = b""
        if credential.bearer.sealing_public:
            private = self.sealing_key()
            sealing = private.private_bytes_raw()
            if private.public_key().public_bytes_raw() != credential.bearer.sealing_public:
                raise ConfigError(
                    f"identity {self.path}: {SEALING} is not the key that {CERTIFICATE} names; {_ENROL} in a new folder"
                )
        return Enrolment(credential, certificate.public_bytes(Encoding.DER), authority, sealing, revoked, signing)

    def revoked(self) -> frozenset[int]:
        """The serials on the revocation list, none where there is no list; CryptoError if it is not the authority's."""
        from ofl_iot.identity.certificates import certificate_from, serials_revoked_in

        data = self._read(CRL) if (self.path / CRL).is_file() else NO_LIST
        if data == NO_LIST:
            return frozenset()
        return serials_revoked_in(data, certificate_from(self._read(CA)))

    def private_key(self) -> EllipticCurvePrivateKey:
        """The party's TLS key."""
        from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

        key = self._private(KEY)
        if not isinstance(key, EllipticCurvePrivateKey):
            raise ConfigError(f"identity {self.path}: {KEY} holds no ECDSA key; {_ENROL} in a new folder")
        return key

    def session_secret(self) -> str:
        """Sixteen hex digits that nobody without the TLS key can tell; a renewal keeps the key, and so them."""
        return hashlib.blake2b(self._read(KEY), digest_size=8, person=b"ofl client id").hexdigest()

    def sealing_key(self) -> X25519PrivateKey:
        """The party's sealing key."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        key = self._private(SEALING)
        if not isinstance(key, X25519PrivateKey):
            raise ConfigError(f"identity {self.path}: {SEALING} holds no X25519 key; {_ENROL} in a new folder")
        return key

    def context(self) -> ssl.SSLContext:
        """A client context for TLS 1.3 that shows this party's certificate and trusts the federation's authority."""
        self.load()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        try:
            context.load_verify_locations(self.path / CA)
            context.load_cert_chain(self.path / CERTIFICATE, self.path / KEY)
        except (ssl.SSLError, OSError) as error:
            raise ConfigError(f"identity {self.path}: {error}; {_ENROL} in a new folder") from error
        return context

    def _read(self, name: str) -> bytes:
        if not self.path.is_dir():
            raise ConfigError(f"identity {self.path}: there is no such folder; {_ENROL}")
        try:
            return (self.path / name).read_bytes()
        except FileNotFoundError:
            raise ConfigError(f"identity {self.path}: there is no {name}; {_ENROL}") from None
        except OSError as error:
            raise ConfigError(f"identity {self.path}: {name} cannot be read ({error.strerror})") from error

    def _private(self, name: str) -> object:
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        data = self._read(name)
        mode = (self.path / name).stat().st_mode & 0o777
        # A service manager lets the service read its own file by an access list, whose mask shows as the group's.
        if mode & (0o037 if self.handed_over else 0o077):
            raise ConfigError(
                f"identity {self.path}: {name} is open to others (mode {mode:o}); run chmod 600 {self.path / name}, "
                "and enrol anew in another folder if somebody may have read it"
            )
        try:
            return load_pem_private_key(data, password=None)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"identity {self.path}: {name} is no private key: {error}") from error
