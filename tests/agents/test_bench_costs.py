"""The guard against waste: counts of a fixed run stay within their bounds, and one that does not is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ofl_agents.cli import main
from ofl_research.benches import costs, exchange


def test_a_training_costs_no_more_than_it_did(tmp_path: Path) -> None:
    """If this fails, a change made a training cost a quarter more messages, bytes or commits than before."""
    assert main(["bench", "costs", "--json", str(tmp_path / "figures.json")]) == 0
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures.keys() == json.loads(costs.BOUNDS.read_text()).keys()
    assert all(value > 0 for value in figures.values())


def test_the_bench_of_exchanges_measures_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "PARAMETERS", 20_000)
    monkeypatch.setattr(exchange, "RUNS", 1)
    figures = exchange.run()
    assert all(value > 0 for value in figures.values())
    assert 1.0 < figures["pull_bytes_per_param"] < 1.1
    assert 1.0 < figures["stored_bytes_per_param"] < 1.4


def test_what_grew_by_more_than_a_quarter_is_named() -> None:
    costs.check({"a": 12.5, "b": 1.0}, {"a": 10.0, "b": 1.0})
    with pytest.raises(costs.CostError, match=r"^b is 1.3, "):
        costs.check({"a": 12.5, "b": 1.3}, {"a": 10.0, "b": 1.0})
