"""What an enrolled party holds, and how it judges the sealing keys of others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from cryptography import x509

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

    @property
    def name(self) -> DeviceId:
        """The party's id."""
        return self.credential.bearer.name


@dataclass(frozen=True)
class SealingTrust:
    """Judges whether a public sealing key is that of the party it is said to be of."""

    enrolled: Callable[[], Enrolment]
    """This party's own enrolment, as it is now."""
    clock: Callable[[], float]
    """Seconds since 1970."""

    def check(self, name: DeviceId, sealing_public: bytes, certificate: bytes) -> None:
        """CryptoError unless a valid certificate of the federation gives this key to this party."""
        mine = self.enrolled()
        if not certificate:
            raise CryptoError(f"{name} shows no certificate for its sealing key: enrol it")
        credential = verify(certificate_from(certificate), mine.authority, self.clock())
        bearer = credential.bearer
        if bearer.name != name or bearer.sealing_public != sealing_public:
            raise CryptoError(f"the sealing key is not the one that the authority certified for {name}")
        if credential.serial in mine.revoked:
            raise CryptoError(f"the certificate of {name} was revoked")
