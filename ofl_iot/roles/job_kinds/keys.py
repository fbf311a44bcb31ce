"""Jobs around a joint key: making it, and a leader's answers with its share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import msgspec

from ofl_iot.ids import DeviceId
from ofl_iot.protocol.key_messages import KeyOpen
from ofl_iot.roles.events import (
    DecryptionAnswered,
    FinalDecrypted,
    KeysBegun,
    KeysFinished,
    KeysMade,
    LeanAnswered,
    OpenBody,
    SealingKeyMade,
    ServerDecrypted,
)
from ofl_iot.roles.job_kinds.base import DecryptorJob, Job, JobNumber, KeyJob, Role


@dataclass(frozen=True)
class MakeSealingKey(Job):
    """Draw the device's X25519 key."""

    owner: ClassVar[Role] = Role.KEYS
    result: ClassVar[type] = SealingKeyMade


class KeyMaterial(msgspec.Struct, frozen=True, array_like=True):
    """What a leader holds of a joint key."""

    opened: KeyOpen
    key_id: bytes
    public: bytes
    share: bytes
    relin_first: bytes = b""
    """Sum of the first relinearisation broadcasts: with it a leader recomputes the score requests of lean rounds."""


class CoordinatorKey(msgspec.Struct, frozen=True, array_like=True):
    """What the coordinator holds of a joint key: nothing secret."""

    opened: KeyOpen
    key_id: bytes
    public: bytes
    relin: bytes


@dataclass(frozen=True)
class BeginKeys(KeyJob):
    """A leader draws its secrets for a joint key."""

    owner: ClassVar[Role] = Role.KEYS
    result: ClassVar[type] = KeysBegun
    me: DeviceId
    sealing_private: bytes = field(repr=False)


@dataclass(frozen=True)
class FinishKeys(KeyJob):
    """A leader sums what the others sent into its key share."""

    owner: ClassVar[Role] = Role.KEYS
    result: ClassVar[type] = KeysFinished
    me: DeviceId
    sealing_private: bytes = field(repr=False)
    secret: bytes = field(repr=False)
    round1_shares: dict[str, bytes] = field(repr=False)
    deals: dict[str, bytes] = field(repr=False)


@dataclass(frozen=True)
class MakeKeys(KeyJob):
    """The coordinator sums the public parts of a joint key."""

    owner: ClassVar[Role] = Role.COORDINATOR
    result: ClassVar[type] = KeysMade
    round1_shares: dict[str, bytes] = field(repr=False)
    round2_shares: dict[str, bytes] = field(repr=False)


@dataclass(frozen=True)
class AnswerDecryption(Job):
    """A leader's part of a threshold decryption. Never run twice for a request."""

    owner: ClassVar[Role] = Role.KEYS
    result: ClassVar[type] = DecryptionAnswered
    key: KeyMaterial = field(repr=False)
    me: DeviceId
    round_no: int
    label: str
    request: bytes = field(repr=False)
    size: int = 0
    """Parameters of the model that may be decrypted."""

    @property
    def number(self) -> JobNumber:
        """Return its round."""
        return JobNumber(round_no=self.round_no)


@dataclass(frozen=True)
class AnswerLean(Job):
    """A leader's answer in a lean round. Never run twice for a request."""

    owner: ClassVar[Role] = Role.KEYS
    result: ClassVar[type] = LeanAnswered
    key: KeyMaterial = field(repr=False)
    me: DeviceId
    round_no: int
    label: str
    request: bytes = field(repr=False)
    own: OpenBody = field(repr=False)
    sealing_private: bytes = field(repr=False)
    sketch: bytes = field(default=b"", repr=False)
    """This leader's own sketch, once it has made one."""

    @property
    def number(self) -> JobNumber:
        """Return its round."""
        return JobNumber(round_no=self.round_no)


@dataclass(frozen=True)
class ServerDecrypt(DecryptorJob):
    """The decryptor makes a ciphertext fresh for an active set."""

    result: ClassVar[type] = ServerDecrypted
    active: tuple[str, ...]


@dataclass(frozen=True)
class FinalDecrypt(DecryptorJob):
    """The decryptor puts the shares of an active set together."""

    result: ClassVar[type] = FinalDecrypted
    held: bytes = field(repr=False)
    shares: dict[str, bytes] = field(repr=False)
