"""`ofl broker profile`: what it writes, what it says, what it refuses."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import pytest

from ofl_agents.cli import main
from ofl_broker.mosquitto import ACL, CONFIG, DATA


def profile(folder: Path, *more: str) -> int:
    return main(["broker", "profile", "mosquitto", "--out", str(folder / "site"), *more])


def test_it_writes_a_configuration_and_says_what_comes_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert profile(tmp_path, "--set", "federation.id=north", "--port", "9000", "--crl", "revoked.pem") == 0
    said = capsys.readouterr().out
    folder = tmp_path / "site"
    config, acl = (folder / CONFIG).read_text(), (folder / ACL).read_text()
    assert (folder / DATA).is_dir()
    assert stat.S_IMODE((folder / CONFIG).stat().st_mode) == 0o640
    assert "listener 9000 0.0.0.0" in config
    assert f"acl_file {folder / ACL}" in config
    assert f"crlfile {Path('revoked.pem').absolute()}" in config
    assert "ofl/v1/north/device/%u/status" in acl
    for file in ("ca.pem", "broker.pem", "broker.key"):
        assert f"put {folder / file} there" in said
    assert f"mosquitto -c {folder / CONFIG}" in said
    assert "mqtt.port = 9000" in said


def test_an_enrolled_folder_has_all_the_certificates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    held = tmp_path / "identity"
    held.mkdir()
    for file in ("ca.pem", "certificate.pem", "key.pem"):
        (held / file).touch()
    assert profile(tmp_path, "--identity", str(held)) == 0
    config = (tmp_path / "site" / CONFIG).read_text()
    for setting, file in (("cafile", "ca.pem"), ("certfile", "certificate.pem"), ("keyfile", "key.pem")):
        assert f"{setting} {held / file}\n" in config
    assert "crlfile" not in config
    assert " there\n" not in capsys.readouterr().out
    (held / "crl.pem").touch()
    assert profile(tmp_path, "--force", "--identity", str(held)) == 0
    assert f"crlfile {held / 'crl.pem'}\n" in (tmp_path / "site" / CONFIG).read_text()
    assert profile(tmp_path, "--force", "--identity", str(held), "--ca", "ca.pem") == 2
    assert "leave --ca, --cert and --key out" in capsys.readouterr().err


def test_the_packets_it_lets_through_are_those_the_parties_send(tmp_path: Path) -> None:
    assert profile(tmp_path, "--set", "mqtt.max_packet_bytes=123456") == 0
    assert "max_packet_size 123456\n" in (tmp_path / "site" / CONFIG).read_text()


def test_it_overwrites_only_when_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert profile(tmp_path) == 0
    (tmp_path / "site" / ACL).write_text("# mine\n")
    assert profile(tmp_path) == 2
    assert "overwrite with --force" in capsys.readouterr().err
    assert (tmp_path / "site" / ACL).read_text() == "# mine\n"
    assert profile(tmp_path, "--force") == 0
    assert (tmp_path / "site" / ACL).read_text() != "# mine\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--port", "70000"], "port 70000 does not exist"),
        (["--host", "a b"], "give an address or name"),
        (["--user", "root\nallow_anonymous true"], "give the name of a system user"),
        (["--cert", "a b.pem"], "characters a broker's configuration cannot hold"),
        (["--max-connections", "0"], "choose at least 1, or -1 for no limit"),
        (["--memory-limit-bytes", "1000000"], "choose at least 8 times"),
        (["--max-queued-bytes", "0"], "max_queued_bytes = 0: choose at least 1"),
        (["--set", "federation.id=North Sea"], "lower-case letters"),
    ],
)
def test_what_cannot_stand_in_a_configuration_is_refused(
    arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert profile(tmp_path, *arguments) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "site").exists()


def test_a_folder_that_cannot_be_written_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["broker", "profile", "mosquitto", "--out", "/dev/null/site"]) == 2
    assert "cannot write to /dev/null/site" in capsys.readouterr().err


def nats(folder: Path, *more: str) -> int:
    return main(["broker", "profile", "nats", "--out", str(folder / "site"), *more])


def test_a_cluster_on_several_machines_has_a_folder_for_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ids").write_text("coordinator\nbroker\ntruck-1\n\n truck-2 \ntruck-1\n")
    assert nats(tmp_path, "--at", "a.example", "b.example", "c.example", "--devices", str(tmp_path / "ids")) == 0
    said = capsys.readouterr().out
    configs = [(tmp_path / "site" / f"node-{number}" / "nats.conf").read_text() for number in (1, 2, 3)]
    for config, own, other in zip(configs, "abc", "bca", strict=True):
        assert f'listen: "{own}.example:6222"' in config
        assert f"@{other}.example:6222" in config
        assert f"@{own}.example" not in config
        assert "stream_replicas: 3" in config
        assert "max_file_store: 4294967296" in config
        assert config.count("verify_and_map: true") == 2
    access = (tmp_path / "site" / "node-3" / "access.conf").read_text()
    assert re.findall(r'user: "CN=([a-z0-9-]+)"', access)[-2:] == ["truck-1", "truck-2"]
    assert 'mqtt.hosts = ["a.example:8883", "b.example:8883", "c.example:8883"]' in said
    assert "open the cluster port to the nodes only" in said


def test_a_trial_on_one_machine_needs_no_certificates_and_takes_consecutive_ports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert nats(tmp_path, "--no-tls", "--port", "2000") == 0
    assert 'mqtt.hosts = ["127.0.0.1:2000", "127.0.0.1:2001", "127.0.0.1:2002"]' in capsys.readouterr().out
    assert {file.name for file in (tmp_path / "site" / "node-2").iterdir()} == {"nats.conf", "data"}


def test_without_a_list_of_devices_it_says_that_none_may_come_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert nats(tmp_path) == 0
    assert "no device is known yet" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--nodes", "2"], "choose 3 or 5"),
        (["--at", "a.example"], "3 nodes at 1 hosts"),
        (["--no-tls", "--at", "10.0.0.1", "10.0.0.2", "10.0.0.3"], "without TLS anybody could take part"),
        (["--port", "65535"], "port 65536 does not exist"),
        (["--devices", "/nowhere"], "name a file with one id a line"),
        (["--devices", "pyproject.toml"], "use 1 to 48 lower-case letters"),
        (["--at", "a b", "c", "d"], "give an address or name"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused(
    arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert nats(tmp_path, *arguments) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "site").exists()


def test_a_cluster_that_is_written_anew_keeps_its_password_and_another_has_another(tmp_path: Path) -> None:
    def passwords(folder: Path) -> set[str]:
        texts = [file.read_text() for file in folder.glob("site/node-*/nats.conf")]
        return {found for text in texts for found in re.findall(r'password: "(\w+)"', text)}

    assert nats(tmp_path, "--no-tls") == 0
    before = passwords(tmp_path)
    assert len(before) == 1
    assert nats(tmp_path, "--no-tls", "--nodes", "5", "--force") == 0
    assert len(list(tmp_path.glob("site/node-*"))) == 5
    assert passwords(tmp_path) == before
    assert nats(tmp_path / "other", "--no-tls") == 0
    assert passwords(tmp_path / "other") != before


def test_a_configuration_is_closed_to_others_before_it_says_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def powerless(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "fchmod", powerless)
    monkeypatch.setattr(Path, "chmod", powerless)
    assert nats(tmp_path, "--no-tls") == 2
    assert [file.read_text() for file in tmp_path.rglob("nats.conf")] == [""]
