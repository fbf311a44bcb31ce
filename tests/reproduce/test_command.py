"""`ofl reproduce` from the command line to the files."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from ofl_agents.cli import EXIT_FAILED, EXIT_USAGE, main
from ofl_research.reproduction.experiments.accuracy import COLUMNS


def rows(out: Path) -> list[dict[str, str]]:
    with (out / "table3.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_table_on_the_digits_is_computed_once_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["reproduce", "table3", "--quick", "--only", "digits/fedavg", "--jobs", "2", "--out", str(tmp_path)]
    assert main([*command, "--seeds", "1,2"]) == 0
    first = capsys.readouterr()
    assert "[2/2] digits/fedavg seed" in first.err
    assert "FedAvg" in first.out
    (row,) = rows(tmp_path)
    assert tuple(row) == COLUMNS == (
        "dataset", "system", "accuracy_mean", "accuracy_std", "bytes_up_per_device", "paper"
    )  # fmt: skip
    assert float(row["accuracy_mean"]) > 50
    assert int(row["bytes_up_per_device"]) > 10_000
    assert row["paper"] == ""
    html = (tmp_path / "report.html").read_text()
    assert "http" not in html
    assert "<svg" in html
    assert str(tmp_path) not in html
    command_shown = f"ofl reproduce table3 --quick --out {tmp_path.name} --seeds 1-2 --only digits/fedavg"
    assert command_shown in html
    assert main([*command, "--seeds", "1,2"]) == 0
    assert "accuracy" not in capsys.readouterr().err  # nothing was computed
    assert main([*command, "--seeds", "1,2", "--render"]) == 0
    assert command_shown in (tmp_path / "report.html").read_text()


def test_without_its_data_a_cell_fails_with_what_to_do_and_the_exit_code_tells(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OFL_DATA", raising=False)
    assert main(["reproduce", "table3", "--quick", "--only", "mnist/fedavg", "--out", str(tmp_path)]) == EXIT_FAILED
    assert "--data DIR" in capsys.readouterr().err
    assert "What could not be computed" in (tmp_path / "report.html").read_text()


def test_a_report_can_be_written_without_computing(tmp_path: Path) -> None:
    assert main(["reproduce", "table3", "--render", "--only", "digits/ofl", "--out", str(tmp_path)]) == 0
    assert "Not finished: 3 cells are missing" in (tmp_path / "report.html").read_text()
    assert not list((tmp_path / "cells").iterdir())


@pytest.mark.parametrize("wrong", [["--seeds", "x"], ["--only", "a/b/c"], ["--jobs", "0"], ["--only", "nothing/ofl"]])
def test_what_cannot_be_meant_is_refused(wrong: list[str], tmp_path: Path) -> None:
    assert main(["reproduce", "table3", "--out", str(tmp_path), *wrong]) == EXIT_USAGE


def test_a_choice_that_fits_nothing_is_answered_with_what_there_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", "attacks", "--only", "cora", "--out", str(tmp_path)]) == EXIT_USAGE
    told = capsys.readouterr().err
    assert "attacks has no such cells" in told
    assert "data set (mnist, digits)" in told
    assert "gate-on" in told
    assert main(["reproduce", "fig-crypto", "--render", "--only", "mnist", "--out", str(tmp_path)]) == EXIT_USAGE
    assert "data set (crypto)" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_choice_of_one_experiment_can_be_written(tmp_path: Path) -> None:
    assert main(["reproduce", "fig-crypto", "--render", "--only", "crypto", "--out", str(tmp_path)]) == 0
    assert main(["reproduce", "all", "--render", "--only", "cora", "--out", str(tmp_path)]) == 0
    report = (tmp_path / "report.html").read_text()
    assert "id='table3'" in report
    assert "id='attacks'" not in report
