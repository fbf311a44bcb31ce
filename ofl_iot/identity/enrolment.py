"""What an enrolled party holds, and how it judges the sealing keys of others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

from ofl_iot.crypto.lean.vouchers import sign, verify_signature
from ofl_iot.errors import CryptoError
from ofl_iot.identity.certificates import Credential, certificate_from, verify
from ofl_iot.ids import DeviceId


@dataclass(frozen=True)
class Enrolment:
    """A party's place in the federation: its certificate, its authority, the private half of its sealing key."""

    credential: Credential
    certificate: bytes
    """In DER, as it is shown to others."""
    authority: x509.Certificate
    sealing_private: bytes = field(repr=False)
    """Empty for a party to whom nobody seals."""
    revoked: frozenset[int] = frozenset()
    """Serials that the authority took back, as far as this party has heard."""
    signing_key: EllipticCurvePrivateKey | None = field(default=None, repr=False, compare=False)
    """Private half of the certified key: signs what a leader states in lean rounds."""

    @property
    def name(self) -> DeviceId:
        """The party's id."""
        return self.credential.bearer.name


class Certified(Protocol):
    """A leader with its sealing key and certificate, as a key generation names it."""

    @property
    def leader(self) -> str:
        """Its id."""
        ...

    @property
    def sealing_key(self) -> bytes:
        """Its public X25519 key."""
        ...

    @property
    def certificate(self) -> bytes:
        """X.509 in DER."""
        ...


@dataclass(frozen=True)
class SealingTrust:
    """Judges whether a public sealing key is that of the party it is said to be of."""

    enrolled: Callable[[], Enrolment]
    """This party's own enrolment, as it is now."""
    clock: Callable[[], float]
    """Seconds since 1970."""

    def check(self, name: DeviceId, sealing_public: bytes, certificate: bytes) -> None:
        """CryptoError unless a valid certificate of the federation gives this key to this party."""
        self._credential(name, sealing_public, certificate)

    def sign(self, data: bytes) -> bytes:
        """Sign with the key of this party's certificate."""
        key = self.enrolled().signing_key
        if key is None:
            raise CryptoError("this party's identity holds no signing key: enrol it again")
        return sign(key, data)

    def verify(self, member: Certified, data: bytes, signature: bytes) -> None:
        """CryptoError unless the party that a valid certificate names signed the data."""
        credential = self._credential(DeviceId(member.leader), member.sealing_key, member.certificate)
        verify_signature(credential.public, data, signature, member.leader)

    def _credential(self, name: DeviceId, sealing_public: bytes, certificate: bytes) -> Credential:
        mine = self.enrolled()
        if not certificate:
            raise CryptoError(f"{name} shows no certificate for its sealing key: enrol it")
        credential = verify(certificate_from(certificate), mine.authority, self.clock())
        bearer = credential.bearer
        if bearer.name != name or bearer.sealing_public != sealing_public:
            raise CryptoError(f"the sealing key is not the one that the authority certified for {name}")
        if credential.serial in mine.revoked:
            raise CryptoError(f"the certificate of {name} was revoked")
        return credential
