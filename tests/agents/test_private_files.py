"""Private files: closed to others from the first byte, whole or not there, and their owner's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ofl_agents.enrolment.files import make_private_folder, write_private
from ofl_iot.errors import ConfigError


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(max_size=200), min_size=1, max_size=3))
def test_the_last_writing_counts_and_leaves_nothing_beside_it(tmp_path: Path, texts: list[bytes]) -> None:
    for text in texts:
        write_private(tmp_path / "key.pem", text)
    assert (tmp_path / "key.pem").read_bytes() == texts[-1]
    assert (tmp_path / "key.pem").stat().st_mode & 0o777 == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["key.pem"]


def test_a_failed_writing_leaves_the_old_file_and_no_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_private(tmp_path / "key.pem", b"old")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match="No space left"):
        write_private(tmp_path / "key.pem", b"new")
    assert (tmp_path / "key.pem").read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["key.pem"]


def test_a_folder_is_closed_even_if_it_was_open_and_a_file_in_its_place_is_told(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    make_private_folder(tmp_path / "open")
    assert (tmp_path / "open").stat().st_mode & 0o777 == 0o700
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot make the private folder"):
        make_private_folder(tmp_path / "file")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_root_writes_anew_stays_its_owners(tmp_path: Path) -> None:
    write_private(tmp_path / "certificate.pem", b"old")
    os.chown(tmp_path / "certificate.pem", 12345, 12345)
    write_private(tmp_path / "certificate.pem", b"new")
    held = (tmp_path / "certificate.pem").stat()
    assert (held.st_uid, held.st_gid, held.st_mode & 0o777) == (12345, 12345, 0o600)


def test_a_sandbox_that_gives_no_files_away_does_not_keep_root_from_writing_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_descriptor: int, _user: int, _group: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    write_private(tmp_path / "certificate.pem", b"old")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "fchown", refused)
    write_private(tmp_path / "certificate.pem", b"new")
    assert (tmp_path / "certificate.pem").read_bytes() == b"new"
