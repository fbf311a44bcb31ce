"""Keys and certificates for tests; P-256 keys are drawn once, as nothing depends on which they are."""

from __future__ import annotations

from functools import lru_cache

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from ofl_iot.crypto.entropy import SeededEntropy
from ofl_iot.identity.certificates import LIFETIME_S, Request, SigningAuthority, Validity
from ofl_iot.identity.names import Bearer
from ofl_iot.ids import DeviceId, FederationId

FEDERATION = FederationId("demo")
NOW = 1_800_000_000.0
SEALING = bytes(range(32))
ENTROPY = SeededEntropy(1)


def key(number: int = 0) -> ec.EllipticCurvePrivateKey:
    return _key(number)


@lru_cache
def _key(_number: int) -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


@lru_cache
def authority(number: int = 0, federation: FederationId = FEDERATION) -> SigningAuthority:
    return SigningAuthority.found(federation, key(1000 + number), NOW, ENTROPY)


def request(name: str = "truck-1", sealing: bytes = SEALING, federation: FederationId = FEDERATION) -> Request:
    return Request(Bearer(federation, DeviceId(name), sealing), key().public_key())


def certificate(
    asked: Request | None = None, *, by: int = 0, lifetime_s: float = LIFETIME_S, hosts: tuple[str, ...] = ()
) -> x509.Certificate:
    return authority(by).issue(asked or request(), Validity.beginning(NOW, lifetime_s), ENTROPY, hosts)
