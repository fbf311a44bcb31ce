"""`ofl privacy`: a statement from a device's store, and a game that notices missing noise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from ofl_agents.cli import main
from ofl_agents.privacy_game import NETWORKS, Game, audit
from ofl_iot.privacy.events import Budget, DpSgdSteps
from ofl_iot.privacy.ledger import Ledger
from ofl_iot.roles.device.privacy_guard import TABLE
from ofl_iot.roles.storage import Put
from ofl_iot.runtime.store import SqliteStore

GAME = Game(Budget(8.0), clip_norm=1.0, sampling_rate=1.0, steps=2)
RUNS = 300


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The state of a device that has spent a part of its budget, beside that of a coordinator."""
    ledger = Ledger(Budget(8.0)).under(mode="rigorous", source="pumps", budget=Budget(8.0), at=1e9)
    ledger = ledger.allow(20.0, 1.0).spend(DpSgdSteps(20.0, 1.0, 30))
    for name in ("truck-1", "coordinator"):
        with SqliteStore(tmp_path / f"{name}.sqlite") as store:
            store.apply([Put(TABLE, "ledger", msgspec.msgpack.encode(ledger.to_plain()))])
    return tmp_path


def test_a_statement_tells_what_a_device_has_spent(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["privacy", "statement", "--state", str(folder), "--set", "federation.id=plant"]) == 0
    text = capsys.readouterr().out
    assert "truck-1 in plant" in text
    assert "coordinator in" not in text
    assert "30 steps, noise multiplier 20" in text
    assert "rounds left at this pace" in text
    assert "privacy.lifetime = 100 rounds" in text


def test_a_graph_convolution_is_stated_to_protect_labels_and_no_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for source, unit in (
        ("cora graph convolutional 8-64-64-4-3", "a label"),
        ("cora-node linear on nodes", "a record"),
    ):
        ledger = Ledger(Budget(8.0)).under(mode="rigorous", source=source, budget=Budget(8.0), at=1e9)
        with SqliteStore(tmp_path / "truck-1.sqlite") as store:
            store.apply([Put(TABLE, "ledger", msgspec.msgpack.encode(ledger.to_plain()))])
        assert main(["privacy", "statement", "--state", str(tmp_path)]) == 0
        assert f"Unit of privacy: {unit}" in capsys.readouterr().out


def test_a_statement_is_written_as_a_page(folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "statement.html"
    assert main(["privacy", "statement", "--state", str(folder), "--html", str(page)]) == 0
    assert "<h2>Guarantee</h2>" in page.read_text()


def test_a_folder_without_a_device_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["privacy", "statement", "--state", str(tmp_path)]) == 2
    assert "ofl agent --state" in capsys.readouterr().err


@pytest.mark.parametrize("network", NETWORKS)
def test_the_game_does_not_accuse_the_training_and_comes_near_the_claim(network: str) -> None:
    result = audit(network, GAME, RUNS, np.random.default_rng(5))
    assert not result.violated
    assert 2.5 < result.lower_gaussian < result.claimed <= 8.0


def test_the_game_notices_a_quarter_of_the_noise() -> None:
    assert audit("linear", replace(GAME, noise_share=0.25), RUNS, np.random.default_rng(5)).violated


def test_the_audit_says_what_it_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["privacy", "audit", "--runs", "60", "--steps", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(NETWORKS)
    assert all("not violated" in line for line in lines)
    assert main(["privacy", "audit", "--rate", "0"]) == 2
