"""The authority's decisions, by its own clock: who is admitted, how often, for how long."""

from __future__ import annotations

import sqlite3
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ofl_agents.enrolment.authority import BOOKS, CRL, KEPT_S, KEY, Authority
from ofl_agents.enrolment.files import write_private
from ofl_agents.enrolment.report import table
from ofl_iot.errors import ConfigError, OflError, RefusedError
from ofl_iot.identity.certificates import (
    BROKER_LIFETIME_S,
    DAY_S,
    LIFETIME_S,
    certificate_from,
    make_request,
    serials_revoked_in,
    verify,
)
from ofl_iot.identity.names import BROKER, Bearer
from ofl_iot.ids import COORDINATOR, DeviceId, FederationId
from tests.identity.certs import FEDERATION, NOW, SEALING, key

HOUR_S = 3600.0
TRUCK = DeviceId("truck-1")
law = settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def ca(tmp_path: Path) -> Authority:
    return Authority.found(tmp_path / "ca", FEDERATION, NOW)


def asking(name: str = TRUCK, number: int = 0, federation: FederationId = FEDERATION) -> bytes:
    return make_request(Bearer(federation, DeviceId(name), SEALING), key(number))


def der(pem: bytes) -> bytes:
    return certificate_from(pem).public_bytes(Encoding.DER)


def revoked(ca: Authority) -> frozenset[int]:
    return serials_revoked_in(ca.crl(), ca.certificate)


# --- laws


@law
@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["truck-1", "truck-2"])), min_size=1, max_size=6))
def test_a_token_yields_one_certificate_whoever_shows_it_how_often(ca: Authority, tries: list[tuple[int, str]]) -> None:
    for held in ca.books.certificates():
        if held.valid(NOW):
            ca.revoke(held.name, NOW)
    token = ca.make_token(None, NOW, HOUR_S)
    answers = set()
    for number, name in tries:
        try:
            answers.add(ca.admit(token.secret, asking(name, number), NOW))
        except RefusedError as error:  # noqa: PERF203  # each try is judged apart
            assert "used before" in str(error)  # noqa: PT017  # either outcome is lawful, this one by its reason
    assert len(answers) == 1
    number, name = tries[0]
    assert ca.admit(token.secret, asking(name, number), NOW) in answers


@law
@given(st.floats(1.0, 1e6), st.floats(1e-3, 1e6))
def test_a_token_is_refused_once_it_expired(ca: Authority, valid_s: float, later_s: float) -> None:
    token = ca.make_token(TRUCK, NOW, valid_s)
    with pytest.raises(RefusedError, match="expired at"):
        ca.admit(token.secret, asking(), NOW + valid_s + later_s)
    assert ca.admit(token.secret, asking(), NOW + valid_s)


@law
@given(st.from_regex(r"[a-z0-9]{1,10}", fullmatch=True))
def test_a_token_for_one_id_admits_no_other(ca: Authority, name: str) -> None:
    token = ca.make_token(TRUCK, NOW, HOUR_S)
    with pytest.raises(RefusedError):
        ca.admit(token.secret, asking(name), NOW)
    assert ca.admit(token.secret, asking(), NOW)


@law
@given(st.binary(min_size=20, max_size=20))
def test_a_made_up_token_is_unknown(ca: Authority, secret: bytes) -> None:
    with pytest.raises(RefusedError, match="unknown here"):
        ca.admit(secret, asking(), NOW)


@law
@given(st.integers(1, 5))
def test_renewals_keep_names_and_keys_and_move_the_end(ca: Authority, count: int) -> None:
    pem = ca.admit(ca.make_token(TRUCK, NOW, HOUR_S).secret, asking(), NOW)
    first = last = verify(certificate_from(pem), ca.certificate, NOW)
    for number in range(1, count + 1):
        now = NOW + number * LIFETIME_S / 2
        pem = ca.renew(der(pem), now)
        renewed = verify(certificate_from(pem), ca.certificate, now)
        assert (renewed.bearer, renewed.public) == (first.bearer, first.public)
        assert renewed.serial != last.serial
        assert renewed.validity.not_after == now + LIFETIME_S
        last = renewed
    assert all(each.serial not in revoked(ca) for each in (first, last))


def test_however_often_a_device_renews_it_has_two_certificates_at_most(ca: Authority) -> None:
    """The attack: 18 renewals a second, and once they are revoked the list is too long for anybody to fetch."""
    first = ca.admit(ca.make_token(TRUCK, NOW, HOUR_S).secret, asking(), NOW)
    assert {ca.renew(der(first), NOW + second) for second in range(20)} == {first}
    due = NOW + 0.6 * LIFETIME_S
    successors = {ca.renew(der(first), due + second) for second in range(20)}
    (second,) = successors
    assert second != first
    assert ca.renew(der(second), due + 30) == second
    assert len(ca.revoke(TRUCK, due + 40)) == 2


