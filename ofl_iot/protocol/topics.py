"""The topic tree of a federation: every topic is built and parsed here and nowhere else.

Topics stand under `ofl/v1/{federation}/`. The sender's id is in every topic a device publishes to, and a cluster's
topics carry its leader's id, so an access rule is one comparison whoever leads.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ofl_iot.errors import TopicError
from ofl_iot.ids import COORDINATOR, DECRYPTOR, OBSERVER, OPERATOR, RESERVED, DeviceId, FederationId, is_id

ROOT = "ofl/v1"
MAX_INDEX = 10**6
_SENDER, _RECEIVER, _INDEX = "{sender}", "{receiver}", "{index}"


class Kind(enum.Enum):
    """What travels on a topic; the value is its path below the federation."""

    STATUS = "device/{sender}/status"
    """device → coordinator, retained, also the last will"""
    TELEMETRY = "device/{sender}/telemetry"
    """device → coordinator"""
    ECHO = "device/{sender}/echo"
    """device → itself: tells a deaf session from a quiet one"""
    ASSIGNMENT = "device/{receiver}/assignment"
    """coordinator → device, retained"""
    RECEIPT = "device/{receiver}/receipt/{sender}"
    """leader, coordinator or decryptor → device: what arrived durably"""
    BLOCKS = "device/{receiver}/blocks/{sender}"
    """leader → device: the answer to a pull"""
    CLUSTER_CHANGE = "cluster/{sender}/change"
    """leader → its members: what its model changed by, sealed for them"""
    UPDATE = "cluster/{receiver}/update/{sender}"
    """device → leader: a chunk"""
    PULL = "cluster/{receiver}/pull/{sender}"
    """device → leader: asks for the stalest blocks"""
    ROUND_OPEN = "round/open"
    """coordinator → leaders, retained"""
    CONTRIBUTION = "round/cipher/{sender}"
    """leader → coordinator: its protected cluster model, in parts"""
    DECRYPT = "round/decrypt/{receiver}"
    """coordinator → leader: what to decrypt together, in parts"""
    SHARE = "round/share/{sender}"
    """leader → coordinator or decryptor: its decryption share, in parts"""
    KEYS = "keys/{sender}/{receiver}"
    """leader → leader, leader ↔ coordinator: key generation, sealed"""
    SERVERDEC = "serverdec/{sender}/{receiver}"
    """coordinator ↔ decryptor: what to decrypt and what came of it; decryptor → leader: its part of that; in parts"""
    MANIFEST = "global/manifest"
    """coordinator → leaders, retained, published after the model's parts"""
    GLOBAL_PART = "global/chunk/{index}"
    """coordinator → leaders, retained"""
    CARD = "global/card"
    """coordinator → devices, retained: which model is learnt, so that a difference can be told in words"""
    VITALS = "device/{sender}/vitals"
    """device → observer, retained: how it fares"""
    REFUSAL = "device/{receiver}/refusal/{sender}"
    """leader or coordinator → device, and the observer: why its messages are not accepted"""
    CLUSTER_NOTE = "fleet/cluster/{index}"
    """coordinator → observer, retained: who leads whom, and why"""
    ROUND_NOTE = "fleet/round"
    """coordinator → observer, retained: how the last round ended"""
    ORDER = "fleet/order/{receiver}"
    """operator → device, and the observer, retained: pause or go on, signed"""
    BOOKS = "global/books/{index}"
    """coordinator → whoever takes over from it, retained: which chunks the model holds"""


_WITH = {
    COORDINATOR: {Kind.ECHO, Kind.RECEIPT, Kind.KEYS, Kind.SERVERDEC, Kind.REFUSAL},
    DECRYPTOR: {Kind.ECHO, Kind.RECEIPT, Kind.SERVERDEC},
    OBSERVER: set(),
    OPERATOR: set(),
}
"""Where coordinator and decryptor may stand in a device's place; elsewhere their ids would make them devices."""
_PATHS = {kind: tuple(kind.value.split("/")) for kind in Kind}
_FORMS = {kind: str(kind.value) for kind in Kind}
_OF_LENGTH = {
    length: [(kind, path) for kind, path in _PATHS.items() if len(path) == length]
    for length in {len(path) for path in _PATHS.values()}
}


@dataclass(frozen=True)
class Topic:
    """A parsed topic: who sent it to whom. `receiver` is None where it is for the coordinator or for all."""

    kind: Kind
    sender: DeviceId
    receiver: DeviceId | None = None
    index: int = 0


class Topics:
    """Builds and parses the topics of one federation."""

    def __init__(self, federation: FederationId) -> None:
        self.federation = federation
        self._prefix = f"{ROOT}/{federation}/"

    def build(self, topic: Topic) -> str:
        """The topic's text."""
        return self._fill(topic.kind, topic.sender, topic.receiver, topic.index)

    def pattern(self, kind: Kind, sender: str = "+", receiver: str = "+") -> str:
        """A subscription pattern; `+` stands for anyone."""
        return self._fill(kind, sender, receiver, "+")

    def parse(self, text: str) -> Topic:
        """The parsed topic, or TopicError."""
        if not text.startswith(self._prefix):
            raise TopicError(f"topic {text[:120]!r} is not below {self._prefix!r}")
        words = text[len(self._prefix) :].split("/")
        kind = _kind_of(words)
        if kind is None:
            raise TopicError(f"topic {text[:120]!r} is none of this protocol's")
        sender, receiver, index = COORDINATOR, None, 0
        for slot, word in zip(_PATHS[kind], words, strict=True):
            if slot == _INDEX:
                index = _parse_index(word)
            elif slot in (_SENDER, _RECEIVER):
                if not is_id(word) or (word in RESERVED and kind not in _WITH[DeviceId(word)]):
                    raise TopicError(f"topic {text[:120]!r} names no valid device")
                if slot == _SENDER:
                    sender = DeviceId(word)
                else:
                    receiver = DeviceId(word)
        return Topic(kind, sender, receiver, index)

    def _fill(self, kind: Kind, sender: str, receiver: str | None, index: int | str) -> str:
        if receiver is None and _RECEIVER in _PATHS[kind]:
            raise ValueError(f"a {kind.name} topic needs a receiver")
        return self._prefix + _FORMS[kind].format(sender=sender, receiver=receiver, index=index)


def _kind_of(words: list[str]) -> Kind | None:
    for kind, path in _OF_LENGTH.get(len(words), ()):
        if all(slot[0] == "{" or slot == word for slot, word in zip(path, words, strict=True)):
            return kind
    return None


def _parse_index(word: str) -> int:
    if not (word.isascii() and word.isdigit() and len(word) <= 7 and int(word) <= MAX_INDEX and word == str(int(word))):
        raise TopicError(f"{word[:20]!r} is not the number of a part")
    return int(word)
