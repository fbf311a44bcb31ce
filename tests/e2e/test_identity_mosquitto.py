"""Enrolled parties at a real mosquitto: who is let in, who no longer is, and what a renewal changes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from ofl_agents.cli import main
from ofl_agents.enrolment.authority import CRL, Authority
from ofl_agents.enrolment.client import Newcomer
from ofl_agents.enrolment.files import make_private_folder, write_private
from ofl_broker.mosquitto import CONFIG
from ofl_iot.ids import DeviceId, FederationId
from ofl_iot.transport.identity import CA, CERTIFICATE, KEY, IdentityFolder
from ofl_iot.transport.mqtt import MqttLink
from tests.conftest import MOSQUITTO, _free_port, _until_listening
from tests.links import Recorder, impatient, linked
from tests.waiting import eventually

pytestmark = pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed")

FEDERATION = FederationId("demo")
TRUCK, OTHER = DeviceId("truck-1"), DeviceId("truck-2")


def enrol(ca: Authority, folder: Path, name: str, hosts: tuple[str, ...] = ()) -> IdentityFolder:
    """As `ofl enroll request`, `sign` and `accept` do it."""
    newcomer = Newcomer(folder, DeviceId(name))
    request = newcomer.request(ca.federation)
    make_private_folder(folder)
    write_private(folder / CA, ca.certificate.public_bytes(Encoding.PEM))
    newcomer.accept(ca.sign(newcomer.name, request, time.time(), hosts=hosts))
    return IdentityFolder(folder)


@dataclass
class Site:
    """An authority, its broker and how to reach it."""

    folder: Path
    ca: Authority
    port: int

    @contextlib.asynccontextmanager
    async def broker(self) -> AsyncIterator[asyncio.subprocess.Process]:
        assert MOSQUITTO is not None
        with (self.folder / "log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(MOSQUITTO, "-c", self.folder / "broker" / CONFIG, stderr=log)
        try:
            await _until_listening(self.port)
            yield process
        finally:
            process.terminate()
            await process.wait()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    ca = Authority.found(tmp_path / "ca", FEDERATION, time.time())
    broker = enrol(ca, tmp_path / "broker-identity", "broker", ("127.0.0.1",)).path
    port = _free_port()
    files = [
        f"--ca={broker / CA}",
        f"--cert={broker / CERTIFICATE}",
        f"--key={broker / KEY}",
        f"--crl={ca.folder / CRL}",
    ]
    where = [f"--out={tmp_path / 'broker'}", "--host=127.0.0.1", f"--port={port}", f"--set=federation.id={FEDERATION}"]
    me = ["--user=root"] if os.geteuid() == 0 else []
    assert main(["broker", "profile", "mosquitto", *where, *files, f"--crl={ca.folder / CRL}", *me]) == 0
    return Site(tmp_path, ca, port)


async def refused(link: MqttLink, caplog: pytest.LogCaptureFixture) -> str:
    """Why the link did not come up."""
    caplog.clear()
    handler = Recorder()
    link.start(handler)
    await eventually(lambda: [each for each in caplog.messages if "no link to the broker" in each])
    assert handler.ups == []
    await link.stop()
    return caplog.text


async def test_a_revoked_device_is_refused_once_the_broker_has_reloaded_and_others_are_not(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    truck, other = (str(enrol(site.ca, site.folder / name, name).path) for name in (TRUCK, OTHER))

    async with site.broker() as broker:
        async with linked(site.port, TRUCK, identity=truck):
            pass
        site.ca.revoke(TRUCK, time.time(), "stolen")
        broker.send_signal(signal.SIGHUP)
        async with linked(site.port, OTHER, identity=other) as (link, _):
            assert link.connected  # and so the broker has been through its loop since the signal
        why = await refused(MqttLink(impatient(site.port, identity=truck), TRUCK), caplog)
        assert "revoked" in why


async def test_a_namesake_of_another_authority_is_refused(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    stranger = Authority.found(site.folder / "foreign", FEDERATION, time.time())
    enrol(site.ca, site.folder / TRUCK, TRUCK)
    foreign = str(enrol(stranger, site.folder / "stranger", TRUCK).path)

    async with site.broker():
        link = MqttLink(impatient(site.port, identity=foreign), TRUCK)
        assert "certificate verify failed" in (await refused(link, caplog)).lower()


async def test_a_link_that_stands_takes_the_renewed_certificate_when_it_connects_again(site: Site) -> None:
    held = enrol(site.ca, site.folder / TRUCK, TRUCK)

    async with contextlib.AsyncExitStack() as first:
        await first.enter_async_context(site.broker())
        async with linked(site.port, TRUCK, identity=str(held.path)) as (link, heard):
            old = held.load()
            request = Newcomer(held.path, DeviceId(TRUCK)).request(site.ca.federation)
            write_private(held.path / CERTIFICATE, site.ca.sign(DeviceId(TRUCK), request, time.time()))
            assert held.load().credential.serial != old.credential.serial, "only the new one opens"
            await first.aclose()
            await eventually(lambda: heard.downs)
            async with site.broker():
                await eventually(lambda: len(heard.ups) == 2 and link.connected)
