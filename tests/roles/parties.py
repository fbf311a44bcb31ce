"""Small machines and the words to talk about what they say: events in, commands out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Literal, TypeVar

import numpy as np

from ofl_iot.fleet.assignment import FleetSettings
from ofl_iot.ids import COORDINATOR, DeviceId
from ofl_iot.protocol.chunks import Chunk, ChunkHead, Piece, split_update
from ofl_iot.protocol.codec import decode
from ofl_iot.protocol.messages import (
    Assignment,
    Block,
    Blocks,
    Manifest,
    Member,
    Message,
    Part,
    RoundOpen,
    Seat,
    Status,
)
from ofl_iot.protocol.parts import digest_of, split_body
from ofl_iot.protocol.seqset import SeqSet
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.protocol.values import BlockPrecision
from ofl_iot.roles.agent import AgentMachine
from ofl_iot.roles.commands import Command, Compute, Persist, Publish, SetTimer
from ofl_iot.roles.coordinator.machine import CoordinatorMachine
from ofl_iot.roles.coordinator.profile import CoordinatorRules, ModelProfile
from ofl_iot.roles.device.machine import DeviceMachine
from ofl_iot.roles.device.privacy_guard import PrivacyRules
from ofl_iot.roles.device.profile import DeviceProfile, DeviceRules
from ofl_iot.roles.events import Arrived, ReleasePrepared
from ofl_iot.roles.job_kinds.keys import KeyMaterial
from ofl_iot.roles.keys.holder import KeyHolder
from ofl_iot.roles.leader.machine import LeaderMachine
from ofl_iot.roles.leader.profile import LeaderProfile
from ofl_iot.roles.reports.base import MessageDropped, Report
from ofl_iot.roles.settings import (
    DownloadRules,
    FleetRules,
    LeaderRules,
    ProtectionRules,
    RoundRules,
    TrainingRules,
    UploadRules,
)
from ofl_iot.runtime.store import MemoryStore

SIZE, BLOCK = 12, 4
MODEL = b"tinytiny"
A, B, C, D = (DeviceId(name) for name in "abcd")
T = TypeVar("T")


# --- machines


def device_machine(name: DeviceId = A, *, size: int = SIZE, model: bytes = MODEL, **upload: object) -> DeviceMachine:
    """A device whose releases may hold every parameter, exactly."""
    settings = {"gamma": 1.0, "values": "single", "window": 2, "resend_s": 5.0, **upload}
    return DeviceMachine(
        DeviceProfile(name, model, size, BLOCK, 10),
        DeviceRules(
            training=TrainingRules(steps=1, max_unreleased=3),
            upload=UploadRules(**settings),  # type: ignore[arg-type]
            download=DownloadRules(gamma=1.0),
            privacy=PrivacyRules(mode="off"),
        ),
    )


class Unweighted:
    """Every chunk counts in full."""

    def step(self, device: str, chunk: Chunk, now: float, members: Mapping[str, int], round_no: int) -> float:
        return 1.0

    def effort(self, chunk: Chunk) -> float:
        return 0.0

    def snapshot(self) -> bytes:
        return b""

    def restore(self, stored: bytes) -> None:
        assert stored == b""


class NoKeys:
    """Rounds in the clear need no joint key."""

    material: KeyMaterial | None = None
    sealing_private = b""


def leader_machine(
    name: DeviceId = A, *, snapshot_chunks: int = 3, values: BlockPrecision = "single", max_energy: float = math.inf
) -> LeaderMachine:
    """A leader that contributes in the clear."""
    profile = LeaderProfile(name, MODEL, device_machine(name).model.layout, encrypted=False, max_energy=max_energy)
    rules = LeaderRules(block_size=BLOCK, snapshot_chunks=snapshot_chunks, values=values)
    return LeaderMachine(profile, rules, Unweighted(), NoKeys())


def agent_machine(name: DeviceId = A) -> AgentMachine:
    return AgentMachine(device_machine(name), leader_machine(name), KeyHolder(name, resend_s=5.0))


def coordinator_machine(
    *,
    model: bytes = MODEL,
    size: int = SIZE,
    card: bytes = b"",
    protection: Literal["clear", "threshold"] = "clear",
    **rounds: object,
) -> CoordinatorMachine:
    """A coordinator; its rounds are in the clear unless the test says otherwise."""
    settings = {"interval_s": 10.0, "deadline_s": 20.0, "recluster_every": 0, **rounds}
    return CoordinatorMachine(
        ModelProfile(model, np.zeros(size, np.float32), card),
        CoordinatorRules(
            RoundRules(**settings),  # type: ignore[arg-type]
            FleetRules(min_devices=2, gather_s=5.0, leader_grace_s=30.0),
            ProtectionRules(mode=protection),
            FleetSettings(),
        ),
    )


# --- messages


def chunk_of(seq: int, values: Mapping[int, float], *, term: int = 1, size: int = SIZE, model: bytes = MODEL) -> Chunk:
    """A chunk with `values` by place."""
    (piece,) = pieces_of(values, term=term, size=size, model=model)
    return Chunk(**{name: getattr(piece.chunk, name) for name in Chunk.__struct_fields__} | {"seq": seq})


def pieces_of(
    values: Mapping[int, float], *, term: int = 1, size: int = SIZE, model: bytes = MODEL, target_bytes: int = 10**6
) -> list[Piece]:
    places = np.array(sorted(values))
    numbers = np.array([values[place] for place in sorted(values)], np.float32)
    head = ChunkHead(term=term, model=model, size=size, base_round=0, weight=1.0)
    return split_update(head, places, numbers, np.abs(numbers), precision="single", target_bytes=target_bytes)


def assignment(term: int = 1, leader: str = A, *, revision: int = 0, settled: SeqSet | None = None) -> Assignment:
    return Assignment(term, revision, leader, settled or SeqSet())


def office(
    term: int = 1, leader: str = A, members: Iterable[str] = (A, B), *, revision: int = 0, settled: SeqSet | None = None
) -> Assignment:
    """The assignment of a leader."""
    crew = tuple(Member(device, settled or SeqSet(), 10) for device in members)
    return Assignment(term, revision, leader, settled or SeqSet(), (), crew)


def whole_model(values: float | np.ndarray = 0.0, *, term: int = 1, round_no: int = 0) -> Blocks:
    """A leader's answer with every block."""
    vector = np.broadcast_to(np.asarray(values, "<f4"), SIZE)
    blocks = tuple(Block(i, 1.0, "f", vector[i * BLOCK : (i + 1) * BLOCK].tobytes()) for i in range(SIZE // BLOCK))
    return Blocks(term, round_no, blocks, last=True)


def global_model(round_no: int, values: float | np.ndarray = 0.0, included: tuple = ()) -> tuple[list[Part], Manifest]:
    """The parts of a global model and its manifest."""
    body = np.broadcast_to(np.asarray(values, "<f4"), SIZE).tobytes()
    return split_body(body, 0, round_no, "global"), Manifest(round_no, MODEL, SIZE, digest_of(body), included)


def round_open(
    round_no: int, leader: str = A, *, term: int = 1, attempt: int = 0, base: int | None = None
) -> RoundOpen:
    return RoundOpen(round_no, attempt, (Seat(leader, term),), round_no - 1 if base is None else base, 20.0)


def status(
    *, online: bool = True, term: int = 0, size: int = SIZE, model: bytes = MODEL, sample_count: int = 10
) -> Status:
    return Status(online=online, term=term, sample_count=sample_count, model=model, size=size)


def arrived(kind: Kind, sender: str, message: Message, receiver: str | None = None) -> Arrived:
    return Arrived(Topic(kind, DeviceId(sender), DeviceId(receiver) if receiver else None), message)


def assigned(message: Assignment, to: str = A) -> Arrived:
    return arrived(Kind.ASSIGNMENT, COORDINATOR, message, to)


def prepared(values: Mapping[int, float], **options: object) -> ReleasePrepared:
    return ReleasePrepared(tuple(pieces_of(values, **options)))  # type: ignore[arg-type]


# --- commands


def published(commands: Iterable[Command], kind: Kind) -> list[Message]:
    """The messages sent on a kind of topic, decoded where they were sent as bytes."""
    messages = [c.message for c in commands if isinstance(c, Publish) and c.topic.kind is kind]
    return [decode(kind, message) if isinstance(message, bytes) else message for message in messages]


def jobs(commands: Iterable[Command], job: type[T]) -> list[T]:
    return [c.job for c in commands if isinstance(c, Compute) and isinstance(c.job, job)]


def told(commands: Iterable[Command]) -> list[type[Report]]:
    return [type(c) for c in commands if isinstance(c, Report)]


def dropped(commands: Iterable[Command], kind: type[MessageDropped] = MessageDropped) -> MessageDropped:
    """The report of a dropped message, when that is all that happened."""
    *answers, report = commands
    assert all(isinstance(each, Publish) and each.topic.kind is Kind.REFUSAL for each in answers), "a refusal at most"
    assert isinstance(report, MessageDropped)
    assert type(report) is kind
    return report


def timers(commands: Iterable[Command]) -> dict[str, float]:
    return {c.name: c.at for c in commands if isinstance(c, SetTimer)}


def kinds(commands: Iterable[Command]) -> list[str]:
    """The commands' names, publications with their kind: the shape of a decision."""
    return [f"Publish {c.topic.kind.name}" if isinstance(c, Publish) else type(c).__name__ for c in commands]


def persist(store: MemoryStore, commands: Iterable[Command]) -> None:
    """Carry out what is to be durable."""
    for command in commands:
        if isinstance(command, Persist):
            store.apply(command.ops)
