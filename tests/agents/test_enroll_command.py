"""`ofl ca` and `ofl enroll` as an operator types them: what they print, take, refuse."""

from __future__ import annotations

import io
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ofl_agents.cli import main
from ofl_agents.commands import enroll
from ofl_agents.enrolment.authority import Authority
from ofl_iot.identity.tokens import JoinToken
from ofl_iot.ids import FederationId
from ofl_iot.transport.identity import CRL, KEY, IdentityFolder
from tests.agents.test_enrolment import Running, service
from tests.e2e.processes import OFL

__all__ = ["service"]
Ofl = Callable[..., str]


@pytest.fixture
def ofl(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Ofl:
    """`ofl(*arguments, fails=0)`: what it prints; with `fails`, what it complains of with that exit code."""
    monkeypatch.delenv(enroll.TOKEN_VARIABLE, raising=False)
    monkeypatch.setattr("sys.stdin", io.StringIO())

    def run(*arguments: object, fails: int = 0) -> str:
        code = main([str(each) for each in arguments])
        said = capsys.readouterr()
        assert code == fails, said
        assert "Traceback" not in said.err
        return said.err if fails else said.out

    return run


@pytest.fixture
def at(service: Running) -> str:
    return str(service.address)


def fingerprint(ofl: Ofl, ca: Path) -> str:
    found = re.search(r"fingerprint +([0-9a-f]{64})", ofl("ca", "show", "--ca", ca))
    assert found
    return found[1]


def test_an_authority_is_made_once_and_shown(ofl: Ofl, tmp_path: Path) -> None:
    made = ofl("ca", "init", "--ca", tmp_path / "ca", "--federation", "plant-7")
    assert "plant-7" in made
    assert ofl("ca", "show", "--ca", tmp_path / "ca") == made
    assert "already holds an authority" in ofl("ca", "init", "--ca", tmp_path / "ca", fails=2)
    assert "lower-case" in ofl("ca", "init", "--ca", tmp_path / "b", "--federation", "Plant 7", fails=2)
    assert "ofl ca init" in ofl("ca", "show", "--ca", tmp_path / "none", fails=2)


def test_a_printed_token_has_the_authoritys_fingerprint(ofl: Ofl, service: Running) -> None:
    token = JoinToken.parse(ofl("enroll", "token", "--ca", service.folder, "--id", "truck-1"))
    assert token.fingerprint.hex() == fingerprint(ofl, service.folder)
    assert token.name == "truck-1"


@pytest.mark.parametrize("way", ["option", "file", "stdin", "environment", "prompt"])
def test_a_token_is_taken_by_any_way(
    way: str, ofl: Ofl, service: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    assert ofl("enroll", "token", "--ca", service.folder, "--out", file) == ""
    assert file.stat().st_mode & 0o777 == 0o600
    text = file.read_text()
    given = {"option": ["--token", text.strip()], "file": ["--token-file", file], "stdin": ["--token-file", "-"]}
    if way == "stdin":
        monkeypatch.setattr("sys.stdin", io.StringIO(text))
    elif way == "environment":
        monkeypatch.setenv(enroll.TOKEN_VARIABLE, text)
    elif way == "prompt":
        monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
        monkeypatch.setattr("getpass.getpass", lambda _: text)
    join = ("enroll", "join", "--identity", tmp_path / "truck", "--server", service.address, "--id", "truck-1")
    assert "enrolled truck-1 until" in ofl(*join, *given.get(way, []))
    assert IdentityFolder(tmp_path / "truck").load().name == "truck-1"


def test_joining_without_what_it_needs_says_what_is_missing(
    ofl: Ofl, service: Running, at: str, tmp_path: Path
) -> None:
    join = ("enroll", "join", "--identity", tmp_path / "truck", "--server", at)
    assert "no token" in ofl(*join, "--id", "truck-1", fails=2)
    assert "no join token" in ofl(*join, "--id", "truck-1", "--token", "nonsense", fails=2)
    assert "cannot read" in ofl(*join, "--token-file", tmp_path / "none", fails=2)
    token = ofl("enroll", "token", "--ca", service.folder).strip()
    assert "--id" in ofl(*join, "--token", token, fails=2)
    assert "host:port" in ofl(*join[:-1], "nowhere", "--id", "truck-1", "--token", token, fails=2)
    assert not (tmp_path / "truck").exists()


def test_a_device_is_renewed_listed_revoked_and_refused(ofl: Ofl, service: Running, at: str, tmp_path: Path) -> None:
    truck = tmp_path / "truck"
    token = ofl("enroll", "token", "--ca", service.folder, "--id", "truck-1").strip()
    ofl("enroll", "join", "--identity", truck, "--server", at, "--token", token)
    serial = IdentityFolder(truck).load().credential.serial
    ofl("enroll", "renew", "--identity", truck, "--if-due")
    assert IdentityFolder(truck).load().credential.serial == serial
    ofl("enroll", "renew", "--identity", truck)
    assert IdentityFolder(truck).load().credential.serial == serial, "the first half of its lifetime it is the newest"
    assert len(re.findall("truck-1 +valid", ofl("enroll", "list", "--ca", service.folder))) == 1
    assert "SIGHUP" in ofl("enroll", "revoke", "--ca", service.folder, "--id", "truck-1", "--reason", "sold")
    assert "was revoked" in ofl("enroll", "renew", "--identity", truck, "--server", at, fails=1)
    ofl("enroll", "crl", "--identity", truck, "--out", tmp_path / "fetched.pem")
    assert (truck / CRL).read_bytes() == (tmp_path / "fetched.pem").read_bytes() == service.ca.crl()
    assert serial in IdentityFolder(truck).load().revoked
    ofl("enroll", "crl", "--ca", service.folder, "--out", tmp_path / "fresh.pem")
    assert (tmp_path / "fresh.pem").read_bytes() == service.ca.crl()
    assert "no valid certificate" in ofl("enroll", "revoke", "--ca", service.folder, "--id", "truck-1", fails=2)


def test_a_change_is_told_when_a_certificate_is_new_or_somebody_was_revoked(
    ofl: Ofl, service: Running, at: str, tmp_path: Path
) -> None:
    changed, truck = tmp_path / "changed", tmp_path / "truck"
    for name in ("truck", "other"):
        token = ofl("enroll", "token", "--ca", service.folder, "--id", name).strip()
        ofl("enroll", "join", "--identity", tmp_path / name, "--server", at, "--token", token)
    crl = ("enroll", "crl", "--identity", truck, "--changed", changed)
    renew = ("enroll", "renew", "--identity", truck, "--changed", changed)

    def tells(*arguments: object) -> bool:
        changed.unlink(missing_ok=True)
        ofl(*arguments)
        return changed.exists()

    assert not tells(*crl)  # a first list, and nobody on it
    assert not tells(*renew, "--if-due")
    assert tells(*renew)
    ofl("enroll", "revoke", "--ca", service.folder, "--id", "other")
    assert tells(*crl)
    ofl("enroll", "crl", "--ca", service.folder)  # signed anew, as every day
    assert not tells(*crl)
    (truck / CRL).write_bytes(b"damaged")
    assert tells(*crl)


def test_a_device_without_a_network_is_enrolled_by_files(ofl: Ofl, service: Running, tmp_path: Path) -> None:
    truck, request, answer = tmp_path / "truck", tmp_path / "request.pem", tmp_path / "answer.pem"
    ofl("enroll", "request", "--identity", truck, "--id", "truck-1", "--out", request)
    assert (truck / KEY).read_text().splitlines()[1] not in request.read_text()
    sign = ("enroll", "sign", "--ca", service.folder, "--request", request, "--out", answer, "--days", 3)
    assert re.match(r"signed truck-1 until \d{4}-", ofl(*sign, "--id", "truck-1"))
    accept = ("enroll", "accept", "--identity", truck, "--id", "truck-1", "--answer")
    assert "fingerprint" in ofl(*accept, answer, "--fingerprint", "00", fails=2)
    assert "two certificates" in ofl(*accept, request, "--fingerprint", "00", fails=2)
    assert "enrolled truck-1" in ofl(*accept, answer, "--fingerprint", fingerprint(ofl, service.folder))
    assert "--server" in ofl("enroll", "renew", "--identity", truck, fails=2)
    assert "ofl enroll renew" in ofl(
        *("enroll", "request", "--identity", truck, "--id", "truck-1", "--out", request), fails=2
    )


def test_a_request_is_signed_for_the_name_that_the_operator_expects_alone(
    ofl: Ofl, service: Running, tmp_path: Path
) -> None:
    request, answer = tmp_path / "request.pem", tmp_path / "answer.pem"
    ofl("enroll", "request", "--identity", tmp_path / "thief", "--id", "coordinator", "--out", request)
    sign = ("enroll", "sign", "--ca", service.folder, "--request", request, "--out", answer)
    assert "this request is of coordinator, not of truck-1" in ofl(*sign, "--id", "truck-1", fails=1)
    assert not answer.exists()
    assert "coordinator" not in ofl("enroll", "list", "--ca", service.folder)
    with pytest.raises(SystemExit):
        ofl(*sign)


def test_a_broker_gets_its_hosts(ofl: Ofl, service: Running, at: str, tmp_path: Path) -> None:
    assert "host" in ofl("enroll", "token", "--ca", service.folder, "--id", "broker", fails=2)
    token = ofl("enroll", "token", "--ca", service.folder, "--id", "broker", "--host", "broker.example").strip()
    ofl("enroll", "join", "--identity", tmp_path / "broker", "--server", at, "--token", token)
    assert IdentityFolder(tmp_path / "broker").load().credential.hosts == ("broker.example",)


def test_the_service_is_a_process_that_ends_when_asked_and_an_agent_with_a_bad_folder_does_not_start(
    ofl: Ofl, service: Running, tmp_path: Path
) -> None:
    serve = subprocess.Popen(  # noqa: S603  # our own program
        [str(OFL), "enroll", "serve", "--ca", str(service.folder), "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert serve.stdout is not None
        port = serve.stdout.readline().rpartition("=")[2].strip()
        token = ofl("enroll", "token", "--ca", service.folder, "--id", "truck-1").strip()
        join = ("enroll", "join", "--identity", tmp_path / "truck", "--server", f"127.0.0.1:{port}")
        assert "enrolled truck-1" in ofl(*join, "--token", token)
    finally:
        serve.send_signal(signal.SIGTERM)
        with serve:
            assert serve.wait(20) == 0
    agent = ("agent", "--id", "truck-2", "--part", "1/2", "--state", tmp_path, "--set")
    assert "is of truck-1, not of truck-2" in ofl(*agent, f"mqtt.identity={tmp_path / 'truck'}", fails=2)
    (tmp_path / "truck" / KEY).chmod(0o644)
    coordinator = ("coordinator", "--state", tmp_path, "--set", f"mqtt.identity={tmp_path / 'truck'}")
    assert "chmod 600" in ofl(*coordinator, fails=2)


def test_tokens_for_a_fleet_are_one_a_line_and_a_bad_count_gets_a_sentence(ofl: Ofl, tmp_path: Path) -> None:
    ca = tmp_path / "fleet-ca"
    Authority.found(ca, FederationId("depot"), time.time()).close()
    tokens = ofl("fleet", "token", "--ca", ca, "--count", 50).split()
    assert len(set(tokens)) == 50
    assert {JoinToken.parse(each).name for each in tokens} == {None}
    assert "choose 1 to 10000" in ofl("fleet", "token", "--ca", ca, "--count", 0, fails=2)
