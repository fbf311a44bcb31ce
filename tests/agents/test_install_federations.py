"""`ofl install --federation`: several federations on one machine, by systemd's templates."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ofl_agents.cli import main
from ofl_agents.install.installation import ROLES

OFL = Path(sys.executable).with_name("ofl")
ANALYZE = shutil.which("systemd-analyze")


def install(root: Path, federation: str, role: str = "agent", *more: str) -> int:
    who = ["--id", "truck-017"] if role == "agent" else []
    where = ["--root", str(root), "--ofl", str(OFL), "--federation", federation]
    return main(["install", "--role", role, *where, *who, *more])


def contents(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()}


def test_two_federations_share_the_templates_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert install(tmp_path, "north", "agent", "--set", "mqtt.port=8883") == 0
    said = capsys.readouterr().out
    assert "systemctl enable --now ofl-agent@north ofl-renew@north.timer\n" in said
    assert "ofl doctor --config /etc/ofl/north/ofl.toml --state /var/lib/ofl-agent-north" in said
    first = contents(tmp_path)
    assert install(tmp_path, "south", "agent", "--set", "mqtt.port=8884") == 0
    both = contents(tmp_path)
    assert {name: both[name] for name in first} == first
    assert sorted(both.keys() - first.keys()) == [
        "etc/ofl/south/agent.env",
        "etc/ofl/south/ofl.toml",
        "etc/systemd/system/ofl-agent@south.service.d/10-limits.conf",
        "etc/tmpfiles.d/ofl-south.conf",
    ]
    assert '[federation]\nid = "south"\n' in both["etc/ofl/south/ofl.toml"]
    assert 'identity = "/etc/ofl/south/identity"\n' in both["etc/ofl/south/ofl.toml"]
    assert (tmp_path / "etc/ofl/south/identity").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("role", ROLES)
def test_a_template_names_nothing_that_two_instances_would_share(role: str, tmp_path: Path) -> None:
    assert install(tmp_path, "north", role) == 0
    for name, text in contents(tmp_path).items():
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        if name.endswith("@.service"):
            for line in lines:
                named = ("/etc/ofl", "Directory=", "%C/", "%t/", "try-restart")
                assert "%i" in line or not any(word in line for word in named), line


def test_it_stands_beside_an_installation_without_a_name(tmp_path: Path) -> None:
    assert main(["install", "--role", "agent", "--id", "a", "--root", str(tmp_path), "--ofl", str(OFL)]) == 0
    before = contents(tmp_path)
    assert install(tmp_path, "north") == 0
    after = contents(tmp_path)
    assert {name: after[name] for name in before} == before


def test_a_second_run_changes_nothing(tmp_path: Path) -> None:
    install(tmp_path, "north", "coordinator")
    before = contents(tmp_path)
    assert install(tmp_path, "north", "coordinator") == 0
    assert contents(tmp_path) == before


def test_settings_of_another_federation_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert install(tmp_path, "north", "agent", "--set", "federation.id=south") == 2
    assert "has federation.id = 'south'" in capsys.readouterr().err
    assert contents(tmp_path) == {}
    assert install(tmp_path, "../../evil") == 2
    assert "lower-case letters" in capsys.readouterr().err


@pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("unit", ["agent@north.service", "coordinator@north.service", "renew@north.timer"])
def test_systemd_accepts_an_instance(unit: str, tmp_path: Path) -> None:
    role = "coordinator" if "coordinator" in unit else "agent"
    install(tmp_path, "north", role)
    assert ANALYZE is not None
    folder = tmp_path / "etc/systemd/system"
    template = folder / f"ofl-{unit.replace('@north', '@')}"
    instance = tmp_path / f"ofl-{unit}"
    shutil.copy(template, instance)
    for other in folder.glob("*@.service"):
        shutil.copy(other, tmp_path)
    verified = subprocess.run(  # noqa: S603
        [ANALYZE, "verify", str(instance)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (verified.returncode, [line for line in verified.stderr.splitlines() if "ofl-" in line]) == (0, [])
