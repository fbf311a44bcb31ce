"""`ofl fleet` over mosquitto with mutual TLS: an enrolled device obeys its operator and nobody else, and remembers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from pathlib import Path

import pytest

from ofl_agents.cli import main
from ofl_iot.ids import OPERATOR, DeviceId
from tests.conftest import MOSQUITTO
from tests.e2e.enrolled import Enrolled
from tests.e2e.processes import NAMES, Federation
from tests.e2e.test_production_mosquitto import Production

pytestmark = [pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed"), pytest.mark.slow]


async def test_a_device_is_paused_restarted_and_resumed_and_no_device_can_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    identities = Enrolled(tmp_path / "identities", OPERATOR, "observer")
    broker = Production(tmp_path / "broker", identities)
    federation = Federation(tmp_path, broker.port, 0)
    identities.enrol_all(federation, broker.port)

    def ofl(*words: str, name: str = OPERATOR) -> int:
        where = {"hosts": json.dumps([f"127.0.0.1:{broker.port}"]), "identity": str(tmp_path / "identities" / name)}
        return main([*words, "--set=federation.id=e2e", *(f"--set=mqtt.{key}={value}" for key, value in where.items())])

    truck = federation.processes[NAMES[1]]
    async with broker.running(), federation.running():

        async def ordered(action: str) -> None:
            for _ in range(20):
                with contextlib.suppress(SystemExit):
                    if await asyncio.to_thread(ofl, "fleet", action, NAMES[1], "--timeout=20") == 0:
                        return
                await asyncio.sleep(0.5)
            raise AssertionError(capsys.readouterr().err + truck.output[-1000:])

        await ordered("pause")
        assert "order obeyed" in truck.output
        capsys.readouterr()
        assert await asyncio.to_thread(ofl, "why", NAMES[1], "--json", name="observer") == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["code"], told["values"]["by"].startswith("operator-")) == ("paused", True)
        truck.kill(signal.SIGTERM)
        await truck.ended()
        await truck.start()
        await ordered("resume")
        assert await asyncio.to_thread(ofl, "fleet", "pause", NAMES[1], name=NAMES[2]) == 2
        assert "may give no orders" in capsys.readouterr().err
        assert await asyncio.to_thread(ofl, "fleet", "pause", DeviceId("nobody")) == 2
        assert "no device is called nobody" in capsys.readouterr().err
