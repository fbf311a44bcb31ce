"""What a device installs: our wheel is pure Python and holds the units; all it needs exists for aarch64."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PLATFORMS = ("manylinux2014_aarch64", "manylinux_2_27_aarch64", "manylinux_2_28_aarch64")
"""Up to glibc 2.28: what any board with Python 3.10 or newer has."""
MANY_DEPENDENCIES = 12


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("hatchling is not installed")
    folder = tmp_path_factory.mktemp("wheel")
    build = "import sys; from hatchling.build import build_wheel; build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, str(folder)], cwd=ROOT, check=True, timeout=120)  # noqa: S603
    (file,) = folder.glob("*.whl")
    return zipfile.ZipFile(file)


def test_the_wheel_is_pure_python_for_every_platform(wheel: zipfile.ZipFile) -> None:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/WHEEL"))
    about = Parser().parsestr(wheel.read(name).decode())
    assert (about["Root-Is-Purelib"], about.get_all("Tag")) == ("true", ["py3-none-any"])
    assert not [name for name in wheel.namelist() if name.endswith((".so", ".pyd", ".c"))]


def test_the_wheel_holds_the_programs_and_their_units(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    assert {"ofl_iot/py.typed", "ofl_agents/cli.py", "ofl_broker/embedded.py"} <= names
    assert {"ofl_agents/dashboard/page/index.html", "ofl_agents/dashboard/page/app.js"} <= names
    units = {f"ofl_agents/units/{path.name}" for path in (ROOT / "systemd").glob("ofl-*")}
    assert len(units) == 6
    assert units <= names


def dependencies() -> list[str]:
    """The run-time dependencies as pyproject.toml has them."""
    section = re.search(r"^dependencies = \[(.*?)^\]", (ROOT / "pyproject.toml").read_text(), re.DOTALL | re.MULTILINE)
    assert section is not None
    return re.findall(r'"([^"]+)"', section[1])


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13"])
def test_every_dependency_and_theirs_have_a_wheel_for_aarch64(version: str, tmp_path: Path) -> None:
    """Resolved by pip as on a board, without installing; needs a package index."""
    report = tmp_path / "report.json"
    tools = ["--dry-run", "--ignore-installed", "--only-binary=:all:", "--quiet", "--disable-pip-version-check"]
    board = ["--implementation=cp", f"--python-version={version}", *(f"--platform={each}" for each in PLATFORMS)]
    # The marker of a requirement is judged by the Python that asks, so it is judged here.
    wanted = [each.partition(";")[0] for each in dependencies() if ";" not in each or version == "3.10"]
    resolved = subprocess.run(  # noqa: S603  # our own interpreter
        [sys.executable, "-m", "pip", "install", *tools, *board, f"--target={tmp_path}", f"--report={report}", *wanted],
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    if "No matching distribution found" in resolved.stderr and "from versions: none" in resolved.stderr:
        pytest.skip(f"no package index that has it can be reached: {resolved.stderr.splitlines()[-1]}")
    assert resolved.returncode == 0, resolved.stderr
    wheels = [each["download_info"]["url"].rpartition("/")[2] for each in json.loads(report.read_text())["install"]]
    assert len(wheels) > MANY_DEPENDENCIES
    assert all(name.endswith("-any.whl") or "aarch64" in name for name in wheels)


def test_the_wheel_has_no_import_name_but_ours(wheel: zipfile.ZipFile) -> None:
    """Names such as `agents` belong to others: `openai-agents` installs beside this wheel."""
    tops = {name.split("/")[0] for name in wheel.namelist() if ".dist-info/" not in name}
    assert tops == {"ofl_iot", "ofl_agents", "ofl_broker"}
    assert "ofl_iot/workloads/data/digits.csv.gz" in wheel.namelist()


def test_a_base_install_has_what_an_agent_needs_and_no_more() -> None:
    names = {re.split(r"[<>=;]", each)[0].strip() for each in dependencies()}
    assert not names & {"amqtt", "rich", "scikit-learn", "torch", "matplotlib"}
