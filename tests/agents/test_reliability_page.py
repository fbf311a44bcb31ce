"""docs/reliability.md is what `ofl chaos` printed for the figures in results/, and its zeros are zeros."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from ofl_agents.chaos.audit import Figures
from ofl_agents.commands.chaos import describe

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("mode", ["virtual", "live"])
def test_the_page_shows_the_measured_figures_and_nothing_was_lost_or_doubled(mode: str) -> None:
    figures = msgspec.json.decode((ROOT / "results" / f"chaos-{mode}.json").read_bytes(), type=Figures)
    page = (ROOT / "docs" / "reliability.md").read_text()
    shown = page.partition(f"<!-- {mode} -->\n")[2].partition("\n<!-- end -->")[0]
    assert shown == describe(figures)
    assert (figures.mode, figures.lost, figures.doubled, figures.rested) == (mode, 0, 0, True)
    assert all((each.lost, each.doubled) == (0, 0) for each in figures.faults.values())
