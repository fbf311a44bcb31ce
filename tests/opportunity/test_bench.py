"""The bench measures what it says, on a small model here."""

from __future__ import annotations

import json

import pytest

from ofl_agents.cli import main
from ofl_research.benches import opportunity as bench_opportunity


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(bench_opportunity, "PARAMETERS", 50_000)
    monkeypatch.setattr(bench_opportunity, "ROUNDS", 1)


def test_the_figures_are_written_and_printed(small, tmp_path, capsys):
    assert main(["bench", "opportunity", "--json", str(tmp_path / "figures.json")]) == 0
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert {
        "release_passes",
        "merge_passes",
        "release_ratio",
        "merge_ratio",
        "bytes_per_selected",
        "nibble_bytes_per_selected",
        "device_bytes_per_param",
    } <= set(figures)
    assert all(value > 0 for value in figures.values())
    assert 1.9 < figures["bytes_per_selected"] < 2.2
    assert 1.0 < figures["nibble_bytes_per_selected"] < 1.15
    assert "release_ratio" in capsys.readouterr().out


def test_a_device_needs_at_most_forty_bytes_a_parameter():
    for mode in ("rigorous", "paper"):
        peak = bench_opportunity._peak_bytes(lambda mode=mode: bench_opportunity._cycle(mode))
        assert 8 < peak / bench_opportunity.PARAMETERS - bench_opportunity.MODEL_BYTES <= 40
