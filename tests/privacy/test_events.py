"""Privacy events are checked where they are made."""

from __future__ import annotations

import pytest

from ofl_iot.errors import ConfigError
from ofl_iot.privacy.events import Budget, DpSgdSteps, PaperRelease


def test_a_paper_release_costs_each_parameter_in_full():
    assert PaperRelease(eps1=0.5, eps2=0.5, parameters=5261).epsilon == 5261


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: DpSgdSteps(0, 0.1, 1),
        lambda: DpSgdSteps(float("nan"), 0.1, 1),
        lambda: DpSgdSteps(float("inf"), 0.1, 1),
        lambda: DpSgdSteps(1, 0, 1),
        lambda: DpSgdSteps(1, 1.1, 1),
        lambda: DpSgdSteps(1, 0.1, -1),
        lambda: PaperRelease(0, 1, 1),
        lambda: PaperRelease(1, float("nan"), 1),
        lambda: PaperRelease(1, 1, -1),
        lambda: Budget(-1),
        lambda: Budget(float("nan")),
        lambda: Budget(1, 0),
        lambda: Budget(1, 1),
    ],
)
def test_what_is_no_privacy_event_is_refused(wrong):
    with pytest.raises(ConfigError):
        wrong()