# --- stories


def test_nothing_in_the_folder_holds_a_token_and_secrets_are_closed_to_others(ca: Authority) -> None:
    token = ca.make_token(None, NOW, HOUR_S)
    ca.admit(token.secret, asking(), NOW)
    for file in ca.folder.iterdir():
        assert token.secret not in file.read_bytes()
        assert token.text().encode() not in file.read_bytes()
    assert (ca.folder.stat().st_mode & 0o777) == 0o700
    assert {file.name: file.stat().st_mode & 0o777 for file in ca.folder.iterdir()} == {
        KEY: 0o600, BOOKS: 0o600, "ca.pem": 0o644, CRL: 0o644
    }  # fmt: skip


def test_a_second_authority_does_not_overwrite_the_first(ca: Authority) -> None:
    before = (ca.folder / KEY).read_bytes()
    with pytest.raises(ConfigError, match="already holds an authority"):
        Authority.found(ca.folder, FEDERATION, NOW)
    assert (ca.folder / KEY).read_bytes() == before
    assert Authority(ca.folder).fingerprint == ca.fingerprint


def test_an_authority_that_is_missing_open_or_broken_is_refused(ca: Authority, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="ofl ca init"):
        Authority(tmp_path / "none")
    (ca.folder / KEY).chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        Authority(ca.folder)
    write_private(ca.folder / KEY, b"junk")
    with pytest.raises(ConfigError, match="cannot be used"):
        Authority(ca.folder)
    (ca.folder / BOOKS).unlink()
    with pytest.raises(ConfigError):
        Authority(ca.folder)


@pytest.mark.parametrize("name", [COORDINATOR, BROKER, "decryptor", "enrolment"])
def test_a_token_for_anybody_does_not_make_a_coordinator_or_a_broker(ca: Authority, name: str) -> None:
    token = ca.make_token(None, NOW, HOUR_S)
    with pytest.raises(RefusedError, match=r"token of its own|belongs to the enrolment service"):
        ca.admit(token.secret, asking(name), NOW)
    assert ca.admit(token.secret, asking(), NOW)


def test_a_token_for_anybody_does_not_take_the_name_of_an_enrolled_device(ca: Authority) -> None:
    ca.admit(ca.make_token(None, NOW, HOUR_S).secret, asking(), NOW)
    thief = ca.make_token(None, NOW, HOUR_S)
    with pytest.raises(RefusedError, match="enrolled already"):
        ca.admit(thief.secret, asking(number=1), NOW)


def test_a_device_that_lost_its_keys_is_admitted_again_and_the_old_certificate_ends(ca: Authority) -> None:
    old = ca.admit(ca.make_token(TRUCK, NOW, HOUR_S).secret, asking(), NOW)
    new = ca.admit(ca.make_token(TRUCK, NOW, HOUR_S).secret, asking(number=1), NOW)
    assert revoked(ca) == {certificate_from(old).serial_number}
    with pytest.raises(RefusedError, match="was revoked"):
        ca.renew(der(old), NOW)
    assert ca.renew(der(new), NOW)


def test_a_revoked_party_is_on_the_list_until_it_would_have_expired_anyway(ca: Authority) -> None:
    first = ca.admit(ca.make_token(TRUCK, NOW, HOUR_S).secret, asking(), NOW)
    now = NOW + LIFETIME_S / 2
    second = ca.renew(der(first), now)
    taken = {certificate_from(first).serial_number, certificate_from(second).serial_number}
    assert {each.serial for each in ca.revoke(TRUCK, now + 2, "stolen")} == taken
    assert revoked(ca) == taken
    for pem in (first, second):
        with pytest.raises(RefusedError, match="was revoked"):
            ca.renew(der(pem), now + 3)
    with pytest.raises(ConfigError, match="no valid certificate"):
        ca.revoke(TRUCK, now + 3)
    ca.write_crl(now + LIFETIME_S + 10)
    assert revoked(ca) == frozenset()


def test_what_expired_long_ago_is_forgotten_and_nothing_else(ca: Authority) -> None:
    ca.sign(DeviceId("truck-7"), asking("truck-7"), NOW)
    ca.sign(DeviceId("truck-8"), asking("truck-8"), NOW, 300 * DAY_S)
    ca.revoke("truck-8", NOW)
    ca.make_token(TRUCK, NOW, HOUR_S)
    ca.tidy(NOW + LIFETIME_S + KEPT_S - 1)
    assert [each.name for each in ca.books.certificates()] == ["truck-7", "truck-8"]
    ca.tidy(NOW + LIFETIME_S + KEPT_S + 1)
    assert [each.name for each in ca.books.certificates()] == ["truck-8"]
    assert ca.books.tokens() == []
    assert len(revoked(ca)) == 1


