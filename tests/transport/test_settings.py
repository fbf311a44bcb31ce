"""Settings that cannot work are refused with a hint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from ofl_iot.errors import ConfigError
from ofl_iot.transport.settings import Address, MqttSettings, TlsSettings


@pytest.mark.parametrize(
    ("changes", "hint"),
    [
        ({"hosts": ()}, "name at least one broker"),
        ({"hosts": ("",)}, "write it as"),
        ({"hosts": ("a b",)}, "write it as"),
        ({"hosts": ("a:",)}, "write it as"),
        ({"hosts": ("a:x",)}, "write it as"),
        ({"hosts": ("[::1",)}, "write it as"),
        ({"hosts": ("[::1]9",)}, "write it as"),
        ({"hosts": ("a:70000",)}, "choose 1 to 65535"),
        ({"port": 0}, "choose 1 to 65535"),
        ({"password": "x"}, "add username"),
        ({"keepalive_s": 0}, "1 to 65535 seconds"),
        ({"connect_timeout_s": 0.0}, "positive number of seconds"),
        ({"echo_timeout_s": float("nan")}, "positive number of seconds"),
        ({"stop_timeout_s": float("inf")}, "positive number of seconds"),
        ({"backoff_min_s": 2.0, "backoff_max_s": 1.0}, "at least backoff_min_s = 2.0"),
        ({"max_inflight": 0}, "at least 1"),
        ({"max_packet_bytes": 10}, "choose 1024 to"),
    ],
)
def test_a_setting_that_cannot_work_is_refused(changes: dict[str, Any], hint: str) -> None:
    with pytest.raises(ConfigError, match=hint):
        MqttSettings(**changes)


def test_hosts_may_carry_a_port() -> None:
    settings = MqttSettings(hosts=("a", "b:1", "::1", "[::1]", "[::1]:2"), port=9)
    assert settings.addresses() == (
        Address("a", 9), Address("b", 1), Address("::1", 9), Address("::1", 9), Address("::1", 2)
    )  # fmt: skip
    assert [str(address) for address in settings.addresses()][1::3] == ["b:1", "[::1]:2"]


def test_settings_are_read_from_plain_data() -> None:
    settings = msgspec.convert({"hosts": ["x"], "tls": {"ca": "/ca.pem"}}, MqttSettings)
    assert settings.tls == TlsSettings(ca="/ca.pem")
    with pytest.raises(ConfigError):
        msgspec.convert({"keepalive_s": 0}, MqttSettings)


def test_the_password_is_never_shown() -> None:
    assert "hunter2" not in repr(MqttSettings(username="u", password="hunter2"))  # noqa: S106


def test_tls_files_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="both cert and key"):
        TlsSettings(ca="a", cert="b")
    with pytest.raises(ConfigError, match="there is no file"):
        TlsSettings(ca=str(tmp_path / "none.pem")).context()
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("not a certificate")
    with pytest.raises(ConfigError, match="must be PEM files"):
        TlsSettings(ca=str(garbage)).context()
