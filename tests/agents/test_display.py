"""What a person sees: a panel that moves, lines where there is no terminal, a table that says who leads."""

from __future__ import annotations

import io
import logging
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from ofl_agents.sim.display import Display, headline_text, headlines, print_summary, size_text, spark
from ofl_agents.sim.summary import DeviceRow, Measurement, Progress, Summary
from ofl_iot.roles.reports.coordinator import ModelEvaluated


def recorded(*, terminal: bool) -> Console:
    return Console(file=io.StringIO(), record=True, force_terminal=terminal, width=120, _environ={})


def summary(devices: int = 3) -> Summary:
    rows = [DeviceRow(f"device-{number}", "A", 100, 2048, 3 * 2**20, "device-1") for number in range(1, devices + 1)]
    return Summary(
        accuracy=0.875,
        metrics={"accuracy": 0.875, "loss": 0.5},
        app="machines",
        parameters=21_606,
        rounds=2,
        wall_s=1.25,
        bytes_up_per_device=2048.0,
        bytes_down_per_device=3.0 * 2**20,
        clusters=1,
        lost_chunks=0,
        doubled_chunks=0,
        runtime="virtual",
        devices=devices,
        seed=0,
        virtual_s=30.0,
        leaders=["device-1"],
        chunks_merged=17,
        messages_dropped=0,
        churn=True,
        leader_changes=5,
        reclusterings=2,
        coordinator_restarts=1,
        service_by_type={"A": 3, "B": 6},
        services=[],
        reclustering_history=[],
        accuracy_by_round=[(1, 0.5), (2, 0.875)],
        metrics_by_round=[Measurement(1, {"accuracy": 0.5}), Measurement(2, {"accuracy": 0.875})],
        rows=rows,
    )


def test_the_panel_shows_where_the_run_stands() -> None:
    console, progress = recorded(terminal=True), Progress(rounds=4)
    with Display(progress, 16, "live", console) as display:
        progress.completed, progress.clusters = 2, 3
        progress.trainings, progress.chunks = 120, 118
        progress.history[:] = [Measurement(1, {"accuracy": 0.25}), Measurement(2, {"accuracy": 0.75})]
        display._live.refresh()
    shown = console.export_text()
    for fact in ("16 devices, live runtime", "120 trainings", "118 chunks merged", "3 clusters", "round  2/4", "0.750"):
        assert fact in shown
    assert "▂▆" in shown


def test_without_a_terminal_there_is_a_line_a_round() -> None:
    console, progress = recorded(terminal=False), Progress(rounds=2)
    with Display(progress, 4, "virtual", console):
        progress.history[:] = [Measurement(1, {"accuracy": 0.25}), Measurement(2, {"accuracy": 0.75})]
    assert console.export_text().splitlines() == [
        "federation of 4 devices, virtual runtime",
        "round   1  accuracy 0.250",
        "round   2  accuracy 0.750",
    ]


def test_a_run_that_fails_shows_no_rounds_and_hides_no_error() -> None:
    console, progress = recorded(terminal=False), Progress(rounds=2)

    def fail() -> None:
        with Display(progress, 4, "virtual", console):
            progress.history.append((1, 0.5))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert "round" not in console.export_text()


def test_log_lines_are_printed_above_the_panel_and_later_where_they_belong(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stderr = Terminal()
    monkeypatch.setattr(sys, "stderr", stderr)
    handler = logging.StreamHandler(stderr)
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        console = recorded(terminal=True)
        with Display(Progress(rounds=2), 4, "live", console):
            root.warning("leader replaced")
        assert "leader replaced" in console.export_text()
        assert stderr.getvalue() == ""
        root.warning("afterwards")
        assert stderr.getvalue() == "afterwards\n"
    finally:
        root.removeHandler(handler)


def test_the_summary_names_leaders_bytes_and_books() -> None:
    console = recorded(terminal=False)
    print_summary(summary(), console)
    shown = console.export_text()
    for fact in (
        "0.875",
        "2.0 KiB up, 3.0 MiB down",
        "1, led by device-1",
        "17 merged, 0 lost, 0 counted twice",
        "1.2 s for 30 virtual seconds",
        "leads",
    ):
        assert fact in shown
    assert shown.count("device-1") == 4


def test_a_large_fleet_is_summed_up_without_its_rows() -> None:
    console = recorded(terminal=False)
    print_summary(summary(devices=41), console)
    assert "device-41" not in console.export_text()


@given(st.lists(st.floats(-1, 2)))
def test_a_spark_has_a_bar_for_each_value(values: list[float]) -> None:
    assert len(spark(values)) == len(values)


def test_a_spark_grows_with_its_values() -> None:
    assert spark([0.0, 0.5, 1.0]) == " ▄█"


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1.5 * 2**20, "1.5 MiB"), (3 * 2**30, "3.0 GiB")],
)
def test_sizes_are_for_people(count: float, text: str) -> None:
    assert size_text(count) == text


def test_any_metric_is_shown_under_its_own_name() -> None:
    history = [Measurement(1, {"r2": -0.5, "loss": 4.0}), Measurement(2, {"mse": 8.0}), Measurement(3, {})]
    assert [headline_text(each) for each in history] == ["r2 -0.500", "mse 8.000", ""]
    assert headlines(history) == [-0.0625, 1.0]
    assert spark([float("nan"), 1.0]) == "?█"


def test_what_a_coordinator_tells_is_kept_by_round() -> None:
    progress = Progress(rounds=2)
    progress.listen("coordinator", ModelEvaluated(1, {"r2": 0.5, "loss": 1.0}), 0.0)
    progress.listen("coordinator", ModelEvaluated(2, {}), 0.0)
    assert progress.history == [Measurement(1, {"r2": 0.5, "loss": 1.0}), Measurement(2, {})]
