"""Whoever runs the broker forges what it likes, in anybody's name: it learns no update, and rounds go on.

The operator is a foreign client over mutual TLS that no access rule binds: it reads every message of an enrolled
federation of processes and publishes requests in the coordinator's name, which a dishonest coordinator could send too.
"""

from __future__ import annotations

import queue
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from paho.mqtt.client import CallbackAPIVersion, Client, MQTTMessage, MQTTv311

from ofl_broker.mosquitto import ACL
from ofl_iot.errors import ProtocolError
from ofl_iot.ids import COORDINATOR, DeviceId, FederationId
from ofl_iot.protocol.codec import decode, decode_body, encode, encode_body
from ofl_iot.protocol.lean import OpenAsk, ScoresAsk, SketchAsk, VouchAsk
from ofl_iot.protocol.messages import Message, Part
from ofl_iot.protocol.parts import split_body
from ofl_iot.protocol.topics import Kind, Topic, Topics
from tests.conftest import MOSQUITTO
from tests.e2e.enrolled import Enrolled
from tests.e2e.identities import ends_in_good_order
from tests.e2e.processes import Federation, Watch, audit_stores, until
from tests.e2e.test_production_mosquitto import Production

pytestmark = pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed")

ROUNDS = 5
OPERATOR = DeviceId("operator")
TOPICS = Topics(FederationId("e2e"))
FORGED = ".9."
"""In the label of every forged request: the coordinator's own attempts do not come that far."""


@dataclass
class Operator:
    """Reads everything, keeps the requests to leaders and their answers, publishes under any name."""

    tls: dict[str, str]
    port: int
    asked: queue.Queue[tuple[str, Part]] = field(default_factory=queue.Queue)
    answers: list[tuple[str, Part]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._client = Client(CallbackAPIVersion.VERSION2, client_id=OPERATOR, protocol=MQTTv311)
        self._client.tls_set(self.tls["tls.ca"], self.tls["tls.cert"], self.tls["tls.key"])
        self._client.on_message = self._heard
        self._client.connect("127.0.0.1", self.port)
        self._client.subscribe("ofl/#", 1)
        self._client.loop_start()

    def _heard(self, _client: Client, _data: object, message: MQTTMessage) -> None:
        try:
            topic = TOPICS.parse(message.topic)
            said = decode(topic.kind, message.payload)
        except ProtocolError:
            return
        if isinstance(said, Part) and topic.kind is Kind.DECRYPT and FORGED not in said.stage:
            self.asked.put((str(topic.receiver), said))
        elif isinstance(said, Part) and topic.kind is Kind.SHARE:
            self.answers.append((topic.sender, said))

    def say(self, topic: Topic, message: Message) -> None:
        self._client.publish(TOPICS.build(topic), encode(message), qos=1)

    def ask(self, leader: str, part: Part, stage: str, body: bytes, round_no: int | None = None) -> None:
        """A request in the coordinator's name."""
        number = part.round_no if round_no is None else round_no
        for piece in split_body(body, part.term, number, stage):
            self.say(Topic(Kind.DECRYPT, COORDINATOR, DeviceId(leader)), piece)

    def leave(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


def forgeries(leader: str, ask: SketchAsk) -> Iterator[tuple[str, bytes]]:
    """Everything that the operator can make of a leader's first request, by stage."""
    names = sorted(ask.boxes)
    other = next(name for name in names if name != leader)
    even, two, heavy = dict.fromkeys(names, 1), {leader: 1, other: 1}, {**dict.fromkeys(names, 1), leader: 16}
    nobody = dict.fromkeys(names, b"")
    made_up = dict.fromkeys(names, bytes(71))
    swapped = {**ask.boxes, other: ask.boxes[leader]}
    yield "open.9.1", encode_body(OpenAsk(ask.headers, even, nobody, ask.boxes))
    yield "open.9.2", encode_body(OpenAsk(ask.headers, even, made_up, swapped))
    yield "open.9.3", encode_body(OpenAsk(ask.headers, two, nobody, ask.boxes))
    yield "open.9.4", encode_body(OpenAsk(ask.headers, {leader: 1}, nobody, ask.boxes))
    yield "vouch.9.5", encode_body(VouchAsk(ask.headers, heavy))
    yield "vouch.9.6", encode_body(VouchAsk(ask.headers[:1], {leader: 1}))
    yield "scores.9.7", encode_body(ScoresAsk(ask.headers, {leader: b"chosen"}, tuple(names), 1, ask.boxes))
    # What gave the joint secret of a term away: a ciphertext half of 2^40, which leaders answered without a look.
    yield "model.9.8", b"OFL1" + np.full((2, 4096), 2**40 % 2**27, np.uint32).tobytes()


async def test_whoever_runs_the_broker_opens_nothing_and_rounds_go_on(tmp_path: Path) -> None:
    identities = Enrolled(tmp_path / "pki", OPERATOR)
    broker = Production(tmp_path / "broker", identities)
    with (tmp_path / "broker" / ACL).open("a") as acl:
        acl.write(f"\nuser {OPERATOR}\ntopic readwrite ofl/#\n")
    federation = Federation(tmp_path, broker.port, ROUNDS, "threshold")
    identities.enrol_all(federation, broker.port)
    for process in federation.processes.values():
        process.arguments += ["--set=fleet.clusters=3", "--set=round.recluster_every=0"]
    watch = Watch(federation.settings)
    hosts = [f"127.0.0.1:{broker.port}"]
    async with broker.running(), identities.watching(watch, hosts), federation.running():
        await until(lambda: len(watch.statuses) == 4, federation)
        operator = Operator(identities.files(OPERATOR), broker.port)
        try:
            attacked = await attack(operator, federation)
            await ends_in_good_order(federation, ROUNDS)
        finally:
            operator.leave()
    assert attacked, "some leader was asked"
    forged = [(leader, part.stage) for leader, part in operator.answers if FORGED in part.stage]
    assert forged == [], "no forged request was answered"
    honest = {part.stage.partition(".")[0] for _, part in operator.answers}
    assert honest == {"sketch", "scores", "vouch", "open"}, "while the coordinator's were"
    audit = audit_stores(*federation.restored())
    assert (audit.lost, audit.doubled) == (0, 0)


async def attack(operator: Operator, federation: Federation) -> set[str]:
    """Forge at the moment when leaders have open contributions; wait until each has refused and named who asked."""
    attacked: set[str] = set()
    while len(attacked) < 2:
        await until(lambda: not operator.asked.empty(), federation)
        leader, part = operator.asked.get()
        if leader in attacked or not part.stage.startswith("sketch") or part.parts > 1:
            continue
        attacked.add(leader)
        for stage, body in forgeries(leader, decode_body(SketchAsk, part.body)):
            operator.ask(leader, part, stage, body)
        operator.ask(leader, part, "open.9.9", part.body, round_no=part.round_no + 10**6)
    for name in attacked:
        process = federation.processes[DeviceId(name)]
        for reason in REFUSALS:
            await until(lambda process=process, reason=reason: refused(process.output, reason), federation)
    return attacked


REFUSALS = (
    "signature is not its own",
    "at least 2 are needed",
    "is above half of the sum",
    "has no stage 'model'",
    "to which this device did not contribute",
)


def refused(output: str, reason: str) -> bool:
    """Whether a log line gives the reason and names in whose name the request came."""
    return any(reason in line and COORDINATOR in line for line in output.splitlines())
