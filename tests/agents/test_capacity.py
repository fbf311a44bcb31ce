"""The capacity model: its laws, and that docs/scaling.md shows what it says."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofl_research.benches.capacity import demand, run, table

SCALING = Path(__file__).parents[2] / "docs" / "scaling.md"


def test_the_page_shows_the_models_figures() -> None:
    assert table() in SCALING.read_text()


@given(st.integers(2, 10**6), st.integers(1, 10**8), st.floats(1, 10**5))
def test_the_broker_carries_what_its_leaders_carry(devices: int, parameters: int, period_s: float) -> None:
    """Every byte goes to a leader or comes from one."""
    each = demand(devices, parameters, period_s)
    assert each.leader_mbit_per_s * each.clusters == pytest.approx(each.mbit_per_s)


@given(st.integers(2, 10**5), st.integers(1, 10**7))
def test_twice_the_pause_is_half_the_traffic(devices: int, parameters: int) -> None:
    quick, slow = (demand(devices, parameters, period_s) for period_s in (300.0, 600.0))
    assert slow.mbit_per_s == pytest.approx(quick.mbit_per_s / 2)
    assert slow.leader_chunks_per_s == pytest.approx(quick.leader_chunks_per_s / 2)
    assert slow.messages_per_s < quick.messages_per_s < 2 * slow.messages_per_s  # telemetry and echoes do not slow down


@given(st.integers(2, 10**6))
def test_ten_times_the_devices_are_ten_times_the_brokers_work(devices: int) -> None:
    few, many = demand(devices), demand(10 * devices)
    for figure in ("messages_per_s", "mbit_per_s", "broker_cores", "broker_mib", "reconnect_s"):
        assert getattr(many, figure) == pytest.approx(10 * getattr(few, figure))
    assert few.leader_mbit_per_s < many.leader_mbit_per_s < 10.001 * few.leader_mbit_per_s


def test_it_is_a_bench(capsys: pytest.CaptureFixture[str]) -> None:
    figures = run()
    assert figures["1000000"]["broker_cores"] > 1
    assert "1,000,000" in capsys.readouterr().out
