"""The chosen settings, and how they are found."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofl_iot.workloads.tasks import TASKS
from ofl_research.reproduction import tuning
from ofl_research.reproduction.federations import SYSTEMS
from ofl_research.reproduction.settings import Budget, Choice, dealing_for, plan_for, plan_of
from ofl_research.reproduction.tuning import Try, choices, main


@given(steps=st.integers(1, 50), budget=st.integers(50, 2000), models=st.integers(1, 30), rounds=st.integers(1, 20))
def test_every_system_uses_the_budget_and_no_more(steps: int, budget: int, models: int, rounds: int) -> None:
    choice = Choice(steps=steps, rounds=rounds)
    baseline = plan_of(choice, "fedavg", Budget(steps=budget, models=models))
    assert budget - steps < baseline.rounds * baseline.steps <= budget
    assert 1 <= baseline.rounds // baseline.eval_every <= 2 * models
    ofl = plan_of(choice, "ofl", Budget(steps=budget, models=models))
    assert ofl.rounds == rounds
    seconds_a_step = 0.03 / ((0.597 + 0.695 + 0.829 + 1) / 4)
    assert ofl.rounds * ofl.round_s == pytest.approx(budget * seconds_a_step, rel=0.01)


@pytest.mark.parametrize("dataset", TASKS)
def test_every_data_set_has_a_plan_for_every_system_and_quick_ones_are_shorter(dataset: str) -> None:
    for system in SYSTEMS:
        full, quick = plan_for(dataset, system), plan_for(dataset, system, quick=True)
        assert full.gamma_up == 0.1
        assert quick.rounds * quick.round_s < full.rounds * full.round_s


def test_quick_runs_have_fewer_images_and_a_smaller_model() -> None:
    assert dealing_for("mnist").samples is None
    assert dealing_for("mnist", quick=True).samples
    assert dealing_for("cora", quick=True) == dealing_for("cora")


def test_every_system_has_the_same_number_of_tries() -> None:
    assert {len(list(choices("mnist", system))) for system in SYSTEMS} == {6}


def test_tries_are_kept_line_by_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tuning, "PACES", ((0.3, 0.0),))
    monkeypatch.setattr(tuning, "STEPS", (50,))
    out = tmp_path / "tries.jsonl"
    assert main(["--datasets", "digits", "--systems", "fedavg", "--quick", "--out", str(out)]) == 0
    (kept,) = [msgspec.json.decode(line, type=Try) for line in out.read_bytes().splitlines()]
    assert kept.result.judge == "validation"
    assert kept.choice.steps == 50
    assert "fedavg" in capsys.readouterr().out
