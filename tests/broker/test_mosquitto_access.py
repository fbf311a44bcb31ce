"""The generated mosquitto profile at work: mutual TLS 1.3, and every topic tried by everybody."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from paho.mqtt.client import CallbackAPIVersion, Client, MQTTv311

from ofl_agents.cli import main
from ofl_broker.mosquitto import ACL, CONFIG, MEMORY_LIMIT_BYTES
from ofl_iot.ids import COORDINATOR, DeviceId
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.transport.mqtt import MqttLink, TlsSettings, Will
from tests.broker.access import (
    DEVICE,
    FEDERATION,
    LEADER,
    PARTIES,
    TOPICS,
    WATCHER,
    Door,
    disguised,
    echo_of,
    may_be_published_by,
    may_be_received_by,
    present,
    published_by,
    received_by,
    refused,
    whole_pattern_tree,
    whole_tree,
)
from tests.certificates import Authority
from tests.conftest import MOSQUITTO, _free_port, _until_listening
from tests.links import Recorder
from tests.netfaults import TcpProxy
from tests.waiting import eventually

pytestmark = pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed")

WATCHERS_RIGHTS = f"\nuser {WATCHER}\ntopic readwrite ofl/#\n"


@dataclass(frozen=True)
class Site:
    """A broker's folder, the certificates around it, and how each party comes in."""

    authority: Authority
    folder: Path
    port: int

    @property
    def doors(self) -> dict[str, Door]:
        return {name: self.door(name) for name in (*PARTIES, WATCHER)}

    def door(self, file: str) -> Door:
        at = self.authority.path
        return Door(self.port, TlsSettings(ca=at("ca.pem"), cert=at(f"{file}.pem"), key=at(f"{file}.key")))

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        assert MOSQUITTO is not None
        with (self.folder / "log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(MOSQUITTO, "-c", self.folder / CONFIG, stderr=log)
        try:
            await _until_listening(self.port)
            yield
        finally:
            process.terminate()
            assert await process.wait() == 0, (self.folder / "log").read_text()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """A profile as `ofl broker profile mosquitto` writes it, with a watcher beside the policy."""
    folder = tmp_path_factory.mktemp("mosquitto")
    authority = Authority(folder / "pki")
    for name in (*PARTIES, WATCHER, "broker", "revoked"):
        authority.issue(name)
    authority.issue("late", valid=False)
    authority.issue("#", file="wild")
    authority.issue("+", file="plus")
    port = _free_port()
    files = [f"--{name}={authority.path(file)}" for name, file in (("ca", "ca.pem"), ("cert", "broker.pem"))]
    files += [f"--key={authority.path('broker.key')}", f"--crl={authority.revoke('revoked')}"]
    where = [f"--out={folder / 'broker'}", "--host=127.0.0.1", f"--port={port}", f"--set=federation.id={FEDERATION}"]
    me = ["--user=root"] if os.geteuid() == 0 else []
    assert main(["broker", "profile", "mosquitto", *where, *files, *me]) == 0
    with (folder / "broker" / ACL).open("a") as acl:
        acl.write(WATCHERS_RIGHTS)
    return Site(authority, folder / "broker", port)


@pytest.mark.parametrize("name", PARTIES)
async def test_everything_a_party_may_publish_gets_through_and_nothing_else(name: str, site: Site) -> None:
    async with site.open():
        assert await published_by(name, site.doors) == may_be_published_by(name)


@pytest.mark.parametrize("name", PARTIES)
async def test_everything_a_party_may_read_reaches_it_and_nothing_else(name: str, site: Site) -> None:
    async with site.open():
        assert await received_by(name, site.doors) == may_be_received_by(name)


@pytest.mark.parametrize("outsider", ["revoked", "late", "stranger", "without certificate", "old protocol"])
async def test_an_outsider_is_not_let_in(
    outsider: str, site: Site, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    bearer = outsider if outsider in ("revoked", "late") else DEVICE
    door = disguised(outsider, site.door(bearer), site.folder, monkeypatch)

    async with site.open():
        await refused(MqttLink(door.settings(), DEVICE), caplog)


@pytest.mark.parametrize("file", ["wild", "plus"])
async def test_a_name_that_is_a_wildcard_opens_nothing(file: str, site: Site) -> None:
    """The CA signs no such name; the broker would not fall for it either."""

    link, heard = MqttLink(site.door(file).settings(), "anyone"), Recorder()
    for pattern in whole_pattern_tree():
        link.subscribe(pattern, 1)
    async with (
        site.open(),
        present(site.doors[WATCHER], WATCHER, (f"ofl/v1/{FEDERATION}/#",)) as (watcher, seen),
    ):
        await eventually(lambda: watcher.granted)
        link.start(heard)
        await eventually(lambda: heard.events)
        for topic in whole_tree():
            link.publish(topic, b"mine", qos=1)
            assert watcher.publish(topic, b"theirs", qos=1)
        await eventually(lambda: len({delivery.topic for delivery in seen.deliveries}) == len(whole_tree()))
        await link.stop()
        assert set(seen.payloads) == {b"theirs"}
        assert not heard.deliveries


async def test_a_certificate_counts_whatever_name_its_bearer_gives(site: Site) -> None:
    """A device that calls itself the other leader is itself, and takes nobody's session."""

    async with (
        site.open(),
        present(site.doors[WATCHER], WATCHER, (f"ofl/v1/{FEDERATION}/#",)) as (watcher, seen),
        present(site.doors[LEADER], LEADER) as (leader, told),
        present(site.doors[DEVICE], LEADER) as (impostor, _),
    ):
        await eventually(lambda: watcher.granted)
        assert impostor.publish(echo_of(LEADER), b"stolen", qos=1)
        assert impostor.publish(echo_of(DEVICE), b"mine", qos=1)
        await eventually(lambda: b"mine" in seen.payloads)
        assert leader.publish(echo_of(LEADER), b"still here", qos=1)
        await eventually(lambda: b"still here" in seen.payloads)
        assert b"stolen" not in seen.payloads
        assert not told.downs


async def test_a_last_will_is_no_way_around_the_rules(site: Site) -> None:

    async with (
        site.open(),
        TcpProxy(site.port) as proxy,
        present(site.doors[WATCHER], WATCHER, (f"ofl/v1/{FEDERATION}/#",)) as (watcher, seen),
    ):
        await eventually(lambda: watcher.granted)
        status = {name: TOPICS.build(Topic(Kind.STATUS, name)) for name in (DEVICE, LEADER)}
        for victim in (LEADER, DEVICE):  # the forbidden one first, the allowed one as the end of the wait
            settings = Door(proxy.port, site.doors[DEVICE].tls).settings()
            link, heard = MqttLink(settings, DEVICE, Will(status[victim], b"gone")), Recorder()
            link.start(heard)
            await eventually(lambda heard=heard: heard.ups)
            proxy.reset()
            await eventually(lambda heard=heard: len(heard.ups) == 2)
            await link.stop()
        await eventually(lambda: any(each.topic == status[DEVICE] for each in seen.deliveries))
        assert {each.topic for each in seen.deliveries} == {status[DEVICE]}


async def test_sessions_and_retained_messages_survive_a_restart_of_the_broker(site: Site) -> None:

    assignment = TOPICS.build(Topic(Kind.ASSIGNMENT, COORDINATOR, DEVICE))
    receipt = TOPICS.build(Topic(Kind.RECEIPT, COORDINATOR, DEVICE))

    async with site.open():
        async with present(site.doors[DEVICE], DEVICE, (receipt,)) as (device, _):
            await eventually(lambda: device.granted)
        async with present(site.doors[COORDINATOR], COORDINATOR) as (coordinator, _):
            assert coordinator.publish(assignment, b"lead", qos=1, retain=True)
            assert coordinator.publish(receipt, b"while you were away", qos=1)
    async with site.open(), present(site.doors[DEVICE], DEVICE) as (device, heard):
        assert heard.ups[0].session_present
        device.subscribe(assignment, 1)
        await eventually(lambda: heard.payloads == [b"while you were away", b"lead"])


async def test_a_member_that_fills_the_broker_is_thrown_out_and_the_others_go_on(site: Site) -> None:
    """The attack: retained messages under invented receivers, 300 of them from 9 to 586 MB."""

    config = site.folder / CONFIG
    sound = config.read_text()
    assert f"memory_limit {MEMORY_LIMIT_BYTES}\n" in sound
    small = 24 * 2**20
    assignment = TOPICS.build(Topic(Kind.ASSIGNMENT, COORDINATOR, DEVICE))

    async def story() -> None:
        async with site.open():
            attacker = Client(CallbackAPIVersion.VERSION2, client_id="attacker", protocol=MQTTv311)
            at = site.authority.path
            attacker.tls_set(str(at("ca.pem")), str(at(f"{LEADER}.pem")), str(at(f"{LEADER}.key")))
            attacker.connect("127.0.0.1", site.port)
            attacker.loop_start()
            try:
                for number in range(60):
                    invented = TOPICS.build(Topic(Kind.KEYS, LEADER, DeviceId(f"invented-{number}")))
                    attacker.publish(invented, bytes(2**20), qos=1, retain=True)
                log = site.folder / "log"
                await eventually(lambda: f"Client {LEADER} disconnected due to out of memory" in log.read_text())
            finally:
                attacker.disconnect()
                attacker.loop_stop()
            async with (
                present(site.doors[DEVICE], DEVICE, (assignment,)) as (device, heard),
                present(site.doors[COORDINATOR], COORDINATOR) as (coordinator, _),
            ):
                await eventually(lambda: device.granted)
                assert coordinator.publish(assignment, bytes(64 * 1024), qos=1, retain=True)
                await eventually(lambda: bytes(64 * 1024) in heard.payloads)

    try:
        config.write_text(sound.replace(f"memory_limit {MEMORY_LIMIT_BYTES}", f"memory_limit {small}"))
        await story()
    finally:
        config.write_text(sound)


@pytest.fixture(autouse=True)
def no_traces(site: Site) -> Iterator[None]:
    """Sessions of one story are no part of the next."""
    yield
    for file in (site.folder / "data").iterdir():
        file.unlink()
