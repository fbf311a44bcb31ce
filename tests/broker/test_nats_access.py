"""The generated NATS profile at work: identities from certificates, and every topic tried by everybody."""

from __future__ import annotations

from pathlib import Path

import pytest

from ofl_broker.nats import ACCESS
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.transport.mqtt import MqttLink, TlsSettings
from ofl_research.benches.broker_processes import _certify
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
)
from tests.certificates import Authority
from tests.nats import NATS, WITHOUT_NATS, NatsCluster
from tests.waiting import eventually

pytestmark = pytest.mark.skipif(NATS is None, reason=WITHOUT_NATS)

WATCHERS_RIGHTS = f'    {{ user: "CN={WATCHER}", permissions: {{ publish: [">"], subscribe: [">"] }} }}\n  ]'


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority(tmp_path_factory.mktemp("pki"))
    for name in (*PARTIES, WATCHER, "broker", "unlisted"):
        made.issue(name)
    return made


@pytest.fixture
def node(authority: Authority, tmp_path: Path) -> NatsCluster:
    """One node, with a watcher beside the policy."""
    devices = tmp_path / "devices"
    devices.write_text(f"{DEVICE}\n{LEADER}\n")
    files = [f"--ca={authority.path('ca.pem')}", f"--cert={authority.path('broker.pem')}"]
    more = [f"--key={authority.path('broker.key')}", f"--devices={devices}", f"--set=federation.id={FEDERATION}"]
    node = NatsCluster(tmp_path / "nats", 1, *files, *more)
    access = tmp_path / "nats" / "node-1" / ACCESS
    access.write_text(access.read_text().replace("  ]", WATCHERS_RIGHTS, 1))
    return node


@pytest.fixture
def doors(node: NatsCluster, authority: Authority) -> dict[str, Door]:
    return {name: door(node, authority, name) for name in (*PARTIES, WATCHER, "unlisted")}


def door(node: NatsCluster, authority: Authority, file: str) -> Door:
    at = authority.path
    return Door(node.ports[0], TlsSettings(ca=at("ca.pem"), cert=at(f"{file}.pem"), key=at(f"{file}.key")))


@pytest.mark.parametrize("name", PARTIES)
async def test_what_a_party_may_do_works_and_nothing_else(name: str, node: NatsCluster, doors: dict[str, Door]) -> None:
    async with node.running():
        assert await published_by(name, doors) == may_be_published_by(name)
        assert await received_by(name, doors) == may_be_received_by(name)


@pytest.mark.parametrize("outsider", ["unlisted", "stranger", "without certificate", "old protocol"])
async def test_an_outsider_is_not_let_in(
    outsider: str, node: NatsCluster, doors: dict[str, Door], request: pytest.FixtureRequest
) -> None:
    caplog, monkeypatch = request.getfixturevalue("caplog"), request.getfixturevalue("monkeypatch")
    bearer = outsider if outsider == "unlisted" else DEVICE
    door = disguised(outsider, doors[bearer], node.folder, monkeypatch)

    async with node.running():
        await refused(MqttLink(door.settings(), DEVICE), caplog)


async def test_where_the_broker_hands_messages_to_sessions_nobody_can_listen(
    node: NatsCluster, doors: dict[str, Door]
) -> None:
    """Everyone holds a right to those subjects, which MQTT cannot name."""

    spied = ("$MQTT/sub/#", "$MQTT/#", "$JS/#", "$SYS/#")
    async with (
        node.running(),
        present(doors[LEADER], LEADER, (echo_of(LEADER),)) as (leader, told),
        present(doors[DEVICE], DEVICE, (*spied, echo_of(DEVICE))) as (spy, heard),
    ):
        await eventually(lambda: echo_of(DEVICE) in spy.granted and leader.granted)
        assert leader.publish(echo_of(LEADER), b"mine", qos=1)
        await eventually(lambda: told.payloads == [b"mine"])
        assert spy.publish(echo_of(DEVICE), b"end", qos=1)
        await eventually(lambda: heard.payloads == [b"end"])
        assert spy.granted == {echo_of(DEVICE)}


async def test_a_stolen_client_id_gives_its_thief_nothing_to_read(node: NatsCluster, doors: dict[str, Door]) -> None:
    """Unlike mosquitto, NATS lets a member take over another's session, but not what the session may read."""

    update = TOPICS.build(Topic(Kind.UPDATE, DEVICE, LEADER))

    async with node.running():
        async with present(doors[LEADER], LEADER, (update,)) as (leader, _):
            await eventually(lambda: leader.granted)
        async with present(doors[WATCHER], WATCHER) as (watcher, _):
            assert watcher.publish(update, b"for the leader", qos=1)
        async with present(doors[DEVICE], LEADER, (echo_of(DEVICE),)) as (thief, stolen):
            await eventually(lambda: echo_of(DEVICE) in thief.granted)
            assert thief.publish(echo_of(DEVICE), b"end", qos=1)
            await eventually(lambda: b"end" in stolen.payloads)
            assert stolen.payloads == [b"end"]
        async with present(doors[LEADER], LEADER) as (leader, told):
            await eventually(lambda: told.payloads == [b"for the leader"])


async def test_certificates_of_the_federations_authority_open_the_door(tmp_path: Path) -> None:
    """They carry a URI beside the common name, which NATS would take for a user if it knew one of that name."""

    identities = _certify(tmp_path, FEDERATION, [DEVICE])
    (tmp_path / "devices").write_text(DEVICE)
    files = [f"--ca={tmp_path / 'ca.pem'}", f"--cert={tmp_path / 'broker.pem'}", f"--key={tmp_path / 'broker.key'}"]
    listed = [f"--devices={tmp_path / 'devices'}", f"--set=federation.id={FEDERATION}"]
    node = NatsCluster(tmp_path / "nats", 1, *files, *listed)

    door = Door(node.ports[0], identities[DEVICE])
    async with node.running(), present(door, DEVICE, (echo_of(DEVICE),)) as (link, heard):
        await eventually(lambda: link.all_granted)
        assert link.publish(echo_of(DEVICE), b"here", qos=1)
        await eventually(lambda: heard.payloads == [b"here"])
