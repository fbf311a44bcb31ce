"""What a joint key belongs to: federation, term, members and threshold; and what an object on the wire belongs to."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

from ofl_iot.crypto.params import ParameterSet
from ofl_iot.errors import ConfigError, CryptoError
from ofl_iot.ids import DeviceId, FederationId, Term


def threshold_of(setting: str | int, leaders: int) -> int:
    """How many leaders must decrypt: `all`, `majority` (more than half) or a number."""
    if setting == "all":
        return leaders
    if setting == "majority":
        return leaders // 2 + 1
    if isinstance(setting, bool) or not isinstance(setting, int) or not 2 <= setting <= leaders:
        raise ConfigError(f"threshold {setting!r}: use 'all', 'majority' or a number from 2 to {leaders} (the leaders)")
    return setting


@dataclass(frozen=True)
class KeyContext:
    """One key generation: who makes the key, for which term, and how many of them decrypt.

    `attempt` grows when key generation starts again in the same term; nothing of an earlier attempt is accepted.
    """

    params: ParameterSet
    federation: FederationId
    term: Term
    members: tuple[DeviceId, ...]
    threshold: int
    attempt: int = 0

    def __post_init__(self) -> None:
        if len(set(self.members)) != len(self.members):
            raise ConfigError("a leader is named twice among the members of a key")
        if not 2 <= self.threshold <= len(self.members):
            raise ConfigError(
                f"a threshold of {self.threshold} among {len(self.members)} leaders: at least 2 leaders must decrypt "
                "together, and no more than there are"
            )

    @cached_property
    def key_id(self) -> bytes:
        """16 bytes that differ whenever anything of the context differs."""
        fields = (self.params.name, self.federation, str(self.term), str(self.attempt), str(self.threshold))
        text = "\n".join((*fields, *self.members))
        return hashlib.sha256(b"ofl-iot key context v1\n" + text.encode()).digest()[:16]

    @property
    def leaders(self) -> int:
        """How many secrets make up the joint secret."""
        return len(self.members)

    def point_of(self, member: DeviceId) -> int:
        """The member's evaluation point of the Shamir polynomials: 1, 2, …"""
        if member not in self.members:
            raise CryptoError(f"{member} is no member of the key of term {self.term}")
        return self.members.index(member) + 1

    def point_of_name(self, name: str) -> int:
        """The evaluation point of a member that a received object names."""
        return self.point_of(DeviceId(name))

    def check_active(self, active: tuple[DeviceId, ...]) -> None:
        """Refuse a set that cannot or must not decrypt."""
        for member in active:
            self.point_of(member)
        if len(set(active)) != len(active):
            raise CryptoError("the active set names a leader twice")
        if len(active) < self.threshold:
            raise CryptoError(
                f"an active set of {len(active)} leaders cannot decrypt: the threshold is {self.threshold}"
            )


@dataclass(frozen=True)
class Origin:
    """Which key, round and sender an object belongs to; a received object must match what is expected."""

    context: KeyContext
    round_no: int
    sender: DeviceId
