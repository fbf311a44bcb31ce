"""`ofl dashboard` as a process: the commands of its page, its exit, its refusals."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.certificates import Authority
from tests.dashboard.fleets import RECORDED
from tests.e2e.processes import OFL

PAGE = Path(__file__).parents[2] / "docs" / "dashboard.md"
LIMIT_S = 60.0
"""Only reached when something is wrong."""


def commands() -> list[str]:
    blocks = re.findall(r"^```\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    lines = (line.partition("#")[0].strip() for block in blocks for line in block.splitlines())
    return [line for line in lines if line.startswith("ofl ")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the page's commands are run: saved views, a certificate, settings of a broker that is away."""
    view = (RECORDED / "north-depot.json").read_text()
    (tmp_path / "view.json").write_text(view)
    line = json.dumps(json.loads(view))
    (tmp_path / "day.jsonl").write_text(f"{line}\n{line}\n")
    (tmp_path / "ofl.toml").write_text('[federation]\nid = "north-depot"\n[mqtt]\nport = 1\n')
    Authority(tmp_path).issue("127.0.0.1", file="page")
    return tmp_path


@contextmanager
def running(command: str, folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and the address that it printed."""
    process = subprocess.Popen(  # noqa: S603  # our own document
        [OFL, *shlex.split(command)[1:], "--port", "0"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        printed = process.stdout.readline()
        assert printed.startswith("dashboard: http"), process.communicate(timeout=LIMIT_S)
        yield process, printed.split()[1]
    finally:
        process.kill()
        process.communicate()


ELSEWHERE = {"ofl sim --dashboard": "tests/dashboard/test_live.py"}


def test_every_command_of_the_page_is_run_by_a_test() -> None:
    assert len(commands()) == 5
    assert ELSEWHERE.keys() <= set(commands())


@pytest.mark.parametrize("command", sorted(set(commands()) - ELSEWHERE.keys()))
def test_a_command_of_the_page_serves_until_it_is_stopped(command: str, folder: Path) -> None:
    with running(command, folder) as (process, url):
        address, _, token = url.partition("/#token=")
        scheme, port = address.partition(":")[0], address.rstrip("/").rpartition(":")[2]
        headers = {"authorization": f"Bearer {token}"} if token else {}
        with httpx.Client(base_url=f"{scheme}://127.0.0.1:{port}", verify=False, headers=headers) as client:  # noqa: S501
            assert client.get("/").status_code == 200
            assert client.get("/api/view").json()["federation"]["id"] == "north-depot"
        process.send_signal(signal.SIGTERM)
        _, complaints = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    assert not [line for line in complaints.splitlines() if "no link to the broker" not in line]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--replay missing.json", "--replay missing.json: it cannot be read"),
        ("--replay empty.jsonl", "there is no view in it"),
        ("--replay broken.json", "not a fleet view"),
        ("--replay broken.jsonl", "line 2: not a fleet view"),
        ("--replay view.json --speed 0", "--speed 0: it must be above 0"),
        ("--replay view.json --speed nan", "--speed nan: it must be above 0"),
        ("--replay view.json --port 99999", "--port 99999: a port is a number"),
        ("--replay view.json --certificate page.pem", "--certificate and --key belong together"),
        ("--replay view.json --certificate page.key --key page.pem", "cannot be used"),
        ("--replay view.json --token-file weak", "a token needs 20 printable"),
        ("--replay view.json --token-file nowhere", "--token-file nowhere: it cannot be read"),
        ("--replay view.json --host nowhere.invalid", "cannot listen on nowhere.invalid"),
    ],
)
def test_bad_input_gets_one_sentence(
    options: str, words: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from ofl_agents.cli import main

    monkeypatch.chdir(folder)
    Path("empty.jsonl").write_text("\n")
    Path("broken.json").write_text("{}")
    Path("broken.jsonl").write_text(Path("day.jsonl").read_text().splitlines()[0] + "\n{}\n")
    Path("weak").write_text("secret\n")
    assert main(["dashboard", *options.split()]) == 2
    complaint = capsys.readouterr().err
    assert words in complaint
    assert complaint.count("\n") == 1
