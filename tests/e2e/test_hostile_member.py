"""An enrolled device that means ill: a foreign client over mutual TLS, against a federation of processes on mosquitto.

Each attack once stopped or owned the federation. Now the rounds go on, and the log names the attacker.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from paho.mqtt.client import CallbackAPIVersion, Client, MQTTMessage, MQTTv311

from ofl_iot.ids import COORDINATOR, DeviceId, FederationId
from ofl_iot.protocol.codec import decode
from ofl_iot.protocol.messages import Assignment, Pull, Status
from ofl_iot.protocol.topics import Kind, Topic, Topics
from ofl_iot.runtime.logs import SenderLimit
from tests.conftest import MOSQUITTO
from tests.e2e.identities import Identities, ends_in_good_order
from tests.e2e.processes import Federation, Watch, audit_stores, until
from tests.e2e.test_production_mosquitto import Production
from tests.roles.parties import chunk_of

pytestmark = pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed")

ROUNDS = 6
MALLORY = DeviceId("mallory")
TOPICS = Topics(FederationId("e2e"))
FORGED = "\n2026-01-01 00:00:00,000 ERROR forged: round closed party=coordinator"


class Mallory:
    """A client of another make with a valid certificate; it says what it likes under its own name."""

    def __init__(self, tls: dict[str, str], port: int) -> None:
        self.assignment: Assignment | None = None
        self._client = Client(CallbackAPIVersion.VERSION2, client_id=MALLORY, protocol=MQTTv311)
        self._client.tls_set(tls["tls.ca"], tls["tls.cert"], tls["tls.key"])
        self._client.on_message = self._heard
        self._client.connect("127.0.0.1", port)
        self._client.subscribe(TOPICS.build(Topic(Kind.ASSIGNMENT, COORDINATOR, MALLORY)), 1)
        self._client.loop_start()

    def _heard(self, _client: Client, _data: object, message: MQTTMessage) -> None:
        assignment = decode(Kind.ASSIGNMENT, message.payload)
        assert isinstance(assignment, Assignment)
        self.assignment = assignment

    def say(self, kind: Kind, message: object, receiver: str | None = None, *, retain: bool = False) -> None:
        """Bytes as no program of ours would send them, if need be."""
        payload = message if isinstance(message, bytes) else b"\x92\x01" + msgspec.msgpack.encode(message)
        topic = TOPICS.build(Topic(kind, MALLORY, DeviceId(receiver) if receiver else None))
        self._client.publish(topic, payload, qos=1, retain=retain)

    def leave(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


def lines_about(output: str, what: str) -> list[str]:
    return [line for line in output.splitlines() if f"sender={MALLORY}" in line and what in line]


async def test_a_hostile_member_stops_nobody_and_is_named(tmp_path: Path) -> None:
    identities = Identities(tmp_path / "pki", MALLORY)
    broker = Production(tmp_path / "broker", identities)
    federation = Federation(tmp_path, broker.port, ROUNDS)
    hosts = [f"127.0.0.1:{broker.port}"]
    identities.give_to(federation, hosts, rotate=False)
    watch = Watch(federation.settings)
    async with broker.running(), identities.watching(watch, hosts), federation.running():
        await until(lambda: watch.round_no >= 1, federation)
        mallory = Mallory(identities.files(MALLORY), broker.port)
        try:
            await attack(mallory, federation, watch)
        finally:
            mallory.leave()
        await ends_in_good_order(federation, ROUNDS)
    assert max(assignment.term for assignment in watch.assignments.values()) < 1000
    assert all(process.output.count("\n2026-01-01") == 0 for process in federation.processes.values())
    audit = audit_stores(*federation.restored())
    assert (audit.lost, audit.doubled) == (0, 0)


async def attack(mallory: Mallory, federation: Federation, watch: Watch) -> None:
    """One after the other; each wait is for the log line that names the attacker."""
    honest = next(iter(watch.statuses.values()))
    coordinator = federation.processes[COORDINATOR]

    def named(output: Callable[[], str], what: str) -> Callable[[], bool]:
        return lambda: bool(lines_about(output(), what))

    mine = Status(online=True, term=0, sample_count=10**12, model=honest.model, size=honest.size)
    mallory.say(Kind.STATUS, msgspec.structs.replace(mine, term=2**53 - 1))
    await until(named(lambda: coordinator.output, "term 9007199254740991"), federation)
    mallory.say(Kind.TELEMETRY, b"\x92\x01" + msgspec.msgpack.encode([FORGED * 10_000, 1]))
    await until(named(lambda: coordinator.output, "not a TELEMETRY message"), federation)
    mallory.say(Kind.STATUS, mine, retain=True)  # a member with 10^12 samples
    await until(lambda: mallory.assignment is not None and mallory.assignment.leader != MALLORY, federation)
    assert mallory.assignment is not None
    leader, term = mallory.assignment.leader, mallory.assignment.term
    chunk = chunk_of(2**62 - 1, {0: 1e9}, term=term, size=honest.size, model=honest.model)
    mallory.say(Kind.UPDATE, chunk, leader)
    for _ in range(300):
        mallory.say(Kind.PULL, Pull(term, np.full(3, -1.0).tobytes(), 2**53 - 1), leader)
    # A re-clustering may have given it another leader meanwhile: that one drops what comes as late, which is fine too.
    await until(
        lambda: (
            bool(lines_about(federation.processes[leader].output, "may number its chunks up to"))
            or (mallory.assignment is not None and mallory.assignment.term != term)
        ),
        federation,
    )
    output = federation.processes[leader].output
    assert len(lines_about(output, "PULL")) <= 2 * SenderLimit.BURST
    assert not re.search(r"^2026-01-01", output, re.MULTILINE)
