"""`ofl install`: what it puts in place, that it does so once, and that it leaves alone what is the operator's."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ofl_agents.cli import main
from ofl_agents.install.installation import ROLES

OFL = Path(sys.executable).with_name("ofl")
ANALYZE = shutil.which("systemd-analyze")
EXPOSURE_LIMIT = 2.0
needs_systemd = pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")


def install(root: Path, role: str = "agent", *more: str) -> int:
    who = ["--id", "truck-017"] if role == "agent" and "--id" not in more else []
    return main(["install", "--role", role, "--root", str(root), "--ofl", str(OFL), *who, *more])


def unit_of(root: Path, role: str) -> Path:
    return root / f"etc/systemd/system/ofl-{role}.service"


def contents(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()}


def test_an_agent_gets_its_unit_limits_settings_and_name(tmp_path: Path) -> None:
    limits = ("--set", "service.memory_mib=500", "--set", "service.cpu_percent=150", "--set", "service.watchdog_s=60")
    assert install(tmp_path, "agent", "--part", "3/16", *limits, "--set", 'mqtt.hosts=["broker.example"]') == 0
    files = contents(tmp_path)
    assert sorted(files) == [
        "etc/ofl/agent.env",
        "etc/ofl/ofl.toml",
        "etc/systemd/system/ofl-agent.service",
        "etc/systemd/system/ofl-agent.service.d/10-limits.conf",
        "etc/systemd/system/ofl-renew.service",
        "etc/systemd/system/ofl-renew.timer",
        "etc/tmpfiles.d/ofl.conf",
    ]
    assert files["etc/ofl/agent.env"] == "DEVICE_ID=truck-017\nDEVICE_OPTIONS=--part 3/16\n"
    assert '[mqtt]\nhosts = ["broker.example"]\n' in files["etc/ofl/ofl.toml"]
    assert f"ExecStart={OFL} --log-level info agent" in files["etc/systemd/system/ofl-agent.service"]
    assert files["etc/systemd/system/ofl-agent.service.d/10-limits.conf"].splitlines()[1:] == [
        "[Service]",
        "WatchdogSec=60",
        "CPUQuota=150%",
        "MemoryHigh=450M",
        "MemoryMax=500M",
    ]
    assert (tmp_path / "etc/ofl/identity").stat().st_mode & 0o777 == 0o700


def test_app_and_data_stand_in_the_settings(tmp_path: Path) -> None:
    assert install(tmp_path, "agent", "--app", "/opt/plant/vibration.py:app", "--data", "/var/lib/sensor") == 0
    files = contents(tmp_path)
    assert '[federation]\napp = "/opt/plant/vibration.py:app"\ndata = "/var/lib/sensor"\n' in files["etc/ofl/ofl.toml"]
    assert files["etc/ofl/agent.env"] == "DEVICE_ID=truck-017\n"
    assert "--id ${DEVICE_ID} $DEVICE_OPTIONS --config" in files["etc/systemd/system/ofl-agent.service"]


@pytest.mark.parametrize("role", ROLES)
def test_a_dry_run_shows_everything_and_changes_nothing(
    role: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert install(tmp_path, role, "--dry-run") == 0
    assert list(tmp_path.iterdir()) == []
    shown = capsys.readouterr().out
    assert f"create    {unit_of(tmp_path, role)}\n" in shown
    assert "    Type=notify\n" in shown
    assert "nothing was changed" in shown


@pytest.mark.parametrize("role", ROLES)
def test_a_second_run_changes_nothing(role: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install(tmp_path, role)
    before = contents(tmp_path)
    capsys.readouterr()
    assert install(tmp_path, role) == 0
    assert contents(tmp_path) == before
    steps = [line.split()[0] for line in capsys.readouterr().out.partition("then:")[0].splitlines()]
    assert set(steps) == {"unchanged"}


def test_what_the_operator_changed_stays_and_limits_follow_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install(tmp_path)
    settings = tmp_path / "etc/ofl/ofl.toml"
    settings.write_text("# mine\n[service]\ncpu_percent = 80\n")
    unit_of(tmp_path, "agent").write_text("# an older release's\n")
    capsys.readouterr()
    assert install(tmp_path, "agent", "--id", "truck-018", "--set", "federation.id=other") == 0
    assert settings.read_text() == "# mine\n[service]\ncpu_percent = 80\n"
    assert (tmp_path / "etc/ofl/agent.env").read_text() == "DEVICE_ID=truck-017\n"
    limits = unit_of(tmp_path, "agent").with_suffix(".service.d") / "10-limits.conf"
    assert "CPUQuota=80%" in limits.read_text()
    assert "Type=notify" in unit_of(tmp_path, "agent").read_text()
    said = capsys.readouterr().out
    assert f"{settings} is yours and was left as it is" in said
    assert "agent.env is yours and was left as it is" in said


def test_credentials_follow_the_identity(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install(tmp_path, "coordinator")
    assert "enrol with `ofl enroll join` into /etc/ofl/identity" in capsys.readouterr().out
    dropin = tmp_path / "etc/systemd/system/ofl-coordinator.service.d/20-identity.conf"
    assert not dropin.exists()
    install(tmp_path, "coordinator", "--without-identity")
    assert dropin.read_text().endswith("[Service]\nLoadCredential=\nSetCredential=\n")
    (tmp_path / "etc/ofl/identity/key.pem").write_text("")
    install(tmp_path, "coordinator")
    assert not dropin.exists()


@pytest.mark.parametrize("role", ["agent", "coordinator", "decryptor"])
def test_a_revocation_list_that_comes_later_is_handed_over_without_another_installation(
    role: str, tmp_path: Path
) -> None:
    install(tmp_path, role)
    unit = unit_of(tmp_path, role).read_text()
    assert "\nLoadCredential=crl.pem:/etc/ofl/identity/crl.pem\nSetCredential=crl.pem:none\n" in unit
    renewal = unit_of(tmp_path, "renew").read_text()
    assert "ofl enroll crl --identity /etc/ofl/identity --changed %t/ofl-renew/changed\n" in renewal


def test_a_renewal_does_not_fail_for_units_that_are_not_installed(tmp_path: Path) -> None:
    install(tmp_path, "agent")
    restarts = [line for line in unit_of(tmp_path, "renew").read_text().splitlines() if "systemctl" in line]
    assert restarts
    assert all(re.match(r"Exec\w+=-", line) for line in restarts)


@pytest.mark.parametrize("role", ["agent", "coordinator", "decryptor"])
def test_the_doctor_examines_the_party_that_was_installed(
    role: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install(tmp_path, role)
    doctor = f"ofl doctor --config /etc/ofl/ofl.toml --state /var/lib/ofl-{role}"
    assert f"{doctor} tells whether all is well" in capsys.readouterr().out
    settings = tmp_path / "etc/ofl/ofl.toml"
    assert 'identity = "/etc/ofl/identity"\n' in settings.read_text()
    assert main(["doctor", "--config", str(settings), "--state", str(tmp_path)]) == 2
    assert "identity /etc/ofl/identity: there is no" in capsys.readouterr().out
    install(tmp_path, role, "--without-identity")
    assert f"remove `identity` of [mqtt] from /{settings.relative_to(tmp_path)}" in capsys.readouterr().out
    settings.write_text("")
    install(tmp_path, role)
    assert f"{doctor} --set mqtt.identity=/etc/ofl/identity tells" in capsys.readouterr().out


def test_settings_without_an_identity_or_with_another_are_left_alone(tmp_path: Path) -> None:
    for name, more in {
        "none": ["--without-identity"],
        "other": ["--set", "mqtt.identity=/srv/me"],
        "tls": ["--set", "mqtt.tls.ca=/srv/ca.pem"],
    }.items():
        install(tmp_path / name, "coordinator", *more)
        assert "/etc/ofl/identity" not in (tmp_path / name / "etc/ofl/ofl.toml").read_text()


def test_on_a_jetson_the_agent_may_use_the_gpu(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/nv_tegra_release").touch()
    (tmp_path / "etc/group").write_text("root:x:0:\nvideo:x:44:\njtop:x:999:\n")
    install(tmp_path)
    jetson = unit_of(tmp_path, "agent").with_suffix(".service.d") / "30-jetson.conf"
    assert jetson.read_text().splitlines() == [
        "[Service]",
        "PrivateDevices=no",
        "ProtectClock=no",  # with it systemd 249 would close every device but the clock
        "PrivateUsers=no",
        "SupplementaryGroups=video jtop",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--role", "agent"], "which device is this? Add --id"),
        (["--role", "agent", "--id", "a b"], "a b"),
        (["--role", "agent", "--id", "a", "--part", "three"], "write it as K/N"),
        (["--role", "coordinator", "--ofl", "bin/ofl"], "plain absolute path"),
        (["--role", "coordinator", "--ofl", "/opt/my ofl"], "plain absolute path"),
        (["--role", "coordinator", "--set", "service.cpu=1"], "unknown key 'service.cpu'"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["install", "--root", str(tmp_path), *arguments]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_root_that_cannot_be_written_is_refused_with_advice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert install(tmp_path / "file", "broker") == 2
    assert "choose --root" in capsys.readouterr().err


def test_a_command_that_the_service_cannot_see_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["install", "--role", "broker", "--root", str(tmp_path), "--ofl", "/home/me/venv/bin/ofl"])
    assert "the service cannot see /home/me/venv/bin/ofl" in capsys.readouterr().out


def test_credentials_that_the_service_manager_hands_over_are_the_identity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(tmp_path)
    unit = unit_of(tmp_path, "agent").read_text()
    handed_over = set(re.findall(r"LoadCredential=(\S+):/etc/ofl/identity/\1\n", unit))
    assert handed_over == {"ca.pem", "certificate.pem", "key.pem", "sealing.pem", "crl.pem"}
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    capsys.readouterr()
    main(["config", "show"])
    assert "identity is not set" in capsys.readouterr().out
    (tmp_path / "certificate.pem").touch()
    main(["config", "show"])
    assert f'identity = "{tmp_path}"  # environment OFL_MQTT__IDENTITY\n' in capsys.readouterr().out


@needs_systemd
@pytest.mark.parametrize("role", [*ROLES, "renew"])
def test_systemd_accepts_the_unit_and_finds_little_exposed(role: str, tmp_path: Path) -> None:
    installed = "coordinator" if role == "renew" else role
    install(tmp_path, installed, "--set", "service.memory_mib=512", "--set", "service.cpu_percent=100")
    assert ANALYZE is not None
    verified = subprocess.run(  # noqa: S603
        [ANALYZE, "verify", str(unit_of(tmp_path, role))], capture_output=True, text=True, check=False, timeout=60
    )
    about_us = [line for line in verified.stderr.splitlines() if "ofl-" in line]
    assert (verified.returncode, about_us) == (0, [])
    judged = subprocess.run(  # noqa: S603
        [ANALYZE, "security", "--offline=true", f"--root={tmp_path}", f"ofl-{role}.service"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    exposure = re.search(r"exposure level for \S+: ([\d.]+)", judged.stdout)
    assert exposure is not None, judged.stdout + judged.stderr
    assert float(exposure[1]) <= EXPOSURE_LIMIT


@needs_systemd
def test_systemd_would_notice_a_unit_that_is_wrong(tmp_path: Path) -> None:
    install(tmp_path, "broker")
    unit = unit_of(tmp_path, "broker")
    unit.write_text(unit.read_text().replace("ProtectSystem=strict", "ProtectSytem=strict"))
    assert ANALYZE is not None
    verified = subprocess.run(  # noqa: S603
        [ANALYZE, "verify", str(unit)], capture_output=True, text=True, check=False, timeout=60
    )
    assert "ProtectSytem" in verified.stderr
