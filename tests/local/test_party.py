"""Real parties in processes of their own, asked over their sockets while they run."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import pytest

from ofl_agents.cli import main
from ofl_agents.doctor.state import state
from ofl_iot.ids import COORDINATOR
from ofl_iot.local.address import socket_path
from ofl_iot.local.client import LocalError, LocalParty, NotRunningError
from ofl_iot.local.messages import StatusReply
from ofl_iot.roles.device.privacy_guard import PrivacyRules
from tests.e2e.processes import NAMES, Federation, until

ME = NAMES[0]


async def answering(party: LocalParty, federation: Federation) -> StatusReply:
    """The status of a party once it answers."""
    answers: list[StatusReply] = []

    def answered() -> bool:
        try:
            answers.append(party.status())
        except NotRunningError:
            return False
        return answers[-1].ready

    await until(answered, federation)
    return answers[-1]


async def test_a_device_without_a_broker_says_so_and_after_kill_9_its_socket_is_replaced(
    tmp_path: Path, free_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    federation = Federation(tmp_path, free_port, 1)
    agent, party = federation.processes[ME], LocalParty(federation.state, ME)
    await agent.start()
    first = await answering(party, federation)
    assert (first.party, first.role, first.linked, first.overdue) == (ME, "agent", False, "")
    assert first.details["leader"] is None
    assert first.details["model_complete"] is False
    with pytest.raises(LocalError, match="blocks have not arrived yet"):
        party.model()
    assert main(["status", "--local", "--state", str(federation.state)]) == 0
    said = capsys.readouterr().out
    assert f"{ME}: agent, up " in said
    assert f"process {first.pid}" in said
    agent.kill()
    await agent.ended()
    assert main(["status", "--local", "--state", str(federation.state), "--id", ME]) == 1
    assert "does not run here" in capsys.readouterr().out
    assert socket_path(federation.state, ME).exists()
    with pytest.raises(NotRunningError):
        party.status()
    await agent.start()
    second = await answering(party, federation)
    assert second.pid != first.pid
    agent.kill(signal.SIGTERM)
    assert await agent.ended() == 0
    assert not socket_path(federation.state, ME).exists()
    assert "Traceback" not in agent.output


async def test_a_coordinator_gives_its_model_and_the_doctor_asks_it(
    tmp_path: Path, free_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    federation = Federation(tmp_path, free_port, 1)
    coordinator, party = federation.processes[COORDINATOR], LocalParty(federation.state, COORDINATOR)
    await coordinator.start()
    status = await answering(party, federation)
    reply, body = party.model()
    assert (status.role, reply.role, reply.round_no, reply.final) == ("coordinator", "coordinator", 0, False)
    values = np.frombuffer(body, "<f4")
    assert len(values) == reply.size == status.details["parameters"]
    assert np.isfinite(values).all()
    found = {finding.check: finding for finding in state(federation.state / "coordinator.sqlite", PrivacyRules())}
    assert f"process {status.pid}" in found["state"].said
    assert found["broker"].level == "warning"
    assert main(["status", "--local", "--state", str(federation.state), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["coordinator"]["pid"] == status.pid
    coordinator.kill(signal.SIGTERM)
    assert await coordinator.ended() == 0


def test_a_folder_without_stores_has_no_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--local", "--state", str(tmp_path)]) == 2
    assert "holds no store" in capsys.readouterr().err
