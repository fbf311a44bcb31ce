"""A client of another make with a valid certificate, and what a federation under attack must still do."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import msgspec
from paho.mqtt.client import CallbackAPIVersion, Client, MQTTMessage, MQTTv311

from ofl_iot.errors import ProtocolError
from ofl_iot.ids import COORDINATOR, DeviceId, FederationId
from ofl_iot.protocol.codec import decode
from ofl_iot.protocol.messages import Assignment, Message, RoundOpen
from ofl_iot.protocol.topics import Kind, Topic, Topics
from tests.e2e.identities import Identities
from tests.e2e.processes import Federation, Watch, audit_stores, until
from tests.e2e.test_production_mosquitto import Production

ENDLESS = 0
"""Rounds go on until the attack is over, however busy the machine is."""
TOPICS = Topics(FederationId("e2e"))


class Foreigner:
    """Says what it likes under the name of its certificate, and keeps what it is told."""

    def __init__(self, name: str, tls: dict[str, str], port: int) -> None:
        self.name = DeviceId(name)
        self.assignment: Assignment | None = None
        self.opened: RoundOpen | None = None
        self._client = Client(CallbackAPIVersion.VERSION2, client_id=name, protocol=MQTTv311)
        self._client.tls_set(tls["tls.ca"], tls["tls.cert"], tls["tls.key"])
        self._client.on_message = self._heard
        self._client.connect("127.0.0.1", port)
        self._client.subscribe(TOPICS.build(Topic(Kind.ASSIGNMENT, COORDINATOR, self.name)), 1)
        self._client.subscribe(TOPICS.build(Topic(Kind.ROUND_OPEN, COORDINATOR)), 1)
        self._client.loop_start()

    def _heard(self, _client: Client, _data: object, message: MQTTMessage) -> None:
        with contextlib.suppress(ProtocolError):
            said: Message = decode(TOPICS.parse(message.topic).kind, message.payload)
            if isinstance(said, Assignment):
                self.assignment = said
            elif isinstance(said, RoundOpen):
                self.opened = said

    def say(self, kind: Kind, message: object, receiver: str | None = None, *, retain: bool = False) -> None:
        """Bytes as no program of ours would send them, if need be."""
        payload = message if isinstance(message, bytes) else b"\x92\x01" + msgspec.msgpack.encode(message)
        topic = TOPICS.build(Topic(kind, self.name, DeviceId(receiver) if receiver else None))
        self._client.publish(topic, payload, qos=1, retain=retain)

    def leave(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


class Field:
    """A federation of processes on mosquitto with mutual TLS, whose rounds do not end by themselves."""

    def __init__(self, folder: Path, *others: str) -> None:
        self.identities = Identities(folder / "pki", *others)
        self.broker = Production(folder / "broker", self.identities)
        self.federation = Federation(folder, self.broker.port, ENDLESS)
        self._hosts = [f"127.0.0.1:{self.broker.port}"]
        self.identities.give_to(self.federation, self._hosts, rotate=False)
        self.watch = Watch(self.federation.settings)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        watching = self.identities.watching(self.watch, self._hosts)
        async with self.broker.running(), watching, self.federation.running():
            await self.until(lambda: self.watch.round_no >= 1)
            yield

    @contextlib.contextmanager
    def foreigner(self, name: str) -> Iterator[Foreigner]:
        one = Foreigner(name, self.identities.files(name), self.broker.port)
        try:
            yield one
        finally:
            one.leave()

    async def until(
        self, condition: Callable[[], bool], say: Callable[[], None] | None = None, every_s: float = 1.0
    ) -> None:
        """Wait for the condition; say it again and again, for a busy party may not have been ready."""
        said = [0.0]

        def met() -> bool:
            if say and time.monotonic() - said[0] > every_s:
                said[0] = time.monotonic()
                say()
            return condition()

        await until(met, self.federation)

    async def rounds_go_on(self) -> None:
        """Two more global models."""
        before = self.watch.round_no
        await self.until(lambda: self.watch.round_no >= before + 2)

    async def stop(self, *but: str) -> None:
        """Everybody ends when told to, in good order, and no chunk was lost or counted twice."""
        running = {name: each for name, each in self.federation.processes.items() if name not in but}
        assert all(process.running for process in running.values()), "nobody had to give up"
        for process in running.values():
            process.kill(signal.SIGTERM)
        codes = await asyncio.gather(*(process.ended() for process in running.values()))
        assert set(codes) == {0}
        audit = audit_stores(*self.federation.restored())
        assert (audit.lost, audit.doubled) == (0, 0)

    def output(self, name: str) -> str:
        return self.federation.processes[DeviceId(name)].output

    def named(self, party: str, attacker: str, what: str) -> Callable[[], bool]:
        """Whether the party's log has a line with this text that names the attacker."""
        return lambda: any(what in line and f"={attacker}" in line for line in self.output(party).splitlines())
