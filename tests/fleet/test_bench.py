from __future__ import annotations

import pytest

from ofl_research.benches.fleet import run


def test_the_benchmark_tells_seconds_and_churn_of_each_size(capsys: pytest.CaptureFixture[str]) -> None:
    figures = run(sizes=(20, 200), terms=2)
    assert list(figures) == ["20", "200"]
    for row in figures.values():
        assert row["first_s"] > 0
        assert row["later_s"] > 0
        assert row["churn"] < 0.2
    assert len(capsys.readouterr().out.splitlines()) == 2
