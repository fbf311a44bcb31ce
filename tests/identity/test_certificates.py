"""What the authority certifies is what is read; whatever it did not certify is refused."""

from __future__ import annotations

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from hypothesis import given, settings
from hypothesis import strategies as st

from ofl_iot.errors import ConfigError, CryptoError
from ofl_iot.identity.certificates import (
    CLOCK_SKEW_S,
    LIFETIME_S,
    Validity,
    certificate_from,
    checked_host,
    federation_of,
    fingerprint_of,
    make_request,
    public_bytes,
    read,
    read_request,
    serials_revoked_in,
    verify,
)
from ofl_iot.identity.enrolment import Enrolment, SealingTrust
from ofl_iot.identity.names import BROKER, ENROLMENT, Bearer
from ofl_iot.ids import DeviceId, FederationId
from tests.identity.certs import FEDERATION, NOW, SEALING, authority, certificate, key, request

TRUCK = DeviceId("truck-1")


def der(made: x509.Certificate) -> bytes:
    return made.public_bytes(Encoding.DER)


# --- laws


@settings(max_examples=30)
@given(
    st.from_regex(r"[a-z0-9]{1,8}(-[a-z0-9]{1,8})?", fullmatch=True),
    st.just(b"") | st.binary(min_size=32, max_size=32),
    st.floats(60.0, 800 * 86_400.0),
    st.floats(0, 1),
)
def test_a_certificate_says_what_was_asked_for_during_its_lifetime(
    name: str, sealing: bytes, lifetime_s: float, when: float
) -> None:
    asked = request(name, sealing)
    made = certificate(asked, lifetime_s=lifetime_s)
    seen = verify(made, authority().certificate, NOW + when * (lifetime_s - 1))
    assert seen.bearer == asked.bearer
    assert seen.public == public_bytes(asked.key)
    assert seen.serial == made.serial_number
    assert read(certificate_from(der(made))) == read(certificate_from(made.public_bytes(Encoding.PEM))) == seen


@settings(max_examples=30)
@given(st.floats(CLOCK_SKEW_S + 2, 1e9), st.booleans())
def test_outside_its_lifetime_a_certificate_is_refused(away_s: float, after: bool) -> None:
    now = NOW + LIFETIME_S + away_s if after else NOW - away_s
    with pytest.raises(CryptoError, match="expired at" if after else "set the clock"):
        verify(certificate(), authority().certificate, now)


@settings(max_examples=20)
@given(st.lists(st.integers(1, 2**127), unique=True, max_size=20))
def test_the_revocation_list_holds_what_was_revoked(serials: list[int]) -> None:
    listed = authority().revocation_list([(serial, NOW) for serial in serials], 7, Validity.beginning(NOW, 60.0))
    pem = listed.public_bytes(Encoding.PEM)
    assert serials_revoked_in(pem, authority().certificate) == set(serials)
    with pytest.raises(CryptoError, match="not signed by this federation"):
        serials_revoked_in(pem, authority(1).certificate)


@pytest.mark.filterwarnings("ignore::cryptography.utils.CryptographyDeprecationWarning")
@pytest.mark.filterwarnings("ignore:Attribute's length must be")
@settings(max_examples=300)
@given(st.integers(0, 1000), st.integers(1, 255))
def test_a_certificate_with_one_byte_changed_is_refused_unless_what_is_signed_is_the_same(
    position: int, flip: int
) -> None:
    original = certificate()
    data = bytearray(der(original))
    data[position % len(data)] ^= flip
    try:
        changed = certificate_from(bytes(data))
        verify(changed, authority().certificate, NOW)
    except (CryptoError, ConfigError):
        return
    assert changed.tbs_certificate_bytes == original.tbs_certificate_bytes
    assert changed.signature == original.signature


@given(st.binary(max_size=400))
def test_garbage_is_no_certificate_request_or_list(data: bytes) -> None:
    for reader in (certificate_from, read_request, lambda each: serials_revoked_in(each, authority().certificate)):
        with pytest.raises(CryptoError):
            reader(data)


@given(st.floats(1.0, 1e8), st.floats(0.0, 1.0))
def test_renewal_is_due_when_less_than_a_third_is_left(lifetime_s: float, when: float) -> None:
    validity = Validity(NOW, NOW + lifetime_s)
    now = NOW + when * lifetime_s
    if abs(when - 2 / 3) > 1e-3:
        assert (now >= validity.renewal) == (validity.not_after - now < lifetime_s / 3)


# --- stories


def test_another_authority_is_not_believed_even_under_the_same_name() -> None:
    assert authority().certificate.subject == authority(1).certificate.subject
    with pytest.raises(CryptoError, match="not issued by this federation's authority"):
        verify(certificate(by=1), authority().certificate, NOW)


def test_a_certificate_of_another_federation_is_refused() -> None:
    made = certificate(request(federation=FederationId("other")))
    with pytest.raises(CryptoError, match="is of the federation other"):
        verify(made, authority().certificate, NOW)


