"""`ofl chaos` in virtual time: schedules come from seeds, break nothing, and a failing one is reduced."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofl_agents.chaos.schedules import KINDS, Fault, Schedule, draw_schedule, run_schedule, shrink
from ofl_agents.cli import main
from ofl_agents.commands import chaos
from tests.chaos.tally import TallyWorld

FORGOTTEN_LOSS = 267
"""A leader's store was wiped while the coordinator restarted: its loss was noted, and nothing was done about it."""


@pytest.mark.parametrize("block", range(8))
def test_no_schedule_loses_or_doubles_a_chunk(block: int) -> None:
    for seed in range(block * 5, block * 5 + 5):
        outcome = run_schedule(draw_schedule(seed), TallyWorld)
        assert (outcome.lost, outcome.doubled) == (0, 0), f"seed {seed}"
        assert outcome.rested or outcome.refused, f"seed {seed} does not come to rest"
        assert outcome.refused or outcome.released > 10, f"seed {seed} did not work"


def test_a_store_lost_while_the_coordinator_restarts_is_not_forgotten() -> None:
    outcome = run_schedule(draw_schedule(FORGOTTEN_LOSS), TallyWorld)
    assert outcome.rested


def test_schedules_of_many_seeds_have_every_kind_of_fault_on_every_party() -> None:
    seen = {(fault.kind, fault.party) for seed in range(100) for fault in draw_schedule(seed).faults}
    assert {kind for kind, _ in seen} == set(KINDS)
    assert {party for kind, party in seen if kind == "wipe"} == {"coordinator", "d0", "d1", "d2", "d3", "d4"}
    assert draw_schedule(7) == draw_schedule(7)


FAULTS = [Fault(float(number), "cut", f"d{number % 5}", 1.0) for number in range(14)]


@given(st.sets(st.sampled_from(FAULTS), min_size=1))
def test_a_failing_schedule_is_reduced_to_what_it_takes(guilty: set[Fault]) -> None:
    assert set(shrink(FAULTS, lambda faults: guilty <= set(faults))) == guilty


def test_a_schedule_that_fails_without_any_fault_is_reduced_to_nothing() -> None:
    assert shrink(FAULTS, lambda _: True) == []


def test_a_planted_loss_is_found_and_its_schedule_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A store that forgets the model's last value at every crash of the coordinator."""
    real = TallyWorld._make_coordinator

    def forgetful(self: TallyWorld) -> object:
        store = self.world.parties["coordinator"].store
        rows = store._tables.get("coordinator.model", {})
        if "values" in rows:
            rows["values"] = rows["values"][:-4] + bytes(4)
        return real(self)

    monkeypatch.setattr(TallyWorld, "_make_coordinator", forgetful)
    monkeypatch.setattr(chaos, "run_schedule", lambda schedule: run_schedule(schedule, TallyWorld))
    monkeypatch.setattr(
        chaos,
        "draw_schedule",
        lambda seed: Schedule(seed, (Fault(5.0, "cut", "d1", 1.0), Fault(30.0, "crash", "coordinator", 1.0))),
    )
    assert main(["chaos", "--schedules", "1", "--json", str(tmp_path / "figures.json")]) == 1
    told = capsys.readouterr().err
    assert "crash  coordinator" in told
    assert "cut" not in told, "it takes no more than the crash"
    assert json.loads((tmp_path / "figures.json").read_text())["lost"] > 0


def test_the_command_counts_and_writes_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chaos", "--schedules", "4", "--json", str(tmp_path / "figures.json")]) == 0
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert (figures["lost"], figures["doubled"], figures["rested"]) == (0, 0, True)
    assert sum(each["times"] for each in figures["faults"].values()) > 8
    assert "0 lost, 0 doubled" in capsys.readouterr().out


def test_what_cannot_be_run_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["chaos", "--schedules", "0"]) == 2
    assert main(["chaos", "--live", "--minutes", "0"]) == 2
    (tmp_path / "old").touch()
    assert main(["chaos", "--live", "--folder", str(tmp_path)]) == 2
    assert "is not empty" in capsys.readouterr().err
