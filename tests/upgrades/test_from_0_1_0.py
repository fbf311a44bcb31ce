"""What version 0.1.0 stored and said is taken up: its stores, made by its own processes, and what they retained.

`v0_1_0/` holds the stores of a coordinator and four agents that were killed in mid-run, and what the broker retained.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from ofl_agents.chaos.counting import CountingPlan, TallyToolbox, Unweighted
from ofl_agents.chaos.tally import EvenPace
from ofl_iot.errors import DecodeError
from ofl_iot.fleet.assignment import FleetSettings
from ofl_iot.ids import COORDINATOR, DeviceId, FederationId
from ofl_iot.protocol import codec
from ofl_iot.protocol.codec import decode
from ofl_iot.protocol.messages import Books, Manifest
from ofl_iot.protocol.seqset import SeqSet
from ofl_iot.protocol.topics import Topics
from ofl_iot.roles.agent import AgentMachine
from ofl_iot.roles.base import Machine
from ofl_iot.roles.coordinator.claim import CoordinatorClaim
from ofl_iot.roles.coordinator.machine import CoordinatorMachine, CoordinatorRules, ModelProfile
from ofl_iot.roles.coordinator.takeover import TakeoverReader
from ofl_iot.roles.device.machine import DeviceMachine
from ofl_iot.roles.device.outbox import TABLE as OUTBOX
from ofl_iot.roles.device.privacy_guard import PrivacyRules
from ofl_iot.roles.device.profile import DeviceProfile, DeviceRules
from ofl_iot.roles.keys.holder import KeyHolder
from ofl_iot.roles.leader.machine import LeaderMachine, LeaderProfile
from ofl_iot.roles.settings import LeaderRules
from ofl_iot.roles.storage import Put
from ofl_iot.runtime.store import MemoryStore, SqliteStore
from ofl_iot.runtime.virtual import Party, VirtualWorld
from ofl_iot.runtime.virtual_broker import Faults

HERE = Path(__file__).parent / "v0_1_0"
FEDERATION = FederationId("n1")
NAMES = [DeviceId(f"truck-{number}") for number in range(1, 5)]
RETAINED: dict[str, bytes] = msgspec.msgpack.decode((HERE / "retained.msgpack").read_bytes())
PLAN = CountingPlan(devices=4)


def said(topic: str) -> object:
    parsed = Topics(FEDERATION).parse(f"ofl/v1/n1/{topic}")
    return decode(parsed.kind, RETAINED[f"ofl/v1/n1/{topic}"])


def manifest() -> Manifest:
    message = said("global/manifest")
    assert isinstance(message, Manifest)
    return message


def store_of(name: str, folder: Path) -> MemoryStore:
    """The store as sqlite reads it now, in memory."""
    file = folder / f"{name}.sqlite"
    file.write_bytes(gzip.decompress((HERE / f"{name}.sqlite.gz").read_bytes()))
    memory = MemoryStore()
    with SqliteStore(file) as store:
        for table, rows in store.load().items():
            memory.apply([Put(table, key, value) for key, value in rows.items()])
    return memory


def test_every_message_that_was_retained_is_read() -> None:
    topics = Topics(FEDERATION)
    kinds = {topics.parse(topic).kind.name for topic in RETAINED}
    assert kinds == {"STATUS", "ASSIGNMENT", "GLOBAL_PART", "BOOKS", "MANIFEST", "ROUND_OPEN"}
    for topic, payload in RETAINED.items():
        decode(topics.parse(topic).kind, payload)


def test_model_and_books_at_the_broker_are_taken_over() -> None:
    reader = TakeoverReader(manifest().model, manifest().size)
    reader.take_manifest(manifest())
    for topic, payload in RETAINED.items():
        parsed = Topics(FEDERATION).parse(topic)
        if parsed.kind.name in ("GLOBAL_PART", "BOOKS"):
            reader.take_part(parsed.kind, decode(parsed.kind, payload))  # type: ignore[arg-type]
    legacy = reader.complete()
    assert legacy is not None
    assert isinstance(legacy.books, Books)
    assert set(legacy.books.settled) == set(NAMES)


def test_what_a_newer_version_says_is_refused_with_advice() -> None:
    topic = Topics(FEDERATION).parse("ofl/v1/n1/global/manifest")
    newer = bytes([0x92, codec.VERSION + 1]) + RETAINED["ofl/v1/n1/global/manifest"][2:]
    with pytest.raises(DecodeError, match="upgrade ofl-iot here"):
        decode(topic.kind, newer)


def coordinator() -> CoordinatorMachine:
    seen = manifest()
    return CoordinatorMachine(
        ModelProfile(seen.model, np.zeros(seen.size, np.float32)),
        CoordinatorRules(
            rounds=PLAN.rounds, fleet=PLAN.fleet, protection=PLAN.protection, planning=FleetSettings(),
            training=msgspec.structs.replace(PLAN.training, steps=1),
        ),
        CoordinatorClaim(b"drawn anew", take_over=False),
    )  # fmt: skip


def agent(name: DeviceId) -> AgentMachine:
    seen, block = manifest(), LeaderRules().block_size
    profile = DeviceProfile(name, seen.model, seen.size, block, 10, heartbeat_s=PLAN.fleet.heartbeat_s)
    rules = DeviceRules(
        training=PLAN.training, upload=PLAN.upload, download=PLAN.download, privacy=PrivacyRules(mode="off")
    )
    device = DeviceMachine(profile, rules)
    keeper = KeyHolder(name, 2.0, PLAN.protection.server)
    leading = LeaderProfile(name, seen.model, device.model.layout, encrypted=False)
    return AgentMachine(device, LeaderMachine(leading, LeaderRules(), Unweighted(), keeper, device.store), keeper)


class Quiet:
    busy, step = False, 0.0


def test_a_federation_goes_on_from_stores_of_0_1_0_and_settles_what_waited_there(tmp_path: Path) -> None:
    """Chunks that 0.1.0 released and did not settle are settled, each once: the model grows by their sum."""
    seen, world = manifest(), VirtualWorld(FEDERATION, Faults(), 1)
    machines: dict[str, Machine] = {}
    waited: dict[DeviceId, list[int]] = {}

    def keep(name: str, make: Callable[[], Machine]) -> Callable[[], Machine]:
        def begin() -> Machine:
            machines[name] = make()
            return machines[name]

        return begin

    for name in (COORDINATOR, *NAMES):
        store = store_of(name, tmp_path)
        if name != COORDINATOR:
            waited[name] = [int(seq) for seq in store.load().get(OUTBOX, {})]
        make = keep(name, coordinator if name == COORDINATOR else lambda name=name: agent(name))
        toolbox = TallyToolbox(seen.size, None, Quiet())
        world.add(Party(name, make, toolbox, EvenPace(0.3), store=store))
    assert all(waited.values()), "nothing waited: the fixture tests nothing"

    def settled() -> bool:
        machine = machines.get(COORDINATOR)
        if not isinstance(machine, CoordinatorMachine):
            return False
        books = {name: record.settled for name, record in machine.roster.devices.items()}
        return all(seq in books.get(name, SeqSet()) for name, seqs in waited.items() for seq in seqs)

    assert world.run(settled, limit_s=300.0)
    machine = machines[COORDINATOR]
    assert isinstance(machine, CoordinatorMachine)
    assert machine.model_round > seen.round_no
    assert machine.doubled_chunks == 0
