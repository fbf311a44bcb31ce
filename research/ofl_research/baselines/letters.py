"""What the baselines' parties say to each other, and how it travels: one struct a letter, in msgpack.

Models go as dense float32, 4 bytes a parameter, as the common frameworks send them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from ofl_iot.errors import DecodeError
from ofl_iot.ids import COORDINATOR, DeviceId, FederationId
from ofl_iot.protocol.topics import Kind, Topic, Topics
from ofl_iot.roles.commands import Publish, Subscribe, Unsubscribe
from ofl_iot.roles.events import Event

Vector: TypeAlias = npt.NDArray[np.float32]


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """A device is there: how many samples it has, and how long it takes for a training step."""

    sample_count: int
    step_s: float = 0.0


class Lead(msgspec.Struct, frozen=True, array_like=True, tag="lead"):
    """The server makes a device the head of a cluster: its members with their numbers of samples, itself included."""

    members: dict[str, int]


class Offer(msgspec.Struct, frozen=True, array_like=True, tag="offer"):
    """Models to train one of; the answer is a Reply to the sender."""

    round_no: int
    models: tuple[bytes, ...]


class Reply(msgspec.Struct, frozen=True, array_like=True, tag="reply"):
    """What a device has trained, from the model with the number `choice`."""

    round_no: int
    body: bytes
    choice: int = 0


class Shares(msgspec.Struct, frozen=True, array_like=True, tag="shares"):
    """Secret shares by the device they are for, or come from."""

    round_no: int
    shares: dict[str, bytes]


BaselineMessage: TypeAlias = Hello | Lead | Offer | Reply | Shares


@dataclass(frozen=True)
class BaselineMessageArrived:
    """A letter came."""

    sender: DeviceId
    letter: BaselineMessage


BaselineEvent: TypeAlias = Event | BaselineMessageArrived
"""What can happen to a baseline's machine."""

_decoder = msgspec.msgpack.Decoder(BaselineMessage)


def read_letter(payload: bytes) -> BaselineMessage:
    """Decode a letter."""
    try:
        letter: BaselineMessage = _decoder.decode(payload)
    except msgspec.DecodeError as error:
        raise DecodeError(f"not a letter of a baseline: {error}") from error
    return letter


def post(sender: DeviceId, receiver: DeviceId, letter: BaselineMessage) -> Publish:
    """Hand a letter to the link: upwards on the topic of updates, downwards on the topic of blocks."""
    downwards = sender == COORDINATOR or isinstance(letter, Offer)
    kind = Kind.BLOCKS if downwards else Kind.UPDATE
    return Publish(Topic(kind, sender, receiver), msgspec.msgpack.encode(letter))


def mailbox(owner: DeviceId) -> list[Subscribe]:
    """All that is for one party."""
    return [Subscribe(Kind.UPDATE, receiver=owner), Subscribe(Kind.BLOCKS, receiver=owner)]


class LetterWire:
    """Letters on the production's topics, so that addresses cost the same bytes."""

    def __init__(self, federation: FederationId) -> None:
        self._topics = Topics(federation)

    def outgoing(self, command: Publish) -> tuple[str, bytes]:
        """Topic and bytes of a letter."""
        if not isinstance(command.message, bytes):
            raise TypeError("baselines publish letters, encoded")
        return self._topics.build(command.topic), command.message

    def pattern(self, command: Subscribe | Unsubscribe) -> str:
        """The subscription's pattern."""
        return self._topics.pattern(command.kind, command.sender or "+", command.receiver or "+")

    def incoming(self, topic: str, payload: bytes) -> BaselineMessageArrived:
        """The event of a delivery; both topics end in the sender's id."""
        return BaselineMessageArrived(DeviceId(topic.rsplit("/", 1)[-1]), read_letter(payload))


def pack_dense(model: Vector) -> bytes:
    """float32, little endian."""
    return model.astype("<f4", copy=False).tobytes()


def unpack_dense(body: bytes) -> Vector:
    """What `pack_dense` gave."""
    if len(body) % 4:
        raise DecodeError(f"{len(body)} bytes are no float32 vector")
    return np.frombuffer(body, "<f4").astype(np.float32, copy=False)
