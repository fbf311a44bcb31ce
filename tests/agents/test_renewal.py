"""An agent cares for its certificate: in time, again after a failure, and says what is wrong."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofl_agents.enrolment.client import SERVER, Newcomer
from ofl_agents.enrolment.holder import identity_of
from ofl_agents.enrolment.renewal import LOOK_S, Renewal, next_look_s
from ofl_iot.errors import ConfigError
from ofl_iot.identity.certificates import DAY_S, LIFETIME_S, Validity
from ofl_iot.identity.enrolment import Enrolment
from ofl_iot.ids import COORDINATOR, DeviceId
from ofl_iot.runtime.settings import Settings
from ofl_iot.runtime.settings_file import load_settings
from ofl_iot.transport.identity import CERTIFICATE, CRL, IdentityFolder
from tests.agents.test_enrolment import TRUCK, Running, enrolled, service
from tests.e2e.processes import OflProcess, until

__all__ = ["enrolled", "service"]


def look(held: IdentityFolder) -> tuple[float, list[Enrolment]]:
    """One look: the pause to the next, and what the machine was told."""
    told: list[Enrolment] = []
    return asyncio.run(Renewal(held, told.append).look()), told


@given(st.floats(60.0, 1e8), st.floats(0.0, 1.5))
def test_looks_come_in_time_and_never_in_a_rush(lifetime_s: float, when: float) -> None:
    validity = Validity(0.0, lifetime_s)
    now = when * lifetime_s
    pause_s = next_look_s(validity, now)
    assert pause_s <= LOOK_S
    assert now >= validity.renewal or now + pause_s <= validity.renewal * (1 + 1e-9)
    assert pause_s >= min(1.0, validity.renewal - now if now < validity.renewal else 1.0)


def test_a_young_certificate_is_left_alone_and_the_revocation_list_comes(
    service: Running, enrolled: IdentityFolder
) -> None:
    before = (enrolled.path / CERTIFICATE).read_bytes()
    pause_s, told = look(enrolled)
    assert (pause_s, told) == (LOOK_S, [])
    assert (enrolled.path / CERTIFICATE).read_bytes() == before
    assert (enrolled.path / CRL).read_bytes() == service.ca.crl()


def test_an_old_certificate_is_renewed_and_the_machine_is_told(service: Running, enrolled: IdentityFolder) -> None:
    service.ahead_s = 0.7 * LIFETIME_S
    held = IdentityFolder(enrolled.path, service.now)
    before = held.load()
    pause_s, (told,) = look(held)
    assert pause_s == LOOK_S
    assert told == held.load() or told.certificate == held.load().certificate
    assert told.credential.validity.not_after > before.credential.validity.not_after


def test_a_failed_renewal_is_told_and_tried_again_soon(
    service: Running, enrolled: IdentityFolder, free_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    (enrolled.path / SERVER).write_text(f'{{"server": "127.0.0.1:{free_port}"}}')
    held = IdentityFolder(enrolled.path, lambda: time.time() + LIFETIME_S - 100.0)
    pause_s, told = look(held)
    assert 1.0 <= pause_s <= 5.0
    assert told == []
    assert "certificate not renewed, it expires at" in caplog.text
    assert "no answer from the enrolment service" in caplog.text


def test_an_expired_identity_is_an_error_in_the_log(enrolled: IdentityFolder, caplog: pytest.LogCaptureFixture) -> None:
    pause_s, told = look(IdentityFolder(enrolled.path, lambda: time.time() + 40 * DAY_S))
    assert (pause_s, told) == (LOOK_S, [])
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "enrol with `ofl enroll join`" in record.getMessage()


def settings_with(folder: Path, federation: str = "demo") -> Settings:
    given = {"mqtt.identity": str(folder), "federation.id": federation}
    return load_settings(Settings, [], {}, given).settings


def test_an_identity_is_used_by_its_owner_alone(enrolled: IdentityFolder) -> None:
    assert identity_of(Settings(), TRUCK) is None
    held = identity_of(settings_with(enrolled.path), TRUCK)
    assert held is not None
    assert held.path == enrolled.path
    for name in (DeviceId("truck-2"), COORDINATOR):
        with pytest.raises(ConfigError, match=f"is of truck-1, not of {name}"):
            identity_of(settings_with(enrolled.path), name)
    with pytest.raises(ConfigError, match=r"of the federation demo, and federation.id is other"):
        identity_of(settings_with(enrolled.path, "other"), TRUCK)


def test_a_party_whose_folder_is_not_enrolled_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="ofl enroll join"):
        identity_of(settings_with(tmp_path), TRUCK)


def test_a_copy_is_left_to_whoever_keeps_the_original_who_is_reminded(
    service: Running, enrolled: IdentityFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(enrolled.path))
    before = {file: file.read_bytes() for file in enrolled.path.iterdir()}
    for age in (0.7, 0.9):
        service.ahead_s = age * LIFETIME_S
        assert not caplog.records
        assert look(IdentityFolder(enrolled.path, service.now))[1] == []
    assert {file: file.read_bytes() for file in enrolled.path.iterdir()} == before
    assert "certificate is overdue: run `ofl enroll renew`" in caplog.text


async def test_an_agent_renews_by_itself_although_its_broker_is_away(
    service: Running, tmp_path: Path, free_port: int
) -> None:
    folder = tmp_path / "truck"
    first = Newcomer(folder, TRUCK).join(service.address, service.token(lifetime_s=120.0))
    arguments = ["agent", "--id", TRUCK, "--part", "1/2", "--state", str(tmp_path / "state")]
    settings = ["--set", f"mqtt.identity={folder}", "--set", f"mqtt.port={free_port}"]
    agent = OflProcess([*arguments, *settings], tmp_path / "log")

    await agent.start()
    try:
        await until(lambda: IdentityFolder(folder).load().credential.serial != first.credential.serial)
    finally:
        agent.kill(signal.SIGTERM)
        assert await agent.ended() == 0, agent.output
    assert "Traceback" not in agent.output
