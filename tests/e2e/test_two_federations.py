"""Two federations with parties of the same names at one real mosquitto: apart, and safe from each other."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt.client import CallbackAPIVersion, Client, MQTTv311

from ofl_agents.cli import main
from ofl_agents.enrolment.authority import Authority
from ofl_broker.mosquitto import CONFIG
from ofl_iot.ids import COORDINATOR, FederationId
from ofl_iot.protocol.topics import Kind, Topic, Topics
from ofl_iot.transport.identity import CA, CERTIFICATE, KEY, IdentityFolder
from ofl_iot.transport.mqtt import MqttLink, MqttSettings
from tests.conftest import MOSQUITTO, _free_port, _until_listening
from tests.e2e.processes import QUICK, OflProcess
from tests.e2e.test_identity_mosquitto import enrol
from tests.links import Recorder
from tests.waiting import eventually

pytestmark = pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed")

NORTH, SOUTH = FederationId("north"), FederationId("south")
PARTIES = (COORDINATOR, "truck-1", "truck-2")
ROUNDS = 2


class Site:
    """One broker, and for each federation an authority, a port and identities of the same names."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = {federation: _free_port() for federation in (NORTH, SOUTH)}
        for federation, port in self.ports.items():
            ca = Authority.found(folder / f"{federation}-ca", federation, time.time())
            for name in PARTIES:
                enrol(ca, self.identity(federation, name), name)
            broker = enrol(ca, self.identity(federation, "broker"), "broker", ("127.0.0.1",)).path
            assert self.profile(federation, port, f"--identity={broker}") == 0

    def profile(self, federation: FederationId, port: int, *more: str) -> int:
        where = [f"--out={self.folder / 'broker'}", "--host=127.0.0.1", f"--port={port}", "--shared"]
        me = ["--user=root"] if os.geteuid() == 0 else []
        return main(["broker", "profile", "mosquitto", *where, f"--set=federation.id={federation}", *more, *me])

    def identity(self, federation: FederationId, name: str) -> Path:
        return self.folder / federation / name

    def link(self, federation: FederationId, name: str, at: FederationId | None = None) -> MqttLink:
        settings = MqttSettings(
            hosts=(f"127.0.0.1:{self.ports[at or federation]}",),
            identity=str(self.identity(federation, name)),
            backoff_min_s=0.02,
            backoff_max_s=0.2,
        )
        return MqttLink(settings, name, federation=federation)

    @contextlib.asynccontextmanager
    async def broker(self) -> AsyncIterator[None]:
        assert MOSQUITTO is not None
        with (self.folder / "log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(MOSQUITTO, "-c", self.folder / "broker" / CONFIG, stderr=log)
        try:
            for port in self.ports.values():
                await _until_listening(port)
            yield
        finally:
            process.terminate()
            await process.wait()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


async def test_parties_of_one_name_stay_connected_and_hear_their_own_federation_only(site: Site) -> None:
    async with site.broker(), contextlib.AsyncExitStack() as links:
        heard = {}
        for federation in site.ports:
            for name in (COORDINATOR, "truck-1"):
                link, heard[federation, name] = site.link(federation, name), Recorder()
                if name == COORDINATOR:
                    for each in site.ports:  # its own statuses, and those of the neighbours
                        link.subscribe(Topics(each).pattern(Kind.STATUS), 1)
                link.start(heard[federation, name])
                links.push_async_callback(link.stop)
                await eventually(lambda link=link: link.connected)
                if name != COORDINATOR:
                    for each in site.ports:
                        topic = Topics(each).build(Topic(Kind.STATUS, "truck-1"))
                        link.publish(topic, federation.encode(), qos=1)
        for federation in site.ports:
            await eventually(lambda mine=federation: heard[mine, COORDINATOR].payloads)
        assert {each: set(heard[each, COORDINATOR].payloads) for each in site.ports} == {
            NORTH: {b"north"},
            SOUTH: {b"south"},
        }
        assert not [each for each in heard.values() if each.downs], "nobody was evicted"


async def test_a_certificate_of_the_neighbours_opens_nothing(site: Site) -> None:
    async with site.broker():
        link, heard = site.link(NORTH, "truck-1", at=SOUTH), Recorder()
        link.start(heard)
        await eventually(lambda: link.last_failure)
        assert "certificate" in link.last_failure
        assert heard.ups == []
        await link.stop()


async def test_who_knows_the_name_does_not_know_the_session(site: Site) -> None:
    """The attack: a member of either federation connects with the client id of another one's coordinator."""

    def intrude(federation: FederationId, client_id: str) -> int:
        held = IdentityFolder(site.identity(federation, "truck-2")).path
        client = Client(CallbackAPIVersion.VERSION2, client_id=client_id, clean_session=True, protocol=MQTTv311)
        client.tls_set(str(held / CA), str(held / CERTIFICATE), str(held / KEY), tls_version=ssl.PROTOCOL_TLS_CLIENT)
        client.connect("127.0.0.1", site.ports[federation])
        answers: list[Any] = []
        client.on_connect = lambda _c, _u, _f, reason, _p: answers.append(reason)
        until = time.monotonic() + 20
        while not answers and time.monotonic() < until:
            client.loop(0.1)
        client.disconnect()
        return len(answers)

    async with site.broker():
        link, heard = site.link(SOUTH, COORDINATOR), Recorder()
        link.start(heard)
        await eventually(lambda: link.connected)
        secret = IdentityFolder(site.identity(SOUTH, COORDINATOR)).session_secret()
        for federation in site.ports:
            for guess in (f"south.{COORDINATOR}", COORDINATOR, f"south.{COORDINATOR}.{'0' * len(secret)}"):
                assert await asyncio.to_thread(intrude, federation, guess) == 1, "it was let in"
        assert link.connected
        assert heard.downs == []
        await asyncio.to_thread(intrude, SOUTH, f"south.{COORDINATOR}.{secret}")
        await eventually(lambda: heard.downs)  # so the guesses above could have worked
        await link.stop()


def test_two_listeners_at_one_port_are_refused(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    assert site.profile(SOUTH, site.ports[NORTH], "--force") == 2
    assert "belongs to federation north at this broker: choose --port" in capsys.readouterr().err


async def test_two_federations_of_processes_complete_their_rounds(site: Site) -> None:
    """Two coordinators used to evict each other."""

    def processes(federation: FederationId) -> dict[str, OflProcess]:
        config = site.folder / f"{federation}.toml"
        config.write_text(
            QUICK.format(
                port=site.ports[federation], rounds=ROUNDS, protection="clear", server_dec=COORDINATOR, params="lean"
            )
            .replace('id = "e2e"', f'id = "{federation}"')
            .replace("min_devices = 4", "min_devices = 2")
            .replace("clusters = 2", "clusters = 1")
        )
        common = ["--config", str(config), "--state", str(site.folder / f"{federation}-state")]
        commands = {COORDINATOR: ["coordinator"]}
        commands |= {f"truck-{part}": ["agent", f"--id=truck-{part}", f"--part={part}/2"] for part in (1, 2)}
        return {
            name: OflProcess(
                [*command, *common, f"--set=mqtt.identity={site.identity(federation, name)}"],
                site.folder / f"{federation}-{name}.log",
            )
            for name, command in commands.items()
        }

    parties = {federation: processes(federation) for federation in site.ports}
    everybody = [process for named in parties.values() for process in named.values()]
    async with site.broker():
        try:
            for process in everybody:
                await process.start()
            for federation, named in parties.items():
                coordinator = named[COORDINATOR]
                assert await coordinator.ended() == 0, (federation, coordinator.output[-2000:])
                assert f"rounds={ROUNDS} " in coordinator.output
        finally:
            for process in everybody:
                process.kill()
                await process.ended()
    assert not [process.output for process in everybody if "another client with this id" in process.output]