@pytest.mark.parametrize(
    ("name", "purposes"),
    [
        ("truck-1", [ExtendedKeyUsageOID.CLIENT_AUTH]),
        ("coordinator", [ExtendedKeyUsageOID.CLIENT_AUTH]),
        (BROKER, [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
        (ENROLMENT, [ExtendedKeyUsageOID.SERVER_AUTH]),
    ],
)
def test_only_servers_may_be_servers(name: str, purposes: list[object]) -> None:
    made = certificate(request(name))
    assert list(made.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == purposes
    assert not made.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_a_brokers_hosts_are_in_its_certificate() -> None:
    made = certificate(request(BROKER, b""), hosts=("broker.example", "127.0.0.1", "::1"))
    assert set(read(made).hosts) == {"broker.example", "127.0.0.1", "::1"}


@pytest.mark.parametrize("host", ["", "Broker", "a b", "-a", "enrolment", "*.example"])
def test_a_host_that_is_none_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match="lower-case host name"):
        checked_host(host)
    assert checked_host("::0:1") == "::1"


def test_a_request_is_read_as_it_was_made() -> None:
    asked = read_request(make_request(request().bearer, key()))
    assert asked.bearer == request().bearer
    assert public_bytes(asked.key) == public_bytes(key().public_key())


def strange_request(common: str, uris: list[str], by: object = None) -> bytes:
    builder = x509.CertificateSigningRequestBuilder().subject_name(
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])
    )
    if uris:
        names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri) for uri in uris])
        builder = builder.add_extension(names, critical=False)
    signer = by or key()
    algorithm = None if isinstance(signer, ed25519.Ed25519PrivateKey) else SHA256()
    return builder.sign(signer, algorithm).public_bytes(Encoding.PEM)  # type: ignore[arg-type]


URI = Bearer(FEDERATION, TRUCK, SEALING).uri()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (strange_request("truck-1", []), "no alternative name"),
        (strange_request("truck-1", [URI, URI]), "does not name one party"),
        (strange_request("coordinator", [URI]), "names 'coordinator' and 'truck-1'"),
        (strange_request("truck-1", ["ofl:nonsense"]), "none that this federation gives"),
        (strange_request("truck-1", [URI], ed25519.Ed25519PrivateKey.generate()), "on P-256"),
        (strange_request("truck-1", [URI], ec.generate_private_key(ec.SECP384R1())), "on P-256"),
    ],
    ids=["nameless", "two names", "another name", "nonsense", "Ed25519", "P-384"],
)
def test_a_request_that_contradicts_itself_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(CryptoError, match=reason):
        read_request(data)


def test_a_request_for_somebody_elses_key_is_refused() -> None:
    mine = x509.load_pem_x509_csr(make_request(request().bearer, key()))
    forged = mine.public_bytes(Encoding.DER).replace(_point(0), _point(5))
    with pytest.raises(CryptoError, match="not signed by the key that it names"):
        read_request(x509.load_der_x509_csr(forged).public_bytes(Encoding.PEM))


def _point(number: int) -> bytes:
    return public_bytes(key(number).public_key())[-65:]


def test_the_authority_is_known_by_its_fingerprint_and_says_whose_it_is() -> None:
    assert federation_of(authority().certificate) == FEDERATION
    assert fingerprint_of(authority().certificate) != fingerprint_of(authority(1).certificate)
    with pytest.raises(ConfigError, match="not that of a federation's authority"):
        federation_of(certificate())


# --- sealing keys


def trust(revoked: frozenset[int] = frozenset(), now: float = NOW) -> SealingTrust:
    mine = certificate(request("truck-9"))
    enrolment = Enrolment(read(mine), der(mine), authority().certificate, b"private", revoked)
    assert "private" not in repr(enrolment)
    return SealingTrust(lambda: enrolment, lambda: now)


@settings(max_examples=20)
@given(st.binary(min_size=32, max_size=32))
def test_only_the_certified_sealing_key_is_taken(other: bytes) -> None:
    shown = der(certificate())
    trust().check(TRUCK, SEALING, shown)
    if other != SEALING:
        with pytest.raises(CryptoError, match="not the one that the authority certified for truck-1"):
            trust().check(TRUCK, other, shown)


def test_a_sealing_key_with_a_wrong_certificate_is_refused() -> None:
    shown = certificate()
    cases = [
        (b"", trust(), "enrol it"),
        (b"junk", trust(), "no certificate"),
        (der(certificate(request("truck-2"))), trust(), "certified for truck-1"),
        (der(certificate(by=1)), trust(), "not issued by this federation's authority"),
        (der(shown), trust(now=NOW + 2 * LIFETIME_S), "expired"),
        (der(shown), trust(frozenset({shown.serial_number})), "was revoked"),
    ]
    for data, judge, reason in cases:
        with pytest.raises(CryptoError, match=reason):
            judge.check(TRUCK, SEALING, data)


def test_serials_differ_although_everything_else_is_the_same() -> None:
    assert len({certificate().serial_number for _ in range(20)}) == 20