def test_lists_are_numbered_upwards(ca: Authority) -> None:
    numbers = []
    for _ in range(3):
        ca.write_crl(NOW)
        extensions = x509.load_pem_x509_crl(ca.crl()).extensions
        numbers.append(extensions.get_extension_for_class(x509.CRLNumber).value.crl_number)
    assert numbers == sorted(set(numbers))


def test_an_expired_or_foreign_certificate_is_not_renewed(ca: Authority, tmp_path: Path) -> None:
    pem = ca.admit(ca.make_token(TRUCK, NOW, HOUR_S).secret, asking(), NOW)
    with pytest.raises(RefusedError, match="expired at"):
        ca.renew(der(pem), NOW + LIFETIME_S + 1)
    other = Authority.found(tmp_path / "other", FEDERATION, NOW)
    with pytest.raises(RefusedError, match="not issued by this federation's authority"):
        other.renew(der(pem), NOW)
    with sqlite3.connect(ca.folder / BOOKS) as books:
        books.execute("DELETE FROM certificate")
    with pytest.raises(RefusedError, match="not in the authority's books"):
        ca.renew(der(pem), NOW)


def test_a_request_for_another_federation_or_none_at_all_is_refused_and_the_token_stays_good(ca: Authority) -> None:
    token = ca.make_token(TRUCK, NOW, HOUR_S)
    with pytest.raises(RefusedError, match="authority of demo, not of other"):
        ca.admit(token.secret, asking(federation=FederationId("other")), NOW)
    with pytest.raises(RefusedError, match="no request for a certificate"):
        ca.admit(token.secret, b"junk", NOW)
    assert ca.admit(token.secret, asking(), NOW)


def test_a_broker_needs_hosts_and_nobody_else_has_them(ca: Authority) -> None:
    for name, hosts in ((BROKER, ()), (TRUCK, ("broker.example",)), (None, ("broker.example",))):
        with pytest.raises(ConfigError, match="host names belong to the broker"):
            ca.make_token(name, NOW, HOUR_S, hosts=hosts)
    token = ca.make_token(BROKER, NOW, HOUR_S, hosts=["broker.example", "127.0.0.1"])
    seen = verify(certificate_from(ca.admit(token.secret, asking(BROKER), NOW)), ca.certificate, NOW)
    assert set(seen.hosts) == {"broker.example", "127.0.0.1"}
    assert seen.validity.not_after == NOW + BROKER_LIFETIME_S


@pytest.mark.parametrize(("valid_s", "lifetime_s"), [(0.0, None), (-1.0, None), (60.0, 1e12), (60.0, -5.0)])
def test_times_that_make_no_sense_are_refused(ca: Authority, valid_s: float, lifetime_s: float | None) -> None:
    with pytest.raises(ConfigError):
        ca.make_token(TRUCK, NOW, valid_s, lifetime_s=lifetime_s)


def test_a_request_that_was_carried_is_answered_and_the_books_show_everybody(ca: Authority) -> None:
    pem = ca.sign(DeviceId("truck-7"), asking("truck-7"), NOW, LIFETIME_S)
    assert verify(certificate_from(pem), ca.certificate, NOW).bearer.name == "truck-7"
    ca.sign(DeviceId("truck-8"), asking("truck-8"), NOW)
    ca.revoke("truck-8", NOW, "sold")
    ca.make_token(None, NOW, HOUR_S)
    ca.make_token(TRUCK, NOW - 2 * HOUR_S, HOUR_S)
    shown = [line.split() for line in table(ca.books, NOW).splitlines()]
    assert [line[:2] for line in shown] == [
        ["id", "state"], ["truck-7", "valid"], ["truck-8", "revoked:"], ["(any)", "token"]
    ]  # fmt: skip
    assert "expired" in table(ca.books, NOW + 2 * LIFETIME_S)


def test_a_failure_leaves_the_token_unused(ca: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    token = ca.make_token(TRUCK, NOW, HOUR_S)

    def full(*_: object) -> None:
        raise sqlite3.OperationalError("disk full")

    with monkeypatch.context() as patched:
        patched.setattr(ca.books, "use_token", full)
        with pytest.raises(OflError, match="disk full"):
            ca.admit(token.secret, asking(), NOW)
    assert ca.books.certificates() == []
    assert ca.admit(token.secret, asking(), NOW)


def test_who_is_revoked_by_another_process_at_the_last_moment_is_not_renewed(
    ca: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    pem = ca.admit(ca.make_token(TRUCK, NOW, HOUR_S).secret, asking(), NOW)
    begin = ca.books.transaction

    def after_the_other() -> AbstractContextManager[None]:
        other = Authority(ca.folder)
        other.revoke(TRUCK, NOW)
        other.close()
        return begin()

    monkeypatch.setattr(ca.books, "transaction", after_the_other)
    with pytest.raises(RefusedError, match="was revoked"):
        ca.renew(der(pem), NOW)
    assert len(ca.books.certificates(TRUCK)) == 1
