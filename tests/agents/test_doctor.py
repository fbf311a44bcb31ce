"""`ofl doctor`: what is well is found well, what is not is told with advice, and nothing is disturbed."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import msgspec
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from hypothesis import given
from hypothesis import strategies as st

from ofl_agents.cli import main
from ofl_agents.doctor import machine
from ofl_agents.doctor.findings import EXIT_CODES, Finding, Level, exit_code
from ofl_agents.doctor.identity import enrolled_name, identity
from ofl_agents.doctor.state import state
from ofl_iot.crypto.entropy import SystemEntropy
from ofl_iot.identity.certificates import DAY_S, Request, SigningAuthority, Validity
from ofl_iot.identity.names import Bearer
from ofl_iot.ids import DeviceId
from ofl_iot.privacy.events import Budget, DpSgdSteps
from ofl_iot.privacy.ledger import Ledger
from ofl_iot.roles.device.privacy_guard import PrivacyRules
from ofl_iot.roles.storage import Put
from ofl_iot.runtime.store import SqliteStore
from ofl_iot.transport.identity import CA, CERTIFICATE, KEY
from ofl_iot.transport.settings import MqttSettings
from tests.certificates import Authority
from tests.conftest import MOSQUITTO
from tests.identity.certs import FEDERATION, key

ME = "truck-1"
needs_mosquitto = pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed")


@contextlib.contextmanager
def mosquitto(config: Path) -> Iterator[None]:
    """A broker that listens: it says that it is running when its ports are open."""
    assert MOSQUITTO is not None
    running = threading.Event()

    def read(log: IO[str]) -> None:
        for line in log:
            if line.rstrip().endswith(" running"):
                running.set()

    command = [MOSQUITTO, "-v", "-c", str(config)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:  # noqa: S603
        assert process.stderr is not None
        reader = threading.Thread(target=read, args=(process.stderr,))
        reader.start()
        try:
            assert running.wait(20)
            yield
        finally:
            process.terminate()
            reader.join()


def tls_options(authority: Authority, name: str) -> list[str]:
    files = {"ca": "ca.pem", "cert": f"{name}.pem", "key": f"{name}.key"}
    for file in files.values():
        Path(authority.path(file)).chmod(0o600)
    return [f"--set=mqtt.tls.{key}={authority.path(file)}" for key, file in files.items()]


@pytest.fixture
def doctor(tmp_path: Path, capsys: pytest.CaptureFixture[str], free_port: int) -> Any:
    """`doctor(*options)`: exit code and findings by check."""

    def ask(*options: str, name: str | None = ME) -> tuple[int, dict[str, list[dict[str, str]]]]:
        who = ["--id", name] if name else []
        where = ["--state", str(tmp_path / "state"), f"--set=mqtt.port={free_port}", "--timeout", "5"]
        code = main(["doctor", "--json", *who, *where, *options])
        findings: dict[str, list[dict[str, str]]] = {}
        for each in json.loads(capsys.readouterr().out):
            assert bool(each.get("advice")) == (each["level"] in ("warning", "error"))
            findings.setdefault(each["check"], []).append(each)
        return code, findings

    return ask


def said(findings: list[dict[str, str]]) -> str:
    return "; ".join(f"{each['level']}: {each['said']}" for each in findings)


# --- the app


OWN = """
from ofl_iot import Folder, NumpyApp
app = NumpyApp("own", "logistic", 2, 2, samples=Folder())
"""


def test_an_app_of_ones_own_is_loaded_and_its_data_are_counted(doctor: Any, tmp_path: Path) -> None:
    data, file = tmp_path / "data", tmp_path / "own.py"
    data.mkdir()
    file.write_text(OWN)
    given = ("--app", f"{file}:app", "--data", str(data))
    _, findings = doctor(*given)
    assert said(findings["app"]) == "ok: own with 6 parameters that travel"
    assert said(findings["data"]).startswith("warning: no records yet")
    (data / "a.csv").write_text("0.5,1.5,0\n2.5,3.5,1\n")
    (data / "b.csv").write_text("0.5\n")
    _, findings = doctor(*given)
    assert f"ok: 2 records ({data}); warning: set aside: b.csv" in said(findings["data"])
    _, findings = doctor(*given, name="coordinator")
    assert said(findings["data"]) == "ok: none are held out: models are not judged"
    _, findings = doctor("--app", f"{file}:absent")
    assert said(findings["app"]).startswith("error:")
    _, findings = doctor()
    assert said(findings["app"]) == "ok: machines, which is built in"


# --- findings


@given(st.lists(st.sampled_from(sorted(EXIT_CODES))))
def test_the_exit_code_is_that_of_the_worst(levels: list[Level]) -> None:
    code = exit_code([Finding("x", level, "") for level in levels])
    assert (code == 2) == ("error" in levels)
    assert (code == 0) == (not {"error", "warning"} & set(levels))


# --- the broker


def test_without_a_broker_the_port_and_the_session_are_errors(doctor: Any) -> None:
    code, findings = doctor("--timeout", "0.5")
    assert code == 2
    assert "Connection refused" in said(findings["ports"])
    assert "error: no session: Connection refused" in said(findings["broker"])
    assert "access" not in findings


@needs_mosquitto
def test_an_open_broker_lets_everyone_do_everything_and_that_is_told(
    doctor: Any, tmp_path: Path, free_port: int
) -> None:
    config = tmp_path / "open.conf"
    config.write_text(f"listener {free_port} 127.0.0.1\nallow_anonymous true\n")
    with mosquitto(config):
        code, findings = doctor()
        assert code == 1
        assert "ok: lets truck-1 in; ok: a round trip takes" in said(findings["broker"])
        assert said(findings["access"]) == (
            "warning: any device can speak as the coordinator; "
            "warning: any device can read what others send to their leaders"
        )
        assert said(doctor(name="coordinator")[1]["access"]).startswith("skipped")


@pytest.fixture
def secured(tmp_path: Path, free_port: int) -> Any:
    """`with secured() as authority`: mosquitto as `ofl broker profile` sets it up, for `truck-1` and `truck-2`."""

    @contextlib.contextmanager
    def run(*, valid: bool = True) -> Iterator[Authority]:
        authority = Authority(tmp_path / "pki")
        for name in (ME, "truck-2"):
            authority.issue(name)
        authority.issue("late", valid=False)
        authority.issue("broker", valid=valid)
        at, out = authority.path, tmp_path / "broker"
        files = [f"--ca={at('ca.pem')}", f"--cert={at('broker.pem')}", f"--key={at('broker.key')}"]
        user = ["--user=root"] if os.geteuid() == 0 else []
        where = [f"--out={out}", "--host=127.0.0.1", f"--port={free_port}"]
        assert main(["broker", "profile", "mosquitto", *where, *files, *user]) == 0
        with mosquitto(next(out.glob("*.conf"))):
            yield authority

    return run


@needs_mosquitto
def test_a_production_broker_is_found_well(doctor: Any, secured: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with secured() as authority:
        capsys.readouterr()
        _, findings = doctor(*tls_options(authority, ME))
    assert "TLSv1.3 with 127.0.0.1" in said(findings["tls"])
    assert "ok: lets truck-1 in; ok: a round trip takes" in said(findings["broker"])
    assert said(findings["access"]) == "ok: forbidden topics are closed"
    assert "expires in 0 days" in said(findings["identity"])


@needs_mosquitto
def test_certificates_that_are_expired_foreign_or_missing_are_told(
    doctor: Any, secured: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stranger = Authority(tmp_path / "stranger")
    stranger.issue(ME)
    with secured(valid=False) as authority:
        capsys.readouterr()
        _, expired = doctor(*tls_options(authority, ME), "--timeout", "0.5")
        assert "has expired" in said(expired["tls"])
        _, foreign = doctor(*tls_options(stranger, ME), "--timeout", "0.5")
        assert "error: 127.0.0.1" in said(foreign["tls"])
        _, late = doctor(*tls_options(authority, "late"), "--timeout", "0.5")
        assert "late.pem expired 0 days ago" in said(late["identity"])
        _, plain = doctor("--timeout", "0.5")
        assert "error: no session" in said(plain["broker"])


@needs_mosquitto
def test_a_port_without_tls_is_told(doctor: Any, tmp_path: Path, free_port: int) -> None:
    authority = Authority(tmp_path / "pki")
    authority.issue(ME)
    config = tmp_path / "open.conf"
    config.write_text(f"listener {free_port} 127.0.0.1\nallow_anonymous true\n")
    with mosquitto(config):
        _, findings = doctor(*tls_options(authority, ME), "--timeout", "0.5")
    assert "error" in said(findings["tls"])
    assert "TLS 1.3" in findings["tls"][0]["advice"]


def test_a_party_that_runs_is_not_disturbed(doctor: Any, tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    code = (
        "import sys; from pathlib import Path; from ofl_iot.runtime.store import SqliteStore\n"
        "store = SqliteStore(Path(sys.argv[1])); print('open', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(  # noqa: S603
        [sys.executable, "-c", code, str(folder / f"{ME}.sqlite")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as party:
        assert party.stdout is not None
        assert party.stdin is not None
        assert party.stdout.readline() == b"open\n"
        _, findings = doctor()
        assert "is in use" in said(findings["state"])
        assert "would take its name over" in said(findings["access"])
        party.stdin.close()
        assert party.wait(20) == 0
    assert "is whole" in said(doctor("--timeout", "0.2")[1]["state"])


# --- the state


def levels(findings: Iterator[Finding]) -> list[tuple[str, str]]:
    return [(finding.check, finding.level) for finding in findings]


def store_with(folder: Path, *ops: Put) -> Path:
    path = folder / f"{ME}.sqlite"
    with SqliteStore(path) as store:
        store.apply(ops)
    return path


def ledger(spent: int, left: int) -> Put:
    spend = (DpSgdSteps(1.0, 0.1, spent),) if spent else ()
    kept = Ledger(Budget(8.0), spend, DpSgdSteps(1.0, 0.1, left))
    return Put("device.privacy", "ledger", msgspec.msgpack.encode(kept.to_plain()))


@pytest.mark.parametrize(
    ("spent", "left", "expected"), [(0, 100, "ok"), (50, 50, "ok"), (95, 5, "warning"), (100, 0, "warning")]
)
def test_a_budget_that_comes_to_its_end_is_told(spent: int, left: int, expected: str, tmp_path: Path) -> None:
    found = list(state(store_with(tmp_path, ledger(spent, left)), PrivacyRules()))
    (budget,) = (finding for finding in found if finding.check == "budget")
    assert (budget.level, f"{left} of {spent + left} training steps" in budget.said) == (expected, True)


def test_a_budget_that_was_changed_or_switched_off_is_told(tmp_path: Path) -> None:
    path = store_with(tmp_path, ledger(1, 99))
    changed = list(state(path, PrivacyRules(epsilon=20.0)))
    assert "epsilon 20" in changed[-1].said
    assert changed[-1].level == "warning"
    for mode in ("off", "paper"):
        assert levels(state(path, PrivacyRules(mode=mode)))[-1] == ("budget", "warning")  # type: ignore[arg-type]


def test_keys_are_told_of_and_never_shown(tmp_path: Path) -> None:
    secret = b"0123456789abcdef"
    path = store_with(tmp_path, *(Put("keeper.keys", name, secret) for name in ("private", "public", "material")))
    found = list(state(path, PrivacyRules()))
    assert "a sealing key and the share of a joint key" in [finding.said for finding in found]
    assert not any(secret.decode() in finding.said or secret.hex() in finding.said for finding in found)


def test_a_store_that_is_damaged_open_to_others_or_not_there_yet_is_told(tmp_path: Path) -> None:
    path = tmp_path / f"{ME}.sqlite"
    assert levels(state(path, PrivacyRules())) == [("state", "ok")]
    store_with(tmp_path)
    path.chmod(0o644)
    assert levels(state(path, PrivacyRules()))[0] == ("state", "warning")
    path.write_bytes(b"not a database" * 1000)
    path.chmod(0o600)
    assert levels(state(path, PrivacyRules())) == [("state", "error")]
    assert path.read_bytes() == b"not a database" * 1000


def test_a_ledger_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    path = store_with(tmp_path, Put("device.privacy", "ledger", msgspec.msgpack.encode({"events": 1})))
    assert levels(state(path, PrivacyRules()))[-1] == ("budget", "error")


# --- this machine


def test_a_full_disk_and_a_folder_that_cannot_be_used_are_told(tmp_path: Path) -> None:
    assert levels(machine.disk(tmp_path, 1)) == [("disk", "ok"), ("disk", "ok")]
    assert levels(machine.disk(tmp_path / "a/b", 1)) == [("disk", "ok"), ("disk", "ok")]
    assert levels(machine.disk(tmp_path, 1 << 60))[1] == ("disk", "error")
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    assert levels(machine.disk(tmp_path, free // 2))[1] == ("disk", "warning")
    assert levels(machine.disk(Path("/proc"), 0))[0] == ("disk", "error")


def test_a_clock_that_stands_before_what_was_written_is_told(tmp_path: Path) -> None:
    store = tmp_path / "a.sqlite"
    store.touch()
    (before,) = machine.clock(tmp_path)
    assert before.level in ("ok", "skipped", "warning")
    os.utime(store, (time.time() + 3600, time.time() + 3600))
    (behind,) = machine.clock(tmp_path)
    assert behind.level == "error"
    assert "behind" in behind.said


@given(st.tuples(st.integers(0, 20), st.integers(0, 20)), st.integers(0, 20), st.integers(0, 20))
def test_a_version_fits_when_it_lies_within_its_bounds(version: tuple[int, int], low: int, high: int) -> None:
    text = f"{version[0]}.{version[1]}"
    assert machine._fits(text, f">={low},<{high}") == (low <= version[0] < high)


def test_the_packages_of_this_installation_fit() -> None:
    assert levels(machine.versions()) == [("versions", "ok")]


# --- the identity


def test_no_tls_is_well_on_this_machine_and_nowhere_else() -> None:
    assert levels(identity(MqttSettings(hosts=("127.0.0.1", "localhost", "[::1]")), ME)) == [("identity", "ok")]
    assert levels(identity(MqttSettings(hosts=("broker.example",)), ME)) == [("identity", "warning")]


def test_a_key_that_others_may_read_is_told(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tls = authority.issue(ME)
    Path(authority.path(f"{ME}.key")).chmod(0o644)
    assert ("identity", "warning") in levels(identity(MqttSettings(tls=tls), ME))[-1:]


def test_an_identity_that_is_missing_is_told(tmp_path: Path) -> None:
    (finding,) = identity(MqttSettings(identity=str(tmp_path / "none")), ME)
    assert finding.level == "error"
    assert "ofl enroll join" in finding.said


@pytest.mark.parametrize(
    ("name", "days_ago", "expected"),
    [
        (ME, 0, [("identity", "ok")]),
        (ME, 25, [("identity", "warning")]),
        (ME, 40, [("identity", "error")]),
        ("truck-2", 0, [("identity", "error"), ("identity", "ok")]),
    ],
)
def test_an_enrolled_party_is_told_when_to_renew_and_whose_name_it_bears(
    name: str, days_ago: float, expected: list[tuple[str, str]], tmp_path: Path
) -> None:
    now = time.time()
    authority = SigningAuthority.found(FEDERATION, key(50), now - 1000 * DAY_S, SystemEntropy())
    request = Request(Bearer(FEDERATION, DeviceId(ME), b""), key().public_key())
    issued = authority.issue(request, Validity.beginning(now - days_ago * DAY_S, 30 * DAY_S), SystemEntropy())
    (tmp_path / CA).write_bytes(authority.certificate.public_bytes(Encoding.PEM))
    (tmp_path / CERTIFICATE).write_bytes(issued.public_bytes(Encoding.PEM))
    (tmp_path / KEY).write_bytes(key().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    (tmp_path / KEY).chmod(0o600)
    settings = MqttSettings(identity=str(tmp_path))
    assert levels(identity(settings, name)) == expected
    assert enrolled_name(settings) == (ME if days_ago < 30 else None)


# --- the command


def test_people_read_a_line_for_each_finding_and_an_arrow_before_the_advice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], free_port: int
) -> None:
    options = ["--state", str(tmp_path), f"--set=mqtt.port={free_port}"]
    assert main(["doctor", *options]) == 2
    shown = capsys.readouterr().out
    assert f"ERROR   ports    127.0.0.1:{free_port}: Connection refused\n                 -> is it running" in shown
    assert "-       state    whose? Name the party with --id\n" in shown
