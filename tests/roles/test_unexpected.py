"""An event that a machine cannot have asked for is a fault of ours: every machine raises instead of ignoring it."""

from __future__ import annotations

from typing import Any

import pytest

from ofl_iot.roles.base import Machine
from ofl_iot.roles.decryption.decryptor import DecryptorMachine
from ofl_iot.roles.events import DataLooked, LeanAnswered, LedgerOpened, SealingKeyMade, Started, Stopping
from ofl_iot.roles.job_kinds.base import Role, every_job
from ofl_iot.roles.keys.holder import KeyHolder
from ofl_iot.roles.settings import ProtectionRules
from tests.roles.parties import A, agent_machine, coordinator_machine


def machines() -> dict[Role, Machine]:
    agent = agent_machine()
    return {
        Role.DEVICE: agent.device,
        Role.LEADER: agent.leader,
        Role.KEYS: KeyHolder(A, 2.0),
        Role.COORDINATOR: coordinator_machine(),
        Role.DECRYPTOR: DecryptorMachine(ProtectionRules(server_dec="decryptor", params="main")),
    }


SHARED = {SealingKeyMade: {Role.DEVICE}, LeanAnswered: {Role.LEADER}}
"""Results that a second machine of the agent is told, too."""


@pytest.mark.parametrize("role", list(Role), ids=lambda role: role.value)
def test_a_result_of_anothers_job_raises(role: Role) -> None:
    own = {job.result for job in every_job() if job.owner is role}
    for job in every_job():
        result: Any = job.result
        if result in own or role in SHARED.get(result, ()):
            continue
        machine = machines()[role]
        machine.handle(Started(), 0.0)
        with pytest.raises(TypeError, match=f"does not expect {result.__name__}"):
            machine.handle(object.__new__(result), 0.0)


def test_a_decryptor_that_stops_does_not_raise() -> None:
    assert machines()[Role.DECRYPTOR].handle(Stopping(), 0.0) == []


def test_the_names_of_results_are_those_of_events() -> None:
    assert {LedgerOpened, DataLooked} <= {job.result for job in every_job() if job.owner is Role.DEVICE}
