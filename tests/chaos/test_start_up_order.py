"""Start-up order costs no repetition: where nothing is lost, a federation closes rounds without a single resend."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pytest

from ofl_agents.chaos.counting import CountingPlan
from ofl_iot.roles.reports.coordinator import RoundAbandoned, RoundClosed
from ofl_iot.roles.reports.device import PullUnanswered
from ofl_iot.runtime.virtual_broker import Faults
from tests.chaos.tally import TallyWorld

NEVER_S = 600.0
"""Whatever is repeated after so long comes too late for the test."""
LATENCY = Faults(latency_s=(0.01, 0.4))


@dataclass
class PatientWorld(TallyWorld):
    """Nobody repeats anything within the test."""

    def make_plan(self, plan: CountingPlan) -> CountingPlan:
        return msgspec.structs.replace(
            plan,
            upload=msgspec.structs.replace(plan.upload, resend_s=NEVER_S),
            download=msgspec.structs.replace(plan.download, timeout_s=NEVER_S),
            leader=msgspec.structs.replace(plan.leader, resend_s=NEVER_S),
            key_resend_s=NEVER_S,
        )


@pytest.mark.parametrize("seed", range(20))
def test_without_loss_no_repetition_is_needed(seed: int) -> None:
    fleet = PatientWorld(devices=8, seed=seed, faults=LATENCY)
    assert fleet.world.run(lambda: fleet.world.told[RoundClosed] >= 8, limit_s=90.0)
    assert not fleet.world.told[PullUnanswered]
    assert not fleet.world.told[RoundAbandoned]
    assert all(agent.device.model.complete for agent in fleet.agents.values())
