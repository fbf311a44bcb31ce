"""An identity folder: all that is wrong with one is told, with what to do about it."""

from __future__ import annotations

import ssl
import time
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from ofl_iot.crypto.entropy import SystemEntropy
from ofl_iot.errors import ConfigError
from ofl_iot.identity.certificates import Request, SigningAuthority, Validity
from ofl_iot.identity.names import Bearer
from ofl_iot.ids import DeviceId
from ofl_iot.transport.identity import CA, CERTIFICATE, CRL, KEY, SEALING, IdentityFolder
from ofl_iot.transport.settings import MqttSettings, TlsSettings
from tests.identity.certs import FEDERATION, key

NOW = time.time()
DAY_S = 86_400.0
SEALING_KEY = X25519PrivateKey.generate()
AUTHORITY, STRANGER = (SigningAuthority.found(FEDERATION, key(n), NOW, SystemEntropy()) for n in (50, 51))


def private(path: Path, made: Any) -> None:
    path.write_bytes(made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    path.chmod(0o600)


def issue(folder: Path, by: SigningAuthority = AUTHORITY, now: float = NOW, sealing: bytes | None = None) -> None:
    public = SEALING_KEY.public_key().public_bytes_raw() if sealing is None else sealing
    request = Request(Bearer(FEDERATION, DeviceId("truck-1"), public), key().public_key())
    made = by.issue(request, Validity.beginning(now, 30 * DAY_S), SystemEntropy())
    (folder / CERTIFICATE).write_bytes(made.public_bytes(Encoding.PEM))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / CA).write_bytes(AUTHORITY.certificate.public_bytes(Encoding.PEM))
    private(tmp_path / KEY, key())
    private(tmp_path / SEALING, SEALING_KEY)
    issue(tmp_path)
    return tmp_path


def test_a_good_folder_gives_a_name_a_sealing_key_and_tls_of_the_newest_kind(folder: Path) -> None:
    enrolment = IdentityFolder(folder).load()
    assert enrolment.name == "truck-1"
    assert enrolment.sealing_private == SEALING_KEY.private_bytes_raw()
    context = MqttSettings(identity=str(folder)).context()
    assert context is not None
    assert context.minimum_version == ssl.TLSVersion.TLSv1_3
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert context.check_hostname
    assert MqttSettings().context() is None


def test_a_party_to_whom_nobody_seals_has_no_sealing_key(folder: Path) -> None:
    (folder / SEALING).unlink()
    issue(folder, sealing=b"")
    assert IdentityFolder(folder).load().sealing_private == b""


@pytest.mark.parametrize("name", [CA, CERTIFICATE, KEY, SEALING])
def test_a_missing_or_damaged_file_is_named(folder: Path, name: str) -> None:
    (folder / name).write_bytes(b"junk")
    with pytest.raises(ConfigError, match=r"no certificate|is no private key"):
        IdentityFolder(folder).context()
    (folder / name).unlink()
    with pytest.raises(ConfigError, match=f"there is no {name}; enrol with"):
        IdentityFolder(folder).context()
    assert IdentityFolder(folder).complete == (name == SEALING)


def test_a_missing_folder_is_told_before_anything_is_connected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder; enrol with `ofl enroll join`"):
        MqttSettings(identity=str(tmp_path / "none")).context()


@pytest.mark.parametrize("name", [KEY, SEALING])
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_private_key_that_others_can_read_is_refused(folder: Path, name: str, mode: int) -> None:
    (folder / name).chmod(mode)
    with pytest.raises(ConfigError, match=f"{name} is open to others .*chmod 600"):
        IdentityFolder(folder).load()


@pytest.mark.parametrize(
    ("away_s", "reason"), [(31 * DAY_S, "expired at .* enrol"), (-DAY_S, "set the clock")], ids=["late", "early"]
)
def test_an_expired_certificate_and_a_wrong_clock_are_told(folder: Path, away_s: float, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        IdentityFolder(folder, lambda: NOW + away_s).load()


def test_a_certificate_of_another_authority_is_refused(folder: Path) -> None:
    issue(folder, by=STRANGER)
    with pytest.raises(ConfigError, match="not issued by this federation's authority"):
        IdentityFolder(folder).load()


def test_keys_that_do_not_fit_the_certificate_are_refused(folder: Path) -> None:
    private(folder / SEALING, X25519PrivateKey.generate())
    with pytest.raises(ConfigError, match=r"sealing.pem is not the key that certificate.pem names"):
        IdentityFolder(folder).load()
    private(folder / KEY, key(7))
    with pytest.raises(ConfigError, match=r"key.pem is not the key of certificate.pem"):
        IdentityFolder(folder).load()


def test_keys_of_another_kind_are_refused(folder: Path) -> None:
    private(folder / SEALING, key(7))
    with pytest.raises(ConfigError, match="holds no X25519 key"):
        IdentityFolder(folder).load()
    private(folder / KEY, SEALING_KEY)
    with pytest.raises(ConfigError, match="holds no ECDSA key"):
        IdentityFolder(folder).load()


def test_the_revocation_list_is_read_if_the_authority_signed_it(folder: Path) -> None:
    validity = Validity.beginning(NOW, DAY_S)
    (folder / CRL).write_bytes(AUTHORITY.revocation_list([(7, NOW)], 1, validity).public_bytes(Encoding.PEM))
    assert IdentityFolder(folder).load().revoked == {7}
    (folder / CRL).write_bytes(STRANGER.revocation_list([], 1, validity).public_bytes(Encoding.PEM))
    with pytest.raises(ConfigError, match="not signed by this federation's authority"):
        IdentityFolder(folder).load()


def test_a_list_that_was_not_fetched_yet_revokes_nobody_but_an_empty_one_is_damaged(folder: Path) -> None:
    unit = (Path(__file__).parents[2] / "systemd/ofl-agent.service").read_text()
    (folder / CRL).write_text(unit.partition("SetCredential=crl.pem:")[2].partition("\n")[0])
    assert IdentityFolder(folder).load().revoked == frozenset()
    (folder / CRL).write_text("")
    with pytest.raises(ConfigError, match="no revocation list"):
        IdentityFolder(folder).load()


def test_tls_and_an_identity_together_are_refused() -> None:
    with pytest.raises(ConfigError, match="remove tls"):
        MqttSettings(identity="folder", tls=TlsSettings(ca="ca.pem"))


def test_what_a_service_manager_hands_over_may_show_an_access_list_as_its_group(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / KEY).chmod(0o440)
    with pytest.raises(ConfigError, match="open to others"):
        IdentityFolder(folder).load()
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(folder))
    assert IdentityFolder(folder).load().name == "truck-1"
    (folder / KEY).chmod(0o444)
    with pytest.raises(ConfigError, match="open to others"):
        IdentityFolder(folder).load()
