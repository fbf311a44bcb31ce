"""The training bench: what it prints, and that the sums it times are the right ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ofl_agents.cli import main
from ofl_research.benches import training

pytest.importorskip("opacus")


def test_figures_by_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """In small; whether the ratios meet their targets is not for a test on a busy machine."""
    monkeypatch.setattr(training, "QUICK", ("cnn1d",))
    monkeypatch.setattr(training, "QUICK_ROUNDS", 1)
    monkeypatch.setattr(training, "STEPS", 1)
    assert main(["bench", "training", "--quick", "--json", str(tmp_path / "figures.json")]) == 0
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert json.loads(capsys.readouterr().out) == figures
    network = figures["networks"]["cnn1d"]
    ms = network["milliseconds"]
    assert set(ms) == {"plain", "ours", "opacus hooks", "opacus functorch", "opacus ghost"}
    best = min(ms[f"opacus {mode}"] for mode in ("hooks", "functorch", "ghost"))
    assert figures["ratio_to_opacus"] == {"cnn1d": pytest.approx(ms["ours"] / best)}
    assert figures["ratio_to_plain"] == {"cnn1d": pytest.approx(ms["ours"] / ms["plain"])}
    assert (network["engine"], network["parameters"]) == ("layers", 19918)
    assert network["relative_gap_to_loop"] < 1e-4
