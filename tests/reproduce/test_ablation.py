"""The ablation of OFL's learning rules: same plan but for the change, validation samples, rows run once."""

from __future__ import annotations

import msgspec
import pytest

from ofl_research.reproduction import ablation
from ofl_research.reproduction.ablation import VARIANTS, Row, main, plan_with
from ofl_research.reproduction.federations import ofl_settings


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_makes_settings_and_is_judged_on_validation_samples(variant):
    plan = plan_with("mnist", variant, 1)
    chosen = VARIANTS[variant]
    assert plan.judge == "validation"
    if chosen.system == "ofl":
        settings = ofl_settings(plan)
        assert not settings.merge.gate  # the plan's own sections stay
        for section, values in chosen.sections.items():
            for name, value in values.items():
                assert getattr(getattr(settings, section), name) == value
        as_it_is = plan_with("mnist", "as it is", 1)
        assert plan.rounds == (chosen.rounds or as_it_is.rounds)
        assert plan.rounds * plan.round_s == pytest.approx(as_it_is.rounds * as_it_is.round_s), "the same time"


def test_a_variant_leaves_the_plans_of_others_as_they_are():
    plan_with("mnist", "magnitude", 1)
    assert ofl_settings(plan_with("mnist", "as it is", 1)).upload.score == "o-factor"


def test_a_row_that_was_kept_is_not_run_again(tmp_path, capsys, monkeypatch):
    out = tmp_path / "ablation.jsonl"
    command = ["--datasets", "digits", "--variants", "fedavg", "--seeds", "3", "--out", str(out)]
    assert main(command) == 0
    kept = out.read_bytes()
    row = msgspec.json.decode(kept, type=Row)
    assert row.key == ("digits", "fedavg", 3)
    assert row.result.accuracy > 0.5
    assert "fedavg" in capsys.readouterr().out
    monkeypatch.setattr(ablation, "run_system", pytest.fail)
    assert main(command) == 0
    assert out.read_bytes() == kept
