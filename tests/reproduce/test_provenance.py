"""Which code gave a result."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ofl_research.reproduction import provenance

NAMED = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.org", "-c", "commit.gpgsign=false"]


def git(folder: Path, *arguments: str) -> str:
    command = ["git", *NAMED, *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()  # noqa: S603


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A checkout with a file of code and one of results."""
    module = tmp_path / "research" / "provenance.py"
    module.parent.mkdir(parents=True)
    module.write_text("")
    for folder in ("ofl_iot", "agents", "broker", "results"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file").write_text("")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    monkeypatch.delenv(provenance.COMMIT_VARIABLE, raising=False)
    monkeypatch.setattr(provenance, "__file__", str(module))
    provenance.commit_of_code.cache_clear()
    yield tmp_path
    provenance.commit_of_code.cache_clear()


def test_the_commit_is_marked_when_code_was_changed_but_not_when_results_were(checkout: Path) -> None:
    commit = git(checkout, "rev-parse", "--short=12", "HEAD")
    (checkout / "results" / "file").write_text("new")
    assert provenance.commit_of_code() == commit
    provenance.commit_of_code.cache_clear()
    (checkout / "ofl_iot" / "file").write_text("new")
    assert provenance.commit_of_code() == f"{commit}+"


def test_the_environment_may_name_the_commit(monkeypatch: pytest.MonkeyPatch, checkout: Path) -> None:
    assert checkout.is_dir()
    monkeypatch.setenv(provenance.COMMIT_VARIABLE, "abc")
    assert provenance.commit_of_code() == "abc"
